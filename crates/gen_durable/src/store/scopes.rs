//! Scopes and their failures, as operators see them.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{connection::Connection, fault::Fault, row::column, sql};

sql!(LIST, "projections.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);
sql!(FAILURES, "failures.sql", [TEXT, TEXT, BOOL, INT4]);

/// How a projection of a tenant does.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProjectionInfo {
    /// Whose.
    pub tenant: String,
    /// The projection's name.
    pub projection: String,
    /// A stable hash of both.
    pub partition: i32,
    /// The version of the code whose rows these are.
    pub version: i32,
    /// A newer version of the code, which leaves these rows alone until they are rebuilt. `None`: there is none.
    pub offered: Option<i32>,
    /// Which rows readers see.
    pub generation: i32,
    /// The last event that is in them.
    pub position: i64,
    /// The last event of the tenant's log.
    pub height: i64,
    /// `running`, `retrying` or `halted`.
    pub status: String,
    /// Failed tries of the next event.
    pub attempts: i32,
    /// When it is tried again.
    pub retry_at: Option<Timestamp>,
    /// Why it failed.
    pub last_error: Option<String>,
    /// The worker that was last at it…
    pub owner: Option<String>,
    /// …on which host and with which process id, if it lives…
    pub host: Option<String>,
    #[allow(missing_docs)]
    pub pid: Option<i32>,
    /// …and whether it is at it now.
    pub owned: bool,
    /// How old the next event is. `None`: there is none.
    pub lag_seconds: Option<f64>,
    /// Up to here it has been before.
    pub replaying_to: i64,
    /// A running hash of all that was applied.
    pub applied: i64,
    /// What its rows came to, when that was last asked for…
    pub digest: Option<Vec<u8>>,
    /// …at this position…
    pub digest_position: Option<i64>,
    /// …then.
    pub digest_at: Option<Timestamp>,
    /// When it last moved.
    pub updated_at: Timestamp,
    /// Whether a live worker has it registered. If not, it stands still, and so does every run of it.
    pub served: bool,
}

impl ProjectionInfo {
    /// How many events it is behind.
    pub fn lag(&self) -> i64 {
        (self.height - self.position).max(0)
    }

    /// In words: `up to date`, `following`, `rebuilding`, `v2 waits for a rebuild`, `retrying` or `halted`.
    pub fn health(&self) -> String {
        match (self.offered, self.status.as_str()) {
            (Some(version), _) => format!("v{version} waits for a rebuild"),
            (None, "running") if self.position < self.replaying_to => "rebuilding".into(),
            (None, "running") if self.lag() == 0 => "up to date".into(),
            (None, "running") => "following".into(),
            (None, other) => other.to_owned(),
        }
    }
}

/// Scopes, in the order of tenant and projection, after this one.
pub(crate) async fn list(
    connection: &Connection,
    tenant: Option<&str>,
    projection: Option<&str>,
    after: Option<(&str, &str)>,
    limit: i32,
) -> Result<Vec<ProjectionInfo>, Fault> {
    let (after_tenant, after_projection) = after.unzip();
    let rows = connection
        .query(
            &LIST,
            &[
                &tenant,
                &projection,
                &after_tenant,
                &after_projection,
                &limit,
            ],
        )
        .await?;
    rows.iter().map(info).collect()
}

/// A scope, as both lists answer it.
pub(super) fn info(row: &Row) -> Result<ProjectionInfo, Fault> {
    Ok(ProjectionInfo {
        tenant: column(row, 0)?,
        projection: column(row, 1)?,
        partition: column(row, 2)?,
        version: column(row, 3)?,
        generation: column(row, 4)?,
        position: column(row, 5)?,
        height: column(row, 6)?,
        status: column(row, 7)?,
        attempts: column(row, 8)?,
        retry_at: column(row, 9)?,
        last_error: column(row, 10)?,
        owner: column(row, 11)?,
        host: column(row, 12)?,
        pid: column(row, 13)?,
        owned: column(row, 14)?,
        lag_seconds: column(row, 15)?,
        replaying_to: column(row, 16)?,
        applied: column(row, 17)?,
        digest: column(row, 18)?,
        digest_position: column(row, 19)?,
        digest_at: column(row, 20)?,
        updated_at: column(row, 21)?,
        served: column(row, 22)?,
        offered: column(row, 23)?,
    })
}

/// An event that a projection could not apply.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // The columns of the row, by their names.
pub struct ProjectionFailure {
    pub tenant: String,
    pub projection: String,
    pub position: i64,
    /// The event's name, if it is still in the log.
    pub event: Option<String>,
    pub attempts: i32,
    /// `retrying`, `halted`, `parked` or `resolved`.
    pub state: String,
    pub error: String,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub resolved_at: Option<Timestamp>,
    /// Whether it is parked, and somebody has asked that it be tried again.
    pub redrive: bool,
}

pub(crate) async fn failures(
    connection: &Connection,
    tenant: Option<&str>,
    projection: Option<&str>,
    resolved: bool,
    limit: i32,
) -> Result<Vec<ProjectionFailure>, Fault> {
    let rows = connection
        .query(&FAILURES, &[&tenant, &projection, &resolved, &limit])
        .await?;
    rows.iter().map(failure).collect()
}

/// A failure, as both lists answer it.
pub(super) fn failure(row: &Row) -> Result<ProjectionFailure, Fault> {
    Ok(ProjectionFailure {
        tenant: column(row, 0)?,
        projection: column(row, 1)?,
        position: column(row, 2)?,
        attempts: column(row, 3)?,
        state: column(row, 4)?,
        error: column(row, 5)?,
        first_at: column(row, 6)?,
        last_at: column(row, 7)?,
        resolved_at: column(row, 8)?,
        event: column(row, 9)?,
        redrive: column(row, 10)?,
    })
}
