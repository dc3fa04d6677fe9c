//! Compares the names of values word by word, and recognizes names that only measure.

/// Names are compared by at most this number of characters.
const NAME_CHARS_MAX: usize = 200;
/// A name of one word is also found at the end of a longer word (`authtoken`) if it has at least
/// this length. Shorter names are found as whole words only, because `card` ends `discard`.
const SUFFIX_BYTES_MIN: usize = 5;
/// Words of names that measure something or describe a kind.
const MEASURES: [&str; 38] = [
    "used",
    "count",
    "counts",
    "total",
    "limit",
    "max",
    "min",
    "num",
    "length",
    "len",
    "size",
    "bytes",
    "at",
    "ttl",
    "expires",
    "expiry",
    "expired",
    "remaining",
    "left",
    "seconds",
    "ms",
    "minutes",
    "hours",
    "days",
    "age",
    "attempts",
    "version",
    "required",
    "valid",
    "enabled",
    "type",
    "kind",
    "per",
    "rate",
    "cost",
    "budget",
    "since",
    "until",
];
/// Values that are never secret.
const HARMLESS: [&str; 8] = [
    "",
    "true",
    "false",
    "null",
    "none",
    "nil",
    "undefined",
    "[redacted]",
];

/// A sensitive name as a sequence of lower-case words.
#[derive(Debug, Clone)]
pub(super) struct Term {
    words: Vec<String>,
    joined: String,
}

impl Term {
    /// Returns `None` if the name contains no letter or digit.
    pub(super) fn new(name: &str) -> Option<Term> {
        let words = words(name);
        let joined = words.concat();
        (!joined.is_empty()).then_some(Term { words, joined })
    }

    /// Returns whether a word of this name measures something: then a number is sensitive too.
    pub(super) fn measures(&self) -> bool {
        self.words
            .iter()
            .any(|word| MEASURES.contains(&word.as_str()))
    }

    /// Returns whether a name, as a list of words, contains this sensitive name. The last word of
    /// the name may be a plural.
    pub(super) fn is_in(&self, name: &[String]) -> bool {
        let is_last = |end: usize| end == name.len();
        let same = |found: &str, wanted: &str, may_be_plural: bool| {
            found == wanted || (may_be_plural && found.strip_suffix('s') == Some(wanted))
        };
        let apart = name
            .windows(self.words.len())
            .enumerate()
            .any(|(at, window)| {
                let end = at + window.len();
                window
                    .iter()
                    .zip(&self.words)
                    .enumerate()
                    .all(|(index, (found, wanted))| {
                        same(found, wanted, is_last(end) && index + 1 == window.len())
                    })
            });
        apart
            || name.iter().enumerate().any(|(at, word)| {
                let singular = match is_last(at + 1) {
                    true => word.strip_suffix('s').unwrap_or(word),
                    false => word,
                };
                self.joined.len() >= SUFFIX_BYTES_MIN
                    && (word.ends_with(&self.joined) || singular.ends_with(&self.joined))
            })
    }
}

/// Splits a name into lower-case words: at separators, and before an upper-case letter that begins
/// a word. Removes digits from the end of each word.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut chars = name.chars().take(NAME_CHARS_MAX).peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        let next_is_lower = chars.peek().is_some_and(|next| next.is_lowercase());
        let begins = c.is_uppercase()
            && (before.is_lowercase()
                || before.is_ascii_digit()
                || (before.is_uppercase() && next_is_lower));
        if begins || !c.is_alphanumeric() {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c.is_alphanumeric(), words.last_mut()) {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    let trimmed = words.into_iter().map(|word| {
        let end = word.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        // A word of digits alone stays: it is not the end of another word.
        if end == 0 {
            word
        } else {
            word.get(..end).unwrap_or_default().to_owned()
        }
    });
    trimmed.filter(|word| !word.is_empty()).collect()
}

fn trimmed(value: &str) -> &str {
    value.trim_matches(['"', '\'', ' ', ',', ';', ')', '}', ']', '.'])
}

/// Returns whether a value cannot be a secret, because it is true, false or null.
pub(super) fn is_harmless(value: &str) -> bool {
    let value = trimmed(value);
    value == "[redacted"
        || HARMLESS
            .iter()
            .any(|known| value.eq_ignore_ascii_case(known))
}

/// Returns whether a name measures and the value is a number, a date or, after `type` or `kind`, a
/// word.
pub(super) fn is_measured(name: &[String], value: &str) -> bool {
    let value = trimmed(value);
    let measures = |wanted: &[&str]| name.iter().any(|word| wanted.contains(&word.as_str()));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let is_number = value.parse::<f64>().is_ok();
    let is_date =
        value.len() >= 10 && value.get(..4).is_some_and(digits) && value.get(4..5) == Some("-");
    let is_word =
        !value.is_empty() && value.len() <= 20 && value.bytes().all(|b| b.is_ascii_alphabetic());
    (measures(&MEASURES) && (is_number || is_date)) || (measures(&["type", "kind"]) && is_word)
}
