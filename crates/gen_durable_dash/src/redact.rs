//! Redacts values with a sensitive key, such as `password`, in JSON text and in error texts. All
//! other JSON text, numbers included, stays byte for byte the same.

/// The text that replaces a redacted value.
const REDACTED: &str = "\"[redacted]\"";

/// Defines which values the dashboard redacts: the values with a key that contains one of these
/// words, in upper or lower case.
#[derive(Debug, Clone)]
pub struct Redaction {
    words: Vec<String>,
}

impl Default for Redaction {
    fn default() -> Redaction {
        Redaction::of([
            "password",
            "passwd",
            "secret",
            "token",
            "authorization",
            "api_key",
            "apikey",
            "card",
            "cvv",
            "iban",
        ])
    }
}

impl Redaction {
    /// Returns a redaction of the values with a key that contains one of these words.
    pub fn of<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Redaction {
        Redaction {
            words: words
                .into_iter()
                .map(|word| word.into().to_lowercase())
                .filter(|w| !w.is_empty())
                .collect(),
        }
    }

    /// Returns a redaction that hides no value.
    pub fn none() -> Redaction {
        Redaction { words: Vec::new() }
    }

    fn hides(&self, key: &str) -> bool {
        let key = key.to_lowercase();
        self.words.iter().any(|word| key.contains(word))
    }

    /// Returns JSON text in which the values of sensitive keys, at any depth, are replaced by
    /// `"[redacted]"`.
    pub(crate) fn json(&self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(quote) = rest.find('"') {
            let (before, from) = rest.split_at(quote);
            let string = from.get(..string_end(from)).unwrap_or(from);
            let after = from.get(string.len()..).unwrap_or_default();
            shown.push_str(before);
            shown.push_str(string);
            rest = after;
            // In JSON text, a string before a colon is a key; every other string is a value.
            let value = after.trim_start();
            let Some(value) = value.strip_prefix(':') else {
                continue;
            };
            if self.hides(&serde_json::from_str::<String>(string).unwrap_or_default()) {
                let value = value.trim_start();
                shown.push_str(": ");
                shown.push_str(REDACTED);
                rest = value.get(value_end(value)..).unwrap_or_default();
            }
        }
        shown.push_str(rest);
        shown
    }

    /// Returns an error text in which the redaction has replaced the value after a sensitive word
    /// and a `=` or `:`, up to the next space.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut hide_next = false;
        for piece in text.split_inclusive(char::is_whitespace) {
            let word = piece.trim_end();
            let space = piece.get(word.len()..).unwrap_or_default();
            let at = word.find(['=', ':']);
            let (name, value) = at
                .and_then(|at| word.split_at_checked(at + 1))
                .unwrap_or((word, ""));
            let names = at.is_some() && self.hides(name);
            if hide_next && !word.is_empty() {
                shown.push_str("[redacted]");
                // The credentials in "authorization: Bearer xyz" are two words.
                hide_next =
                    word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic");
            } else if names && !value.is_empty() {
                shown.push_str(name);
                shown.push_str("[redacted]");
            } else {
                shown.push_str(word);
                hide_next = names || (hide_next && word.is_empty());
            }
            shown.push_str(space);
        }
        shown
    }
}

/// Returns the length of the JSON string at the start of `text`, quotation marks included.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of the JSON value at the start of `text`.
fn value_end(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += string_end(text.get(at..).unwrap_or_default());
                if depth == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            b',' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn redaction_replaces_values_of_sensitive_json_keys_at_any_depth_and_nothing_else() {
        let redaction = Redaction::default();
        let text = r#"{"a": [1, 123456789012345678901234567890], "userPassword": "x\"},", "card": {"number": [4, {"deep": "}"}]}, "list": [{"token": 7}, "secret: no key"], "tail": null}"#;
        let shown = redaction.json(text);
        let expected = r#"{"a": [1, 123456789012345678901234567890], "userPassword": "[redacted]", "card": "[redacted]", "list": [{"token": "[redacted]"}, "secret: no key"], "tail": null}"#;
        assert_eq!(shown, expected);
        assert_eq!(redaction.json("\"password\""), "\"password\"");
        assert_eq!(
            redaction.json(r#"{"pass\u0077ord": "x"}"#),
            r#"{"pass\u0077ord": "[redacted]"}"#
        );
        assert_eq!(Redaction::none().json(text), text);
    }

    #[test]
    fn redaction_replaces_the_value_after_a_sensitive_word_in_an_error_text() {
        let redaction = Redaction::default();
        assert_eq!(
            redaction.text("401: token=abc123 was refused"),
            "401: token=[redacted] was refused"
        );
        assert_eq!(
            redaction.text("authorization: Bearer xyz.z ended"),
            "authorization: [redacted] [redacted] ended"
        );
        assert_eq!(redaction.text("card declined"), "card declined");
    }
}
