//! Projection scopes, the runs of a scope, and the events that a projection could not apply.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::json::{id_text, seconds, serialize_with_methods};
use crate::names::names;

/// The kind of a run of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RunKind {
    /// A replay applies events of the log again to the existing rows of the projection.
    Replay,
    /// A rebuild in place deletes the rows of the projection, and applies all events of the log
    /// again.
    Rebuild,
    /// A shadow rebuild applies all events to a second set of rows (a new generation), compares
    /// these rows with the rows of the current generation of the projection, and then lets
    /// readers use the new rows.
    Shadow,
    /// A verification applies all events to a second set of rows (a new generation), compares
    /// these rows with the rows of the current generation of the projection, and reports
    /// whether they are equal.
    Verify,
}

names!(RunKind, "kind of a run", {
    Replay => "replay",
    Rebuild => "rebuild",
    Shadow => "shadow",
    Verify => "verify",
});

/// The status of a run of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RunStatus {
    /// No worker has begun the run.
    Pending,
    /// A worker has begun the run, and the run has not ended.
    Running,
    /// The run has reached its end.
    Done,
    /// The run has ended with an error.
    Failed,
    /// An operator has cancelled the run.
    Cancelled,
}

names!(RunStatus, "status of a run", {
    Pending => "pending",
    Running => "running",
    Done => "done",
    Failed => "failed",
    Cancelled => "cancelled",
});

/// The status of a projection scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ScopeStatus {
    /// Workers apply the events of the log.
    Running,
    /// The next event could not be applied, and a worker tries it again later.
    Retrying,
    /// The next event could not be applied, and no worker tries it again until an operator
    /// retries the projection.
    Halted,
}

names!(ScopeStatus, "status of a projection scope", {
    Running => "running",
    Retrying => "retrying",
    Halted => "halted",
});

/// The state of an event that a projection could not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FailureState {
    /// A worker tries the event again later.
    Retrying,
    /// The scope has halted before the event.
    Halted,
    /// The projection has skipped the event, which waits for a redrive.
    Parked,
    /// The projection has applied the event later.
    Resolved,
}

names!(FailureState, "state of a failure", {
    Retrying => "retrying",
    Halted => "halted",
    Parked => "parked",
    Resolved => "resolved",
});

/// A position in the list of projection scopes: the last scope of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScopeCursor {
    /// The projection of the last scope of the page.
    pub projection: String,
    /// The tenant of the last scope of the page.
    pub tenant: String,
}

/// A position in the list of projection failures: the last failure of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailureCursor {
    /// The scope of the last failure of the page.
    pub scope: ScopeCursor,
    /// The log position of the last failure of the page.
    pub position: i64,
}

/// A scope: one projection over the log of one tenant. `Scope::new("sales").of("acme")`, or
/// `"sales".into()` for the log without a tenant.
#[must_use = "a scope does nothing until it is passed to a call for operators"]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    projection: String,
    tenant: String,
}

impl Scope {
    /// Creates the scope of a projection over the log without a tenant.
    pub fn new(projection: impl Into<String>) -> Scope {
        Scope {
            projection: projection.into(),
            tenant: String::new(),
        }
    }

    /// Sets the tenant of the scope.
    pub fn of(self, tenant: impl fmt::Display) -> Scope {
        Scope {
            tenant: tenant.to_string(),
            ..self
        }
    }

    /// Returns the name of the projection.
    pub fn projection(&self) -> &str {
        &self.projection
    }

    /// Returns the tenant of the scope; empty if the log belongs to no tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }
}

impl From<&str> for Scope {
    fn from(projection: &str) -> Self {
        Scope::new(projection)
    }
}

/// Selects scopes of projections, and their runs and failures: all of them by default, or
/// `ScopeFilter::default().projection("sales").tenant("acme")`.
#[must_use = "a filter does nothing until it is passed to a call that reads"]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeFilter {
    /// Selects only scopes of this projection.
    pub projection: Option<String>,
    /// Selects only scopes of this tenant.
    pub tenant: Option<String>,
    /// The largest number of scopes, runs or failures. On a page of
    /// [`Inspect`](crate::inspect::Inspect), up to 200; 0 means 50. In a list of
    /// [`Projections`](crate::projection::Projections), up to 10,000, which is also the meaning of
    /// 0.
    pub limit: usize,
}

impl ScopeFilter {
    /// Selects only scopes of this projection.
    pub fn projection(self, name: impl Into<String>) -> ScopeFilter {
        ScopeFilter {
            projection: Some(name.into()),
            ..self
        }
    }

    /// Selects only scopes of this tenant.
    pub fn tenant(self, name: impl fmt::Display) -> ScopeFilter {
        ScopeFilter {
            tenant: Some(name.to_string()),
            ..self
        }
    }
}

impl From<Scope> for ScopeFilter {
    /// Selects one scope.
    fn from(scope: Scope) -> Self {
        ScopeFilter {
            projection: Some(scope.projection),
            tenant: Some(scope.tenant),
            limit: 0,
        }
    }
}

/// The condition of a projection scope, from its status, its lag and the versions of the
/// projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ScopeHealth {
    /// The scope has applied all events of its log.
    UpToDate,
    /// Workers apply the events of the log, and some events are left.
    Following,
    /// A rebuild applies events that the scope had applied before.
    Rebuilding,
    /// A newer version of the projection ([`ProjectionInfo::offered`]) waits until a run rebuilds
    /// the rows of the scope.
    AwaitingRebuild,
    /// The next event could not be applied, and a worker tries it again later.
    Retrying,
    /// The next event could not be applied, and the scope waits for an operator.
    Halted,
}

