//! Redacts error texts: JSON and URLs inside of the text, pairs of a name and a value in the forms
//! `name=value`, `name: value`, `name = "value"` and `name is value`, header lines, credentials
//! after `Bearer` or `Basic`, JSON web tokens and private keys.

use serde::de::IgnoredAny;

use super::{REDACTED, Redaction, json, names, url};

/// JSON inside of a text is read as JSON up to this depth, and as text below it.
const DEPTH_MAX: usize = 128;
/// The redaction tries at most this often to read JSON inside of a text, so that a text of many
/// brackets costs a bounded time.
const JSON_TRIES_MAX: usize = 32;
/// A name in a text has at most this many words: `card number: …`.
const NAME_WORDS_MAX: usize = 3;
/// The user and the password of a connection string have at most this length.
const DSN_BYTES_MAX: usize = 300;
/// Schemes of the header `Authorization` that are followed by one word.
const SCHEMES: [&str; 7] = [
    "bearer",
    "basic",
    "token",
    "negotiate",
    "ntlm",
    "apikey",
    "jwt",
];
/// Words after `password:` or `token is` that describe a state and are no secret.
const STATES: [&str; 78] = [
    "a",
    "an",
    "the",
    "no",
    "not",
    "too",
    "in",
    "of",
    "for",
    "from",
    "on",
    "by",
    "with",
    "and",
    "or",
    "is",
    "was",
    "are",
    "be",
    "been",
    "being",
    "has",
    "have",
    "had",
    "must",
    "may",
    "should",
    "cannot",
    "can",
    "could",
    "does",
    "did",
    "do",
    "will",
    "would",
    "already",
    "still",
    "only",
    "now",
    "never",
    "invalid",
    "valid",
    "expired",
    "missing",
    "required",
    "wrong",
    "incorrect",
    "unknown",
    "empty",
    "unset",
    "set",
    "closed",
    "open",
    "revoked",
    "rejected",
    "refused",
    "denied",
    "declined",
    "blocked",
    "accepted",
    "malformed",
    "absent",
    "present",
    "unavailable",
    "available",
    "disabled",
    "enabled",
    "failed",
    "failure",
    "error",
    "timeout",
    "rotated",
    "reset",
    "changed",
    "unsupported",
    "exceeded",
    "redacted",
    "hidden",
];

/// Returns a text with its sensitive values replaced by `[redacted]`.
pub(super) fn redact(redaction: &Redaction, text: &str, depth: usize) -> String {
    let mut reader = Reader {
        redaction,
        text,
        at: 0,
        depth,
        tries: 0,
        shown: String::with_capacity(text.len()),
    };
    while reader.at < text.len() {
        reader.step();
    }
    reader.shown
}

struct Reader<'a> {
    redaction: &'a Redaction,
    text: &'a str,
    at: usize,
    depth: usize,
    tries: usize,
    shown: String,
}

/// A sensitive value in a text: the part before it that stays, and the length of the value.
struct Found {
    kept: usize,
    hidden: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn copy(&mut self, bytes: usize) {
        self.shown
            .push_str(self.rest().get(..bytes).unwrap_or_default());
        self.at += bytes;
    }

    fn hide(&mut self, bytes: usize) {
        self.shown.push_str(REDACTED);
        self.at += bytes;
    }

    /// Reads the next part of the text.
    fn step(&mut self) {
        let rest = self.rest();
        if let Some(end) = self.json_end() {
            let inside = rest.get(..end).unwrap_or_default();
            self.shown
                .push_str(&json::redact_nested(self.redaction, inside, self.depth + 1));
            self.at += end;
            return;
        }
        if let Some(found) = private_key(rest) {
            self.copy(found.kept);
            return self.hide(found.hidden);
        }
        let word = run(rest, is_name_char);
        if word == 0 {
            // A quotation mark may begin a quoted name.
            if rest.starts_with(['"', '\'', '\\'])
                && let Some(found) = self.pair(rest)
            {
                self.copy(found.kept);
                return self.hide(found.hidden);
            }
            return self.copy(rest.ceil_char_boundary(1));
        }
        if let Some(end) = url::length(rest) {
            let shown = url::redact(
                self.redaction,
                rest.get(..end).unwrap_or_default(),
                self.depth,
            );
            self.shown.push_str(&shown);
            self.at += end;
            return;
        }
        if let Some(found) = web_token(rest)
            .or_else(|| credentials(rest))
            .or_else(|| go_dsn(rest))
            .or_else(|| self.pair(rest))
        {
            self.copy(found.kept);
            return self.hide(found.hidden);
        }
        self.copy(word);
    }

