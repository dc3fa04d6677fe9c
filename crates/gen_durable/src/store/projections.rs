//! Scopes: a batch's beginning and end, failures, and what admins look at.

use jiff::Timestamp;
use tokio_postgres::{Row, types::ToSql};

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::column,
    sql,
    target::Target,
    tx::{Tx, answered, ride},
};
use crate::error::Error;

sql!(OPEN, "project_open.sql", [TEXT, TEXT, INT4, TEXT, TEXT_ARRAY, INT4, INT8, INT8, BOOL]);
sql!(CLOSE, "project_close.sql", [TEXT, TEXT, INT4, INT8, INT8, INT8, TEXT, FLOAT8]);
sql!(FAIL, "project_fail.sql", [TEXT, TEXT, INT8, TEXT, TEXT, FLOAT8, INT4]);
sql!(BACKLOG, "scopes_behind.sql", [TEXT_ARRAY, TEXT, INT4, INT4_ARRAY, BOOL_ARRAY]);
sql!(LIST, "projections.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);
sql!(CURSOR, "cursor.sql", [TEXT, TEXT]);
sql!(FAILURES, "failures.sql", [TEXT, TEXT, BOOL, INT4]);
sql!(RETRY, "retry_projection.sql", [TEXT, TEXT]);
sql!(REDRIVE, "redrive.sql", [TEXT, TEXT, INT8]);
sql!(REDRIVES, "redrives_due.sql", [TEXT_ARRAY]);
sql!(REDRIVEN, "redriven.sql", [TEXT, TEXT, INT8, TEXT]);
sql!(GO_ON, "new_version.sql", [TEXT, TEXT, INT4]);
sql!(OFFER, "projection_offer.sql", [TEXT_ARRAY, INT4_ARRAY, TEXT]);
sql!(NAMES, "projection_names.sql", []);
sql!(NOTE_DIGEST, "digest_note.sql", [TEXT, TEXT, BYTEA, INT8]);

const DIGEST: &str = include_str!("sql/digest.sql");

/// A row of the log, before it is an event of somebody's.
#[derive(Debug, Clone)]
pub(crate) struct LogRow {
    pub(crate) position: i64,
    pub(crate) at: Timestamp,
    pub(crate) name: String,
    pub(crate) version: i32,
    /// `None`: of a name that this projection does not read.
    pub(crate) payload: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) instance_id: Option<i64>,
    pub(crate) step: Option<String>,
}

/// The last eight columns of an answer.
pub(super) fn log_row(row: &Row, from: usize) -> Result<LogRow, Fault> {
    Ok(LogRow {
        position: column(row, from)?,
        at: column(row, from + 1)?,
        name: column(row, from + 2)?,
        version: column(row, from + 3)?,
        payload: column(row, from + 4)?,
        headers: column(row, from + 5)?,
        instance_id: column(row, from + 6)?,
        step: column(row, from + 7)?,
    })
}

/// What is asked for when a batch begins.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) projection: &'a str,
    pub(crate) version: i32,
    pub(crate) worker: &'a str,
    pub(crate) names: &'a [&'static str],
    pub(crate) limit: i32,
    pub(crate) bytes: i64,
    /// One parked event, by its position.
    pub(crate) redrive: Option<i64>,
    /// Whoever else is at it.
    pub(crate) force: bool,
}

/// Whether it is our turn, and if not, why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    Go,
    /// Somebody is at it this moment.
    Locked,
    /// Somebody else was at it a moment ago.
    Theirs,
    /// Its rows are those of an older version.
    Outdated,
    /// They are those of a newer one.
    Newer,
    Halted,
    Waiting(f64),
}

/// Where a scope stands, and what comes next.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) verdict: Verdict,
    pub(crate) position: i64,
    pub(crate) generation: i32,
    pub(crate) applied: i64,
    pub(crate) replaying_to: i64,
    pub(crate) attempts: i32,
    pub(crate) scope_version: i32,
    pub(crate) events: Vec<LogRow>,
}

