//! Queries about projection scopes and their failures, for operators.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{connection::Connection, fault::Fault, row::column, sql};

sql!(LIST, "projections.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);
sql!(FAILURES, "failures.sql", [TEXT, TEXT, BOOL, INT4]);

/// The state of a scope: one projection over the log of one tenant.
#[derive(Debug, Clone, PartialEq)]
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
    /// The status of the projection scope: `running`, `retrying` or `halted`.
    pub status: String,
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
    pub lag_seconds: Option<f64>,
    /// The log position that the cursor of the scope had before a rebuild set it back.
    pub replaying_to: i64,
    /// A running hash of all events that the projection has applied.
    pub applied: i64,
    /// The digest of the projection's rows that a worker computed last.
    pub digest: Option<Vec<u8>>,
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

impl ProjectionInfo {
    /// Returns how many events the cursor of the scope is behind the end of its log.
    pub fn lag(&self) -> i64 {
        (self.log_position - self.position).max(0)
    }

    /// Returns the state of the scope in words: `up to date`, `following`, `rebuilding`, `v2 waits
    /// for a rebuild`, `retrying` or `halted`.
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

/// Returns projection scopes, ordered by tenant and projection, after `after`.
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

/// Reads the state of a scope from a row of one of the queries that list scopes.
pub(super) fn info(row: &Row) -> Result<ProjectionInfo, Fault> {
    Ok(ProjectionInfo {
        tenant: column(row, 0)?,
        projection: column(row, 1)?,
        partition: column(row, 2)?,
        version: column(row, 3)?,
        generation: column(row, 4)?,
        position: column(row, 5)?,
        log_position: column(row, 6)?,
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
    /// The name of the event that the projection could not apply, if the event is still in the log.
    pub event: Option<String>,
    pub attempts: i32,
    /// The state of the event that failed: `retrying`, `halted`, `parked` or `resolved`.
    pub state: String,
    pub error: String,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub resolved_at: Option<Timestamp>,
    /// Whether the event is parked, and an operator has asked for a redrive.
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

/// Reads a failure of a projection from a row of one of the queries that list failures.
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