names!(ScopeHealth, "health of a projection scope", {
    UpToDate => "up to date",
    Following => "following",
    Rebuilding => "rebuilding",
    AwaitingRebuild => "waits for a rebuild",
    Retrying => "retrying",
    Halted => "halted",
});

/// The state of a scope: one projection over the log of one tenant. `lag` and `health` are further
/// keys when it serializes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct ProjectionInfo {
    /// The tenant of the projection scope.
    pub tenant: String,
    /// The name of the projection of the scope.
    pub projection: String,
    /// A stable hash of the tenant and the projection of the scope.
    pub partition: i32,
    /// The version of the projection that wrote the rows of the scope.
    pub version: i32,
    /// The newer version of the projection that waits until a run rebuilds the rows of the scope,
    /// and does not write to them before. `None`: no newer version waits.
    pub offered: Option<i32>,
    /// The generation of the projection's rows that readers use.
    pub generation: i32,
    /// The log position of the last event that the projection applied to the rows.
    pub position: i64,
    /// The log position of the last event of the tenant's log.
    pub log_position: i64,
    /// The status of the projection scope.
    pub status: ScopeStatus,
    /// How many attempts to apply the next event of the scope have failed.
    pub attempts: i32,
    /// When a worker tries to apply the next event of the scope again, after a failed attempt.
    pub retry_at: Option<Timestamp>,
    /// The error of the last event that the projection could not apply.
    pub last_error: Option<String>,
    /// The id of the worker that last moved the cursor of the scope.
    pub owner: Option<String>,
    /// The host of the worker in `owner`, if that worker is alive.
    pub host: Option<String>,
    #[allow(missing_docs)]
    pub pid: Option<i32>,
    /// Whether the worker in `owner` still owns the scope.
    pub owned: bool,
    /// The age of the next event that the scope has to apply. `None`: there is no such event.
    #[serde(rename = "lag_seconds", serialize_with = "seconds::optional")]
    pub lag_time: Option<Duration>,
    /// The log position that the cursor of the scope had before a rebuild set it back.
    pub replaying_to: i64,
    /// A running hash of all events that the projection has applied.
    pub applied: i64,
    /// The digest of the projection's rows that a worker computed last.
    pub digest: Option<Digest>,
    /// The log position of the scope when a worker computed the digest of the rows.
    pub digest_position: Option<i64>,
    /// When a worker computed the digest of the projection's rows.
    pub digest_at: Option<Timestamp>,
    /// When a transaction last changed the row of the scope.
    pub updated_at: Timestamp,
    /// Whether a live worker has registered the projection of the scope. If none has, neither the
    /// scope nor any of its runs makes progress.
    pub served: bool,
}

serialize_with_methods!(ProjectionInfo, { lag: i64 = lag, health: ScopeHealth = health });

impl ProjectionInfo {
    /// Returns how many events the cursor of the scope is behind the end of its log.
    pub fn lag(&self) -> i64 {
        (self.log_position - self.position).max(0)
    }

    /// Returns the condition of the scope.
    pub fn health(&self) -> ScopeHealth {
        match (self.offered, self.status) {
            (Some(_), _) => ScopeHealth::AwaitingRebuild,
            (None, ScopeStatus::Retrying) => ScopeHealth::Retrying,
            (None, ScopeStatus::Halted) => ScopeHealth::Halted,
            (None, ScopeStatus::Running) if self.position < self.replaying_to => {
                ScopeHealth::Rebuilding
            }
            (None, ScopeStatus::Running) if self.lag() == 0 => ScopeHealth::UpToDate,
            (None, ScopeStatus::Running) => ScopeHealth::Following,
        }
    }
}

/// A digest of rows: equal rows have equal digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Creates a digest from bytes that the caller has computed.
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }
    /// Returns the bytes of the digest.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Formats the digest in hexadecimal.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Serializes the digest in hexadecimal.
impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An event that a projection could not apply.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)] // The columns of the row, by their names.
pub struct ProjectionFailure {
    pub tenant: String,
    pub projection: String,
    pub position: i64,
    /// The name of the event that the projection could not apply, if the event is still in the log.
    pub event: Option<String>,
    pub attempts: i32,
    /// The state of the event that failed.
    pub state: FailureState,
    pub error: String,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub resolved_at: Option<Timestamp>,
    /// Whether the event is parked, and an operator has asked for a redrive.
    pub redrive: bool,
}

/// A replay, a rebuild or a verification of a projection. `is_over` and `is_equal` are further keys
/// when it serializes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
#[allow(missing_docs)] // The columns of the row, by their names.
pub struct ProjectionRun {
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
    pub tenant: String,
    pub projection: String,
    pub kind: RunKind,
    /// The status of the run.
    pub status: RunStatus,
    pub generation: Option<i32>,
    /// The log position that the run has reached.
    pub position: i64,
    /// The log position at which the run ends.
    pub target: Option<i64>,
    /// The outcome of the run, in words: "equal at position 42: …".
    pub verdict: Option<String>,
    pub error: Option<String>,
    pub requested_by: Option<String>,
    pub inserted_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub owner: Option<String>,
}

serialize_with_methods!(ProjectionRun, { is_over: bool = is_over, is_equal: Option<bool> = is_equal });

impl ProjectionRun {
    /// Returns whether the run has finished.
    pub fn is_over(&self) -> bool {
        self.finished_at.is_some()
    }

    /// Returns whether a verification or a shadow rebuild produced the same rows as the current
    /// generation of the projection. `None`: the run compares nothing, or has not compared the rows
    /// yet.
    pub fn is_equal(&self) -> Option<bool> {
        match self.verdict.as_deref()?.split(' ').next()? {
            "equal" => Some(true),
            "differs" => Some(false),
            _ => None,
        }
    }
}
