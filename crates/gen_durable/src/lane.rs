//! A lane: one whole instance at a time, in order of enqueueing.

use std::fmt;

/// A serialised lane: its instances run one after the other, strictly first in, first out. One that is tried again keeps
/// its place, and everything behind it waits. Different machines may share a lane; lanes do not wait for one another.
///
/// ```
/// use gen_durable::Lane;
///
/// let server = Lane::new("server", 7);
/// assert_eq!(server.key(), "server:7");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    key: String,
    blocks: bool,
}

impl Lane {
    /// The lane of one thing of some kind.
    pub fn new(kind: &'static str, id: impl fmt::Display) -> Lane {
        Lane { key: format!("{kind}:{id}"), blocks: false }
    }

    /// When this instance fails for good, the lane does not go on behind it: it waits until somebody retries it, skips it or
    /// discards it (`durable lanes`). By default a lane goes on.
    pub fn block_on_failure(mut self) -> Lane {
        self.blocks = true;
        self
    }

    /// The key, as the row says it.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn blocks(&self) -> bool {
        self.blocks
    }
}
