//! Redacts sensitive values, such as passwords, in JSON text and in error texts. The redaction
//! reads the structure of a text: JSON at any depth and inside of strings, URLs, connection
//! strings, headers, and pairs of a name and a value. All other text, numbers included, stays byte
//! for byte the same.

mod json;
mod names;
mod text;
mod url;

use names::Term;

/// The text that replaces a redacted value.
const REDACTED: &str = "[redacted]";

/// The names of the default redaction, as words separated by spaces.
const DEFAULT_NAMES: [&str; 48] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "pass",
    "secret",
    "token",
    "jwt",
    "bearer",
    "authorization",
    "auth",
    "credential",
    "cookie",
    "session",
    "api key",
    "access key",
    "private key",
    "secret key",
    "signing key",
    "encryption key",
    "ssh key",
    "account key",
    "master key",
    "auth key",
    "license key",
    "dsn",
    "connection string",
    "database url",
    "otp",
    "totp",
    "pin",
    "card",
    "pan",
    "cvv",
    "cvc",
    "csc",
    "iban",
    "ssn",
    "social security",
    "tax id",
    "passport",
    "account number",
    "routing number",
    "sort code",
    "security code",
    "csrf",
    "xsrf",
];

/// Defines which values the dashboard redacts: the values with a name that contains one
/// of these names.
///
/// Names are compared word by word, regardless of case and separators: `api key` is found in
/// `X-API-Key`, `apiKey` and `my_api_keys`, and `card` is found in `card_number`, but not in
/// `cardinality`. A name that only measures, such as `tokens_used` or `token_expires_at`, hides
/// neither a number nor a date. The values true, false and null are never hidden.
#[derive(Debug, Clone)]
pub struct Redaction {
    terms: Vec<Term>,
}

impl Default for Redaction {
    fn default() -> Redaction {
        Redaction::of(DEFAULT_NAMES)
    }
}

impl Redaction {
    /// Returns a redaction of the values with a name that contains one of these names.
    pub fn of<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Redaction {
        Redaction {
            terms: names
                .into_iter()
                .filter_map(|name| Term::new(&name.into()))
                .collect(),
        }
    }

    /// Adds further names to this redaction: `Redaction::default().and(["customer number"])`.
    #[must_use]
    pub fn and<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Redaction {
        self.terms.extend(Redaction::of(names).terms);
        self
    }

    /// Returns a redaction that hides no value.
    pub fn none() -> Redaction {
        Redaction { terms: Vec::new() }
    }

    fn is_none(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns whether a value with this name is sensitive.
    fn hides(&self, name: &str, value: &str) -> bool {
        let words = names::words(name);
        let is_measured = names::is_measured(&words, value);
        !names::is_harmless(value)
            && self
                .terms
                .iter()
                .any(|term| term.is_in(&words) && (!is_measured || term.measures()))
    }

    /// Returns JSON text in which sensitive values, at any depth, are replaced by `"[redacted]"`.
    pub(crate) fn json(&self, text: &str) -> String {
        if self.is_none() {
            return text.to_owned();
        }
        json::redact(self, text)
    }

    /// Returns an error text in which sensitive values are replaced by `[redacted]`.
    pub(crate) fn text(&self, text: &str) -> String {
        if self.is_none() {
            return text.to_owned();
        }
        text::redact(self, text, 0)
    }
}

#[cfg(test)]
mod tests;
