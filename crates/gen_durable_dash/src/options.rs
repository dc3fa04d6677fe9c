//! Options of a dashboard.

use crate::redact::Redaction;

/// Options of a dashboard: `Options::new().hosts(["ops.example.com"])`.
#[derive(Debug, Clone)]
#[must_use]
pub struct Options {
    /// Host names that the dashboard accepts in requests. The dashboard always accepts IP addresses
    /// and `localhost`: a DNS rebinding attack needs a domain name, so a request that names an IP
    /// address cannot be part of such an attack.
    pub(crate) hosts: Vec<String>,
    pub(crate) redaction: Redaction,
    /// Whether callers with the reader role see states, results and payloads.
    pub(crate) readers_see_payloads: bool,
    /// Whether callers with the reader role see keys of instances, lanes and partitions.
    pub(crate) keys_hidden_from_readers: bool,
    /// Whether the session cookie has the `Secure` attribute (sent over TLS only).
    pub(crate) secure_cookies: bool,
    /// The title in the corner of every page of the dashboard.
    pub(crate) title: String,
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

impl Options {
    /// Returns the default options: no extra host names, the default redaction, payloads hidden
    /// from callers with the reader role, and cookies without `Secure`.
    pub fn new() -> Options {
        Options {
            hosts: Vec::new(),
            redaction: Redaction::default(),
            readers_see_payloads: false,
            keys_hidden_from_readers: false,
            secure_cookies: false,
            title: "gen_durable".to_owned(),
        }
    }

    /// Sets the host names, without a port, under which browsers reach the dashboard. The dashboard
    /// rejects requests with any other host name.
    pub fn hosts<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Options {
        self.hosts = names
            .into_iter()
            .map(|name| name.into().to_ascii_lowercase())
            .collect();
        self
    }

    /// Sets which values the dashboard redacts in states, results, payloads and error texts.
    pub fn redaction(mut self, redaction: Redaction) -> Options {
        self.redaction = redaction;
        self
    }

    /// Shows states, results and payloads not only to operators, but to callers with the reader
    /// role too. Redacted values stay hidden from all callers.
    pub fn readers_see_payloads(mut self) -> Options {
        self.readers_see_payloads = true;
        self
    }

    /// Hides the keys of instances, lanes and partitions and the dedup keys of signals from callers
    /// with the reader role. Use it if keys contain personal data, such as mail addresses. These
    /// callers can then neither search by key nor list lanes and partition keys.
    pub fn hide_keys_from_readers(mut self) -> Options {
        self.keys_hidden_from_readers = true;
        self
    }

    /// Declares that browsers reach the dashboard over TLS. The session cookie then has the
    /// `Secure` attribute and the prefix `__Host-`, so that no other host can set it.
    pub fn secure_cookies(mut self) -> Options {
        self.secure_cookies = true;
        self
    }

    /// Sets the title that the pages of the dashboard show, so that users can distinguish several
    /// installations.
    pub fn title(mut self, title: impl Into<String>) -> Options {
        self.title = title.into();
        self
    }
}
