//! Statements about a projection scope: they open and close a batch of events, and record failures.
//! The queries for operators are in the module `scopes`.

use jiff::Timestamp;
use tokio_postgres::{Client, Row, types::ToSql};

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{column, columns, named, only, parsed, unexpected},
    sql,
    target::Target,
    tx::{Session, query_in, within_timeout},
};
use crate::{error::Error, model::projection::ScopeStatus};

sql!(
    OPEN,
    "project_open.sql",
    [TEXT, TEXT, INT4, TEXT, TEXT_ARRAY, INT4, INT8, INT8, BOOL]
);
sql!(
    CLOSE,
    "project_close.sql",
    [TEXT, TEXT, INT4, INT8, INT8, INT8, TEXT, FLOAT8]
);
sql!(
    FAIL,
    "project_fail.sql",
    [TEXT, TEXT, INT8, TEXT, TEXT, FLOAT8, INT4]
);
sql!(
    BEHIND,
    "scopes_behind.sql",
    [
        TEXT_ARRAY, INT4_ARRAY, BOOL_ARRAY, TEXT, INT4, FLOAT8, FLOAT8, BOOL
    ]
);
sql!(CURSOR, "cursor.sql", [TEXT, TEXT]);
sql!(RETRY, "retry_projection.sql", [TEXT, TEXT]);
sql!(GO_ON, "new_version.sql", [TEXT, TEXT, INT4]);
sql!(
    OFFER,
    "projection_offer.sql",
    [TEXT_ARRAY, INT4_ARRAY, TEXT]
);
sql!(NAMES, "projection_names.sql", []);
sql!(NOTE_DIGEST, "digest_note.sql", [TEXT, TEXT, BYTEA, INT8]);

const DIGEST: &str = include_str!("sql/digest.sql");

/// An event of the log, before a projection decodes it into an event type.
#[derive(Debug, Clone)]
pub(crate) struct LogRow {
    pub(crate) position: i64,
    pub(crate) at: Timestamp,
    pub(crate) name: String,
    pub(crate) version: i32,
    /// The payload of the event. `None` if this projection does not read events of this name.
    pub(crate) payload: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) instance_id: Option<i64>,
    pub(crate) step: Option<String>,
}

columns!(
    /// The columns of an event in the results of the statements that open a batch.
    LogColumns { pos, at, name, version, payload, headers, instance_id, step }
);

/// Reads the events of a batch.
pub(super) fn log_rows(rows: &[Row]) -> Result<Vec<LogRow>, Fault> {
    let at = LogColumns::of(rows)?;
    let read = |row| {
        Ok(LogRow {
            position: column(row, at.pos)?,
            at: column(row, at.at)?,
            name: column(row, at.name)?,
            version: column(row, at.version)?,
            payload: column(row, at.payload)?,
            headers: column(row, at.headers)?,
            instance_id: column(row, at.instance_id)?,
            step: column(row, at.step)?,
        })
    };
    rows.iter().map(read).collect()
}

/// The parameters with which a worker opens a batch of events of a scope.
#[derive(Debug)]
pub(crate) struct OpenScope<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) projection: &'a str,
    pub(crate) version: i32,
    pub(crate) worker: &'a str,
    pub(crate) names: &'a [&'static str],
    pub(crate) limit: i32,
    pub(crate) bytes: i64,
    /// The log position of one parked event to redrive, instead of the next events of the log.
    pub(crate) redrive: Option<i64>,
    /// Whether to open the batch even if another worker has recently moved the cursor of the scope
    /// and still owns the scope.
    pub(crate) force: bool,
}

/// Whether this worker may apply the next batch of events of a scope, and if not, why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ScopeVerdict {
    Go,
    /// Another transaction holds a lock on the row of the scope, so this worker cannot open a
    /// batch.
    Locked,
    /// Another worker has recently moved the cursor of the scope, and owns the scope for a few
    /// seconds.
    Theirs,
    /// An older version of the projection wrote the rows of the projection's table, so this worker
    /// does not apply the batch.
    Outdated,
    /// A newer version of the projection wrote the rows of the projection's table, so this worker
    /// does not apply the batch.
    Newer,
    Halted,
    /// The worker cannot redrive the parked event now: the cursor of the scope has not reached the
    /// event, a run of the scope is open, or the event is no longer parked.
    Blocked,
    Waiting(f64),
}

/// The state of a scope, and the next events of its log.
#[derive(Debug)]
pub(crate) struct OpenedScope {
    pub(crate) verdict: ScopeVerdict,
    pub(crate) position: i64,
    pub(crate) generation: i32,
    pub(crate) applied: i64,
    pub(crate) replaying_to: i64,
    pub(crate) attempts: i32,
    pub(crate) scope_version: i32,
    pub(crate) events: Vec<LogRow>,
}