/// Begin a batch.
pub(crate) async fn open(tx: &mut Tx, target: &Target, ask: &Ask<'_>) -> Result<Opened, Fault> {
    let params: &[Param<'_>] = &[
        &ask.tenant,
        &ask.projection,
        &ask.version,
        &ask.worker,
        &ask.names,
        &ask.limit,
        &ask.bytes,
        &ask.redrive,
        &ask.force,
    ];
    let rows = ride(tx, target, &OPEN, params).await?;
    let Some((first, rest)) = rows.split_first() else { return Err(unexpected("an empty answer")) };
    let verdict: String = column(first, 0)?;
    let verdict = match verdict.as_str() {
        "go" => Verdict::Go,
        "locked" => Verdict::Locked,
        "owned" => Verdict::Theirs,
        "outdated" => Verdict::Outdated,
        "newer" => Verdict::Newer,
        "halted" => Verdict::Halted,
        "waiting" => Verdict::Waiting(column(first, 7)?),
        other => return Err(unexpected(other)),
    };
    Ok(Opened {
        verdict,
        position: column::<Option<_>>(first, 1)?.unwrap_or_default(),
        generation: column::<Option<_>>(first, 2)?.unwrap_or_default(),
        applied: column::<Option<_>>(first, 3)?.unwrap_or_default(),
        replaying_to: column::<Option<_>>(first, 4)?.unwrap_or_default(),
        attempts: column::<Option<_>>(first, 5)?.unwrap_or_default(),
        scope_version: column::<Option<_>>(first, 6)?.unwrap_or_default(),
        events: rest.iter().map(|row| log_row(row, 8)).collect::<Result<_, _>>()?,
    })
}

pub(super) fn unexpected(what: &str) -> Fault {
    Fault::Refused { code: None, message: format!("an unexpected answer: {what:?}") }
}

/// A cursor's move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) generation: i32,
    pub(crate) old: i64,
    pub(crate) new: i64,
    pub(crate) applied: i64,
}

/// End a batch. `false`: the cursor is not where it was found, and nothing of this may be committed.
pub(crate) async fn close(
    tx: &mut Tx,
    target: &Target,
    (tenant, projection): (&str, &str),
    cursor: Move,
    worker: &str,
    owned_seconds: f64,
) -> Result<bool, Fault> {
    let Move { generation, old, new, applied } = cursor;
    let params: &[Param<'_>] = &[&tenant, &projection, &generation, &old, &new, &applied, &worker, &owned_seconds];
    let rows = ride(tx, target, &CLOSE, params).await?;
    rows.first().map_or(Ok(false), |row| column(row, 0))
}

/// What becomes of an event that could not be applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fate {
    Retry(f64),
    Halt,
    Park,
}

/// Record it, in a transaction of its own. `false`: the cursor has moved on meanwhile.
pub(crate) async fn fail(
    connection: &Connection,
    (tenant, projection): (&str, &str),
    old: i64,
    error: &str,
    fate: Fate,
    version: i32,
) -> Result<bool, Fault> {
    let (state, delay) = match fate {
        Fate::Retry(delay) => ("retrying", delay),
        Fate::Halt => ("halted", 0.0),
        Fate::Park => ("parked", 0.0),
    };
    let rows = connection.query(&FAIL, &[&tenant, &projection, &old, &error, &state, &delay, &version]).await?;
    rows.first().map_or(Ok(false), |row| column(row, 0))
}

/// A projection as the sweep asks for it: its name, its version, and whether it does something about older rows by itself.
pub(crate) type Swept = (&'static str, i32, bool);

/// Scopes of these projections that have something to do and that nobody else is at: tenant and projection.
pub(crate) async fn backlog(
    connection: &Connection,
    swept: &[Swept],
    worker: &str,
    limit: i32,
) -> Result<Vec<(String, String)>, Fault> {
    let names: Vec<&str> = swept.iter().map(|(name, ..)| *name).collect();
    let versions: Vec<i32> = swept.iter().map(|(_, version, _)| *version).collect();
    let eager: Vec<bool> = swept.iter().map(|(.., eager)| *eager).collect();
    let rows = connection.query(&BACKLOG, &[&names, &worker, &limit, &versions, &eager]).await?;
    rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?))).collect()
}

/// Where a scope stands.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    pub(crate) position: i64,
    pub(crate) status: String,
    pub(crate) last_error: Option<String>,
    pub(crate) generation: i32,
    pub(crate) applied: i64,
    pub(crate) version: i32,
}

fn read_cursor(rows: &[Row]) -> Result<Option<Cursor>, Fault> {
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Cursor {
        position: column(row, 0)?,
        status: column(row, 1)?,
        last_error: column(row, 2)?,
        generation: column(row, 3)?,
        applied: column(row, 4)?,
        version: column(row, 5)?,
    }))
}

