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
        Lane {
            key: format!("{kind}:{id}"),
            blocks: false,
        }
    }

    /// When this instance fails for good, the lane does not go on behind it: it waits until somebody retries it, skips it or
    /// discards it (`durable lanes`, or [`Operate::lane_retry`](crate::Operate::lane_retry) and its like). By default a lane goes
    /// on.
    pub fn block_on_failure(mut self) -> Lane {
        self.blocks = true;
        self
    }

    /// The key, as the row says it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The lane of this tenant: for [`Operate`](crate::Operate) and [`Inspect`](crate::Inspect). What is enqueued says its
    /// tenant itself.
    pub fn of(&self, tenant: impl fmt::Display) -> LaneKey {
        LaneKey::new(&self.key).of(tenant)
    }

    pub(crate) fn blocks(&self) -> bool {
        self.blocks
    }
}

/// Which lane: its key, and the tenant it belongs to. `"server:7".into()`, or `Lane::new("server", 7).of("acme")`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LaneKey {
    tenant: String,
    key: String,
}

impl LaneKey {
    /// By its key, of no tenant.
    pub fn new(key: impl Into<String>) -> LaneKey {
        LaneKey {
            tenant: String::new(),
            key: key.into(),
        }
    }

    /// Of this tenant.
    pub fn of(self, tenant: impl fmt::Display) -> LaneKey {
        LaneKey {
            tenant: tenant.to_string(),
            ..self
        }
    }

    /// The key, as the row says it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The tenant; empty for work without one.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }
}

impl From<&str> for LaneKey {
    fn from(key: &str) -> Self {
        LaneKey::new(key)
    }
}
impl From<&Lane> for LaneKey {
    fn from(lane: &Lane) -> Self {
        LaneKey::new(lane.key())
    }
}
impl From<Lane> for LaneKey {
    fn from(lane: Lane) -> Self {
        LaneKey::new(lane.key)
    }
}

impl fmt::Display for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tenant.as_str() {
            "" => f.write_str(&self.key),
            tenant => write!(f, "{} of {tenant}", self.key),
        }
    }
}
