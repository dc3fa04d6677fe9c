//! How a dashboard is set up.

use crate::redact::Redaction;

/// What a host may decide: `Options::new().hosts(["ops.example.com"])`.
#[derive(Debug, Clone)]
#[must_use]
pub struct Options {
    /// Names by which it may be asked for. An address in numbers and `localhost` always may: an attacker who turns a name of
    /// his to this address needs a name.
    pub(crate) hosts: Vec<String>,
    pub(crate) redaction: Redaction,
    /// Whether who may only look sees what instances carry.
    pub(crate) readers_see_payloads: bool,
    /// Whether the session's cookie is for TLS only.
    pub(crate) secure_cookies: bool,
    /// What it calls itself in the corner.
    pub(crate) title: String,
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

impl Options {
    /// As it should be for most.
    pub fn new() -> Options {
        Options {
            hosts: Vec::new(),
            redaction: Redaction::default(),
            readers_see_payloads: false,
            secure_cookies: false,
            title: "gen_durable".to_owned(),
        }
    }

    /// Names by which it is reached, without a port. Requests for any other name are refused.
    pub fn hosts<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Options {
        self.hosts = names
            .into_iter()
            .map(|name| name.into().to_ascii_lowercase())
            .collect();
        self
    }

    /// Which values are blacked out.
    pub fn redaction(mut self, redaction: Redaction) -> Options {
        self.redaction = redaction;
        self
    }

    /// Let those who may only look see states, results and payloads as well (what is blacked out, nobody sees).
    pub fn readers_see_payloads(mut self) -> Options {
        self.readers_see_payloads = true;
        self
    }

    /// Say that it is served over TLS: the session's cookie then goes nowhere else.
    pub fn secure_cookies(mut self) -> Options {
        self.secure_cookies = true;
        self
    }

    /// A name to show, to tell one installation from another.
    pub fn title(mut self, title: impl Into<String>) -> Options {
        self.title = title.into();
        self
    }
}