    /// Returns the end of the JSON object or array that begins here.
    fn json_end(&mut self) -> Option<usize> {
        let rest = self.rest();
        if !rest.starts_with(['{', '[']) || self.depth >= DEPTH_MAX || self.tries >= JSON_TRIES_MAX
        {
            return None;
        }
        self.tries += 1;
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        values.next()?.ok()?;
        Some(values.byte_offset())
    }

    /// Returns the value of a sensitive name that begins here, of one to three words.
    fn pair(&self, rest: &str) -> Option<Found> {
        let mut end = 0;
        for _ in 0..NAME_WORDS_MAX {
            end += quotes(rest.get(end..)?);
            let word = run(rest.get(end..)?, is_name_char);
            if word == 0 {
                return None;
            }
            end += word;
            let name = rest.get(..end)?;
            let after = rest.get(end..)?;
            let closing = quotes(after);
            if let Some((separator, is_prose)) = separator(after.get(closing..)?) {
                let kept = end + closing + separator;
                return self.value(name, rest.get(kept..)?, is_prose, kept);
            }
            // The next word of the name follows a single space.
            if closing > 0 || !after.starts_with(' ') {
                return None;
            }
            end += 1;
        }
        None
    }

    /// Returns the value at the start of `rest` if it is sensitive.
    fn value(&self, name: &str, rest: &str, is_prose: bool, kept: usize) -> Option<Found> {
        let found = |skipped: usize, hidden: usize| {
            Some(Found {
                kept: kept + skipped,
                hidden,
            })
        };
        // Checks the name first: the length of a value costs a scan of the text.
        if !self.redaction.hides(name, "x") || is_position(name, rest, is_prose) {
            return None;
        }
        let quote = quotes(rest);
        if quote > 0 {
            let mark = rest.get(..quote)?;
            let inside = rest.get(quote..)?;
            let hidden = closing(inside, mark);
            let value = inside.get(..hidden)?;
            return if self.redaction.hides(name, value) {
                found(quote, hidden)
            } else {
                None
            };
        }
        let hidden = value_length(rest);
        let value = rest.get(..hidden)?;
        if hidden == 0 || !self.redaction.hides(name, value) {
            return None;
        }
        let hidden = match is_prose {
            true => value.trim_end_matches(['.', '!']).len(),
            false => hidden,
        };
        let plain = value.trim_end_matches(['.', ',', ';', ')', ':', '!']);
        if is_prose && STATES.iter().any(|state| plain.eq_ignore_ascii_case(state)) {
            return None;
        }
        let words = names::words(name);
        let is = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
        let scheme = SCHEMES
            .iter()
            .any(|scheme| value.eq_ignore_ascii_case(scheme));
        let hidden = if scheme {
            // The credentials in "authorization: Bearer xyz" are two words.
            let space = run(rest.get(hidden..)?, |c| c == ' ');
            hidden + space + value_length(rest.get(hidden + space..)?)
        } else if is(&["authorization", "cookie", "cookies"]) {
            rest.find(['\n', '\r']).unwrap_or(rest.len())
        } else if is(&["card", "pan", "iban", "account"]) {
            hidden + groups(rest.get(hidden..)?)
        } else {
            hidden
        };
        found(0, hidden)
    }
}

/// Returns whether a pair is a position in a file: `src/token.rs:7:3`.
fn is_position(name: &str, value: &str, is_prose: bool) -> bool {
    !is_prose && name.contains('.') && value.starts_with(|c: char| c.is_ascii_digit())
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$')
}

/// Returns the length of the characters at the start of `text` that fulfil a condition.
fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is(c)).unwrap_or(text.len())
}

/// Returns the length of a quotation mark at the start of `text`, with the backslashes that escape
/// it.
fn quotes(text: &str) -> usize {
    let escapes = run(text, |c| c == '\\');
    match text
        .get(escapes..)
        .is_some_and(|rest| rest.starts_with(['"', '\'', '`']))
    {
        true => escapes + 1,
        false => 0,
    }
}

/// Returns the length of the text before the closing quotation mark, or of the whole text.
fn closing(inside: &str, mark: &str) -> usize {
    let mut from = 0;
    while let Some(at) = inside.get(from..).and_then(|rest| rest.find(mark)) {
        let at = from + at;
        let is_escaped = mark.len() == 1
            && inside
                .get(..at)
                .is_some_and(|before| before.ends_with('\\'));
        if !is_escaped {
            return at;
        }
        from = at + mark.len();
    }
    inside.len()
}

