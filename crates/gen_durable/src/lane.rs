//! Lanes: a lane runs one whole instance at a time, in the order of enqueueing.

use std::fmt;

/// A lane runs its instances one after the other, strictly first in, first out. An instance that
/// the engine retries keeps its lane position, and all instances behind it wait. Different machines
/// may share a lane; lanes do not wait for one another.
///
/// ```
/// use gen_durable::Lane;
///
/// let server = Lane::new("server", 7);
/// assert_eq!(server.key(), "server:7");
/// ```
#[must_use = "a lane does nothing until it is passed to an enqueue or a call for operators"]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    key: String,
    blocks: bool,
}

impl Lane {
    /// Creates the lane of one object of a kind: the key is `kind:id`.
    pub fn new(kind: &'static str, id: impl fmt::Display) -> Lane {
        Lane {
            key: format!("{kind}:{id}"),
            blocks: false,
        }
    }

    /// Blocks the lane if this instance fails: the instances behind it wait until an operator
    /// retries, skips or cancels the failed instance (`durable lanes`, or
    /// [`Operate::lane_retry`](crate::operate::Operate::lane_retry) and similar calls). By default
    /// the next instance runs.
    pub fn block_on_failure(mut self) -> Lane {
        self.blocks = true;
        self
    }

    /// Returns the key of the lane, as rows of `lanes` store it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns this lane of a tenant, for [`Operate`](crate::operate::Operate) and
    /// [`Inspect`](crate::inspect::Inspect). An enqueue does not need this call: it uses the tenant
    /// of the new instance.
    pub fn of(&self, tenant: impl fmt::Display) -> LaneKey {
        LaneKey::new(&self.key).of(tenant)
    }

    pub(crate) fn blocks(&self) -> bool {
        self.blocks
    }
}

/// A lane of a tenant: the key of the lane and the tenant. `"server:7".into()`, or
/// `Lane::new("server", 7).of("acme")`.
#[must_use = "a lane key does nothing until it is passed to a call for operators"]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LaneKey {
    tenant: String,
    key: String,
}

impl LaneKey {
    /// Creates a lane key without a tenant.
    pub fn new(key: impl Into<String>) -> LaneKey {
        LaneKey {
            tenant: String::new(),
            key: key.into(),
        }
    }

    /// Sets the tenant of the lane.
    pub fn of(self, tenant: impl fmt::Display) -> LaneKey {
        LaneKey {
            tenant: tenant.to_string(),
            ..self
        }
    }

    /// Returns the key of the lane, as rows of `lanes` store it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the tenant of the lane; empty if the lane belongs to no tenant.
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