/// Opens a batch of a scope: locks the row of the scope, and reads the next events of its log.
pub(crate) async fn open(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    ask: &OpenScope<'_>,
) -> Result<OpenedScope, Fault> {
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
    let rows = query_in(tx, target, &OPEN, params).await?;
    let (first, rest) = rows.split_first().ok_or_else(Fault::no_row)?;

    let verdict = match named(first, "verdict")? {
        "go" => ScopeVerdict::Go,
        "locked" => ScopeVerdict::Locked,
        "owned" => ScopeVerdict::Theirs,
        "outdated" => ScopeVerdict::Outdated,
        "newer" => ScopeVerdict::Newer,
        "halted" => ScopeVerdict::Halted,
        "blocked" => ScopeVerdict::Blocked,
        "waiting" => ScopeVerdict::Waiting(named(first, "wait_seconds")?),
        other => return Err(unexpected(other)),
    };
    Ok(OpenedScope {
        verdict,
        position: named::<Option<_>>(first, "scope_position")?.unwrap_or_default(),
        generation: named::<Option<_>>(first, "generation")?.unwrap_or_default(),
        applied: named::<Option<_>>(first, "applied")?.unwrap_or_default(),
        replaying_to: named::<Option<_>>(first, "replaying_to")?.unwrap_or_default(),
        attempts: named::<Option<_>>(first, "attempts")?.unwrap_or_default(),
        scope_version: named::<Option<_>>(first, "scope_version")?.unwrap_or_default(),
        events: log_rows(rest)?,
    })
}

/// The move of a scope's cursor from one log position to another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) generation: i32,
    pub(crate) old: i64,
    pub(crate) new: i64,
    pub(crate) applied: i64,
}

/// Closes a batch of a scope: moves the cursor of the scope. Returns `false` if the cursor is no
/// longer at the position at which the batch began; the caller must then roll the transaction back.
pub(crate) async fn close(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    (tenant, projection): (&str, &str),
    cursor: Move,
    worker: &str,
    owned_seconds: f64,
) -> Result<bool, Fault> {
    let Move {
        generation,
        old,
        new,
        applied,
    } = cursor;
    let params: &[Param<'_>] = &[
        &tenant,
        &projection,
        &generation,
        &old,
        &new,
        &applied,
        &worker,
        &owned_seconds,
    ];
    let rows = query_in(tx, target, &CLOSE, params).await?;
    rows.first().map_or(Ok(false), only)
}

/// How a scope continues after an event that it could not apply: it retries the event after a
/// delay, halts, or parks the event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fate {
    Retry(f64),
    Halt,
    Park,
}

/// Records, in a transaction of its own, that a projection could not apply an event. Returns
/// `false` if another transaction has moved the cursor of the scope since the worker read the
/// event.
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
    let rows = connection
        .query(
            &FAIL,
            &[&tenant, &projection, &old, &error, &state, &delay, &version],
        )
        .await?;
    rows.first().map_or(Ok(false), only)
}

/// A projection of this build: its name, its version, and whether the projection can work on rows
/// that an older version wrote.
pub(crate) type Swept = (&'static str, i32, bool);

/// The pace of the pass over all tenants that finds scopes with a cursor behind the end of their
/// log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// The number of tenants in one page of the pass over all tenants.
    pub(crate) page: i32,
    /// How long the pass over all tenants pauses after a page of tenants, and after the last page.
    pub(crate) pause_seconds: f64,
    pub(crate) idle_seconds: f64,
    /// Whether the pass reads all tenants at once, wherever its last page ended. Only tests set it.
    pub(crate) all: bool,
}

/// The scopes with events to apply that the pass over the tenants has found.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// The tenant and the projection of each scope with events to apply.
    pub(crate) scopes: Vec<(String, String)>,
    /// Whether the pass over all tenants has another page to read.
    pub(crate) more: bool,
}