/// Returns the length of a separator between a name and its value, with the spaces around it, and
/// whether prose uses this separator.
fn separator(text: &str) -> Option<(usize, bool)> {
    let space = run(text, |c| matches!(c, ' ' | '\t'));
    let sign = text.get(space..)?;
    for verb in ["is ", "was "] {
        if space > 0
            && sign
                .get(..verb.len())
                .is_some_and(|word| word.eq_ignore_ascii_case(verb))
        {
            let end = space + verb.len();
            return Some((end + run(text.get(end..)?, |c| c == ' '), true));
        }
    }
    let length = ["==", "=>", ":=", "=", ":"]
        .iter()
        .find(|known| sign.starts_with(**known))?
        .len();
    // `token::Error` is a path.
    if sign.starts_with("::") {
        return None;
    }
    let end = space + length;
    let after = run(text.get(end..)?, |c| matches!(c, ' ' | '\t'));
    Some((end + after, sign.starts_with(':') && after > 0))
}

/// Returns the length of the value at the start of `text`: up to white space, a further pair, or a
/// closing bracket at the end of the word.
fn value_length(text: &str) -> usize {
    if text.starts_with(['{', '[']) {
        return json::value_end(text).max(1);
    }
    let word = run(text, |c| !c.is_whitespace());
    let value = text.get(..word).unwrap_or_default();
    // `Some("a b")`: the value ends at the closing parenthesis.
    if let Some(open) = value.find('(')
        && value
            .get(..open)
            .is_some_and(|name| name.chars().all(char::is_alphanumeric))
    {
        return text.find(')').map_or(text.len(), |close| close + 1);
    }
    for (at, separator) in value.match_indices(['&', ';', ',']) {
        let after = value.get(at + separator.len()..).unwrap_or_default();
        let next = quotes(after);
        let name = run(after.get(next..).unwrap_or_default(), is_name_char);
        let sign = after
            .get(next + name..)
            .unwrap_or_default()
            .trim_start_matches(['"', '\'', '\\']);
        if name > 0 && sign.starts_with(['=', ':']) {
            return at;
        }
    }
    value
        .trim_end_matches([',', ';', ')', ']', '}', '"', '\'', '>'])
        .len()
        .max(usize::from(!value.is_empty()))
}

/// Returns the length of further groups of digits and capital letters: `4111 1111 1111 1111`.
fn groups(text: &str) -> usize {
    let mut end = 0;
    while let Some(rest) = text.get(end..).and_then(|rest| rest.strip_prefix(' ')) {
        let group = run(rest, |c| c.is_ascii_digit() || c.is_ascii_uppercase());
        if group < 2
            || !rest
                .get(..group)
                .is_some_and(|group| group.bytes().any(|b| b.is_ascii_digit()))
        {
            break;
        }
        end += 1 + group;
    }
    end
}

/// Returns the credentials after `Bearer` or `Basic`.
fn credentials(rest: &str) -> Option<Found> {
    let word = run(rest, is_name_char);
    let scheme = rest.get(..word)?;
    let after = rest.get(word..)?.strip_prefix(' ')?;
    let is_scheme = scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("basic");
    let value = value_length(after);
    let is_plain = after.get(..value)?.chars().all(|c| c.is_ascii_lowercase());
    let is_pair = after.get(..value)?.trim_end_matches('=').contains('=');
    (is_scheme && value >= 8 && !is_plain && !is_pair).then_some(Found {
        kept: word + 1,
        hidden: value,
    })
}

/// Returns a JSON web token: three parts in base64, the first of which begins with `{"`.
fn web_token(rest: &str) -> Option<Found> {
    let word = run(rest, is_name_char);
    let token = rest.get(..word)?;
    let is_token = token.starts_with("eyJ") && token.matches('.').count() == 2 && token.len() > 20;
    is_token.then_some(Found {
        kept: 0,
        hidden: word,
    })
}

/// Returns the password of a connection string of the form `user:password@tcp(host)/database`.
fn go_dsn(rest: &str) -> Option<Found> {
    let near = rest.get(..rest.floor_char_boundary(DSN_BYTES_MAX))?;
    let word = near.get(..run(near, |c| !c.is_whitespace()))?;
    let at = word.find("@tcp(").or_else(|| word.find("@unix("))?;
    let colon = word.get(..at)?.find(':')?;
    Some(Found {
        kept: colon + 1,
        hidden: at - colon - 1,
    })
}

/// Returns a private key in the PEM format.
fn private_key(rest: &str) -> Option<Found> {
    let label = rest.strip_prefix("-----BEGIN ")?;
    let label = label.get(..label.find("-----")?)?;
    if !label.ends_with("PRIVATE KEY") {
        return None;
    }
    let kept = "-----BEGIN ".len() + label.len() + "-----".len();
    let hidden = rest
        .get(kept..)?
        .find("-----END")
        .unwrap_or(rest.len() - kept);
    Some(Found { kept, hidden })
}
