//! Redacts JSON text: values of sensitive keys, the second of a pair such as
//! `["authorization", "…"]`, the value of an object such as `{"name": "PASSWORD", "value": "…"}`,
//! and sensitive parts of strings.

use super::{REDACTED, Redaction, text};

/// The redaction replaces values that are nested more deeply.
const DEPTH_MAX: usize = 128;
/// Keys under which an object names a value, and keys under which it contains that value.
const NAME_KEYS: [&str; 8] = [
    "name",
    "key",
    "header",
    "field",
    "param",
    "parameter",
    "k",
    "variable",
];
const VALUE_KEYS: [&str; 6] = ["value", "val", "values", "v", "content", "data"];

/// Returns JSON text with sensitive values replaced by `"[redacted]"`. Text that is not JSON is
/// redacted as an error text.
pub(super) fn redact(redaction: &Redaction, json: &str) -> String {
    redact_nested(redaction, json, 0)
}

/// Redacts JSON text that is part of a text at this depth.
pub(super) fn redact_nested(redaction: &Redaction, json: &str, depth: usize) -> String {
    let mut reader = Reader {
        redaction,
        json,
        at: 0,
        shown: String::with_capacity(json.len()),
    };
    reader.space();
    reader.value(depth);
    reader.copy(json.len());
    reader.shown
}

struct Reader<'a> {
    redaction: &'a Redaction,
    json: &'a str,
    at: usize,
    shown: String,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        self.json.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.json.as_bytes().get(self.at).copied()
    }

    /// Copies the text up to `end`.
    fn copy(&mut self, end: usize) {
        self.shown
            .push_str(self.json.get(self.at..end).unwrap_or_default());
        self.at = end.max(self.at);
    }

    fn space(&mut self) {
        let rest = self.rest();
        let end = self.at + (rest.len() - rest.trim_start().len());
        self.copy(end);
    }

    /// Replaces the value that begins here.
    fn hide(&mut self) {
        self.at += value_end(self.rest());
        self.shown.push('"');
        self.shown.push_str(REDACTED);
        self.shown.push('"');
    }

    fn value(&mut self, depth: usize) {
        match self.peek() {
            Some(b'{' | b'[') if depth >= DEPTH_MAX => self.hide(),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string(depth),
            _ => {
                let end = self.at + value_end(self.rest());
                self.copy(end);
            }
        }
    }

    fn string(&mut self, depth: usize) {
        let end = string_end(self.rest());
        let string = self.rest().get(..end).unwrap_or_default();
        let plain = serde_json::from_str::<String>(string).unwrap_or_default();
        let redacted = text::redact(self.redaction, &plain, depth + 1);
        if redacted == plain {
            return self.copy(self.at + end);
        }
        self.shown
            .push_str(&serde_json::Value::String(redacted).to_string());
        self.at += end;
    }

    /// Copies an object. If one of its values is the name of a sensitive value, hides the values of
    /// that object.
    fn object(&mut self, depth: usize) {
        let names_secret = self.names_secret();
        self.copy(self.at + 1);
        loop {
            self.space();
            match self.peek() {
                Some(b'"') => {
                    let end = string_end(self.rest());
                    let key = self.rest().get(..end).unwrap_or_default();
                    let key = serde_json::from_str::<String>(key).unwrap_or_default();
                    self.copy(self.at + end);
                    self.space();
                    if self.peek() == Some(b':') {
                        self.copy(self.at + 1);
                        self.space();
                    }
                    let value = self.rest();
                    let value = value.get(..value_end(value)).unwrap_or(value);
                    let is_named = names_secret && has(&VALUE_KEYS, &key);
                    if self.redaction.hides(&key, value)
                        || (is_named && !value.is_empty() && value != "null")
                    {
                        self.hide();
                    } else {
                        self.value(depth + 1);
                    }
                }
                Some(b'}') => return self.copy(self.at + 1),
                Some(_) => self.copy(self.at + self.rest().ceil_char_boundary(1)),
                None => return,
            }
        }
    }

    /// Returns whether the object that begins here has a key such as `name`, and that key has the
    /// name of a sensitive value.
    fn names_secret(&self) -> bool {
        let object = self.rest();
        let mut rest = object.get(1..).unwrap_or_default();
        loop {
            rest = rest.trim_start_matches([' ', '\n', '\t', '\r', ',']);
            if !rest.starts_with('"') {
                return false;
            }
            let (key, after) = rest
                .split_at_checked(string_end(rest))
                .unwrap_or((rest, ""));
            let value = after.trim_start().trim_start_matches(':').trim_start();
            let (value, after) = value
                .split_at_checked(value_end(value))
                .unwrap_or((value, ""));
            let key = serde_json::from_str::<String>(key).unwrap_or_default();
            let name = serde_json::from_str::<String>(value).unwrap_or_default();
            if has(&NAME_KEYS, &key) && !name.is_empty() && self.redaction.hides(&name, "x") {
                return true;
            }
            rest = after;
        }
    }

    fn array(&mut self, depth: usize) {
        let is_pair = self.is_secret_pair();
        self.copy(self.at + 1);
        let mut index = 0;
        loop {
            self.space();
            match self.peek() {
                Some(b']') => return self.copy(self.at + 1),
                Some(b',') => {
                    self.copy(self.at + 1);
                    index += 1;
                }
                Some(_) if is_pair && index == 1 => self.hide(),
                Some(_) => {
                    let before = self.at;
                    self.value(depth + 1);
                    if self.at == before {
                        self.copy(self.at + self.rest().ceil_char_boundary(1));
                    }
                }
                None => return,
            }
        }
    }

    /// Returns whether the array that begins here has two elements, and the first is the name of a
    /// sensitive value.
    fn is_secret_pair(&self) -> bool {
        let first = self.rest().get(1..).unwrap_or_default().trim_start();
        if !first.starts_with('"') {
            return false;
        }
        let (name, after) = first
            .split_at_checked(string_end(first))
            .unwrap_or((first, ""));
        let Some(second) = after.trim_start().strip_prefix(',') else {
            return false;
        };
        let second = second.trim_start();
        let (value, after) = second
            .split_at_checked(value_end(second))
            .unwrap_or((second, ""));
        let name = serde_json::from_str::<String>(name).unwrap_or_default();
        after.trim_start().starts_with(']') && self.redaction.hides(&name, value)
    }
}

fn has(known: &[&str], key: &str) -> bool {
    known.iter().any(|known| key.eq_ignore_ascii_case(known))
}

/// Returns the length of the JSON string at the start of `text`, quotation marks included.
pub(super) fn string_end(text: &str) -> usize {
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
pub(super) fn value_end(text: &str) -> usize {
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