/// Finds the scopes of these projections that are due for a retry, and the scopes with a cursor
/// behind the end of their log among the next page of tenants. Leaves out scopes that another
/// worker owns. While another worker reads a page of tenants, this call reads no page.
pub(crate) async fn behind(
    connection: &Connection,
    swept: &[Swept],
    worker: &str,
    walk: Walk,
) -> Result<Behind, Fault> {
    let names: Vec<&str> = swept.iter().map(|(name, ..)| *name).collect();
    let versions: Vec<i32> = swept.iter().map(|(_, version, _)| *version).collect();
    let eager: Vec<bool> = swept.iter().map(|(.., eager)| *eager).collect();
    let Walk {
        page,
        pause_seconds,
        idle_seconds,
        all,
    } = walk;
    let params: &[Param<'_>] = &[
        &names,
        &versions,
        &eager,
        &worker,
        &page,
        &pause_seconds,
        &idle_seconds,
        &all,
    ];
    let mut found = Behind::default();
    for row in &connection.query(&BEHIND, params).await? {
        match named::<Option<String>>(row, "tenant")? {
            Some(tenant) => found.scopes.push((tenant, named(row, "projection")?)),
            None => found.more = named(row, "more")?,
        }
    }
    Ok(found)
}

/// The cursor of a scope: how far the projection has applied the log, and in which state.
#[derive(Debug, Clone)]
pub(crate) struct ScopeState {
    pub(crate) position: i64,
    pub(crate) status: ScopeStatus,
    pub(crate) last_error: Option<String>,
    pub(crate) generation: i32,
    pub(crate) applied: i64,
    pub(crate) version: i32,
}

fn read_cursor(rows: &[Row]) -> Result<Option<ScopeState>, Fault> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(ScopeState {
        position: named(row, "position")?,
        status: parsed(row, "status")?,
        last_error: named(row, "last_error")?,
        generation: named(row, "generation")?,
        applied: named(row, "applied")?,
        version: named(row, "version")?,
    }))
}

pub(crate) async fn cursor(
    connection: &Connection,
    tenant: &str,
    projection: &str,
) -> Result<Option<ScopeState>, Fault> {
    read_cursor(&connection.query(&CURSOR, &[&tenant, &projection]).await?)
}

/// Returns the cursor of a scope, as the snapshot of this transaction shows it.
pub(crate) async fn cursor_in(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    tenant: &str,
    projection: &str,
) -> Result<Option<ScopeState>, Fault> {
    read_cursor(&query_in(tx, target, &CURSOR, &[&tenant, &projection]).await?)
}

/// Makes the transaction use one snapshot for all its later statements, including the statements of
/// the projection.
pub(crate) async fn one_snapshot(tx: &Client, target: &Target) -> Result<(), Fault> {
    within_timeout(
        target,
        tx.batch_execute("set transaction isolation level repeatable read"),
    )
    .await
}

/// Returns the digest of the rows that a query of a projection returns.
pub(crate) async fn digest(
    tx: &Client,
    query: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<u8>, Error> {
    let text = DIGEST.replace("the_rows", query.trim().trim_end_matches(';'));
    let row = tx
        .query_one(&text, params)
        .await
        .map_err(|error| Fault::of(&error).into_error("compute a digest"))?;
    only(&row).map_err(|fault| fault.into_error("compute a digest"))
}

pub(crate) async fn note_digest(
    connection: &Connection,
    tenant: &str,
    projection: &str,
    digest: &[u8],
    position: i64,
) -> Result<(), Fault> {
    connection
        .query(&NOTE_DIGEST, &[&tenant, &projection, &digest, &position])
        .await
        .map(drop)
}

/// Lets a scope continue that is halted or waits for a retry. Returns whether the scope was in one
/// of these two states.
pub(crate) async fn retry(
    connection: &Connection,
    tenant: &str,
    projection: &str,
) -> Result<bool, Fault> {
    Ok(!connection
        .act_alone(&RETRY, &[&tenant, &projection])
        .await?
        .is_empty())
}

/// Sets the version of a scope to the version of a newer build. The newer build continues with the
/// existing rows of the scope.
pub(crate) async fn go_on(
    connection: &Connection,
    tenant: &str,
    projection: &str,
    version: i32,
) -> Result<(), Fault> {
    connection
        .query(&GO_ON, &[&tenant, &projection, &version])
        .await
        .map(drop)
}

/// Returns the names of all projections that have a scope for any tenant.
pub(crate) async fn names(connection: &Connection) -> Result<Vec<String>, Fault> {
    connection
        .query(&NAMES, &[])
        .await?
        .iter()
        .map(only)
        .collect()
}

/// Records that scopes are due for a rebuild, for one tenant or for all. The caller names the
/// projections and their versions; these projections do not write to rows of an older version.
pub(crate) async fn offer(
    connection: &Connection,
    builds: &[(&'static str, i32)],
    tenant: Option<&str>,
) -> Result<(), Fault> {
    let (names, versions): (Vec<&str>, Vec<i32>) = builds.iter().copied().unzip();
    connection
        .query(&OFFER, &[&names, &versions, &tenant])
        .await
        .map(drop)
}