pub(crate) async fn cursor(connection: &Connection, tenant: &str, projection: &str) -> Result<Option<Cursor>, Fault> {
    read_cursor(&connection.query(&CURSOR, &[&tenant, &projection]).await?)
}

/// The same, as a transaction's own snapshot has it.
pub(crate) async fn cursor_in(
    tx: &mut Tx,
    target: &Target,
    tenant: &str,
    projection: &str,
) -> Result<Option<Cursor>, Fault> {
    read_cursor(&ride(tx, target, &CURSOR, &[&tenant, &projection]).await?)
}

/// From here on the transaction sees one snapshot, also for the caller's own statements.
pub(crate) async fn one_snapshot(tx: &mut Tx, target: &Target) -> Result<(), Fault> {
    answered(target, tx.batch_execute("set transaction isolation level repeatable read")).await
}

/// The digest of what a query of the caller's answers.
pub(crate) async fn digest(tx: &Tx, query: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<u8>, Error> {
    let text = DIGEST.replace("the_rows", query.trim().trim_end_matches(';'));
    let row = tx.query_one(&text, params).await.map_err(|error| Fault::of(&error).into_error("take a digest"))?;
    column(&row, 0).map_err(|fault| fault.into_error("take a digest"))
}

pub(crate) async fn note_digest(
    connection: &Connection,
    tenant: &str,
    projection: &str,
    digest: &[u8],
    position: i64,
) -> Result<(), Fault> {
    connection.query(&NOTE_DIGEST, &[&tenant, &projection, &digest, &position]).await.map(drop)
}

/// Let a scope that halted, or waits to be tried again, go on. Answers whether it did.
pub(crate) async fn retry(connection: &Connection, tenant: &str, projection: &str) -> Result<bool, Fault> {
    Ok(!connection.query(&RETRY, &[&tenant, &projection]).await?.is_empty())
}

/// Parked events that are to be tried again. Answers how many.
pub(crate) async fn redrive(
    connection: &Connection,
    tenant: &str,
    projection: &str,
    position: Option<i64>,
) -> Result<usize, Fault> {
    Ok(connection.query(&REDRIVE, &[&tenant, &projection, &position]).await?.len())
}

/// Parked events that somebody wants tried again.
pub(crate) async fn redrives(
    connection: &Connection,
    projections: &[&'static str],
) -> Result<Vec<(String, String, i64)>, Fault> {
    let rows = connection.query(&REDRIVES, &[&projections]).await?;
    rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?, column(row, 2)?))).collect()
}

/// It was tried again and applied: part of that transaction.
pub(crate) async fn redriven(
    tx: &mut Tx,
    target: &Target,
    (tenant, projection, position): (&str, &str, i64),
) -> Result<bool, Fault> {
    let params: &[Param<'_>] = &[&tenant, &projection, &position, &None::<&str>];
    Ok(!ride(tx, target, &REDRIVEN, params).await?.is_empty())
}

/// It was tried again and failed again.
pub(crate) async fn redrive_failed(
    connection: &Connection,
    (tenant, projection, position): (&str, &str, i64),
    error: &str,
) -> Result<(), Fault> {
    connection.query(&REDRIVEN, &[&tenant, &projection, &position, &Some(error)]).await.map(drop)
}

/// The rows are taken over as they are by a newer version.
pub(crate) async fn go_on(connection: &Connection, tenant: &str, projection: &str, version: i32) -> Result<(), Fault> {
    connection.query(&GO_ON, &[&tenant, &projection, &version]).await.map(drop)
}

/// Every projection that follows the log of any tenant.
pub(crate) async fn names(connection: &Connection) -> Result<Vec<String>, Fault> {
    connection.query(&NAMES, &[]).await?.iter().map(|row| column(row, 0)).collect()
}

/// A rebuild is due: these builds, by name and version, leave older rows alone. Of one tenant, or of all.
pub(crate) async fn offer(
    connection: &Connection,
    builds: &[(&'static str, i32)],
    tenant: Option<&str>,
) -> Result<(), Fault> {
    let (names, versions): (Vec<&str>, Vec<i32>) = builds.iter().copied().unzip();
    connection.query(&OFFER, &[&names, &versions, &tenant]).await.map(drop)
}

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
    let rows = connection.query(&LIST, &[&tenant, &projection, &after_tenant, &after_projection, &limit]).await?;
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
    let rows = connection.query(&FAILURES, &[&tenant, &projection, &resolved, &limit]).await?;
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
