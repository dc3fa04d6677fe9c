//! Statements about a projection scope: they open and close a batch of events, and record failures.
//! The queries for operators are in the module `scopes`.

use jiff::Timestamp;
use tokio_postgres::{Row, types::ToSql};

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::column,
    sql,
    target::Target,
    tx::{Tx, query_in, within_timeout},
};
use crate::error::Error;

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
sql!(REDRIVE, "redrive.sql", [TEXT, TEXT, INT8]);
sql!(REDRIVES, "redrives_due.sql", [TEXT_ARRAY]);
sql!(REDRIVEN, "redriven.sql", [TEXT, TEXT, INT8, TEXT]);
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

/// Reads the event from the last eight columns of a result row, which begin at column `from`.
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

/// The parameters with which a worker opens a batch of events of a scope.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
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
pub(crate) enum Verdict {
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

/// Opens a batch of a scope: locks the row of the scope, and reads the next events of its log.
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
    let rows = query_in(tx, target, &OPEN, params).await?;
    let Some((first, rest)) = rows.split_first() else {
        return Err(unexpected("no row"));
    };
    let verdict: String = column(first, 0)?;
    let verdict = match verdict.as_str() {
        "go" => Verdict::Go,
        "locked" => Verdict::Locked,
        "owned" => Verdict::Theirs,
        "outdated" => Verdict::Outdated,
        "newer" => Verdict::Newer,
        "halted" => Verdict::Halted,
        "blocked" => Verdict::Blocked,
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
        events: rest
            .iter()
            .map(|row| log_row(row, 8))
            .collect::<Result<_, _>>()?,
    })
}

pub(super) fn unexpected(what: &str) -> Fault {
    Fault::Refused {
        code: None,
        message: format!("unexpected result from the database: {what:?}"),
    }
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
    tx: &mut Tx,
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
    rows.first().map_or(Ok(false), |row| column(row, 0))
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
    rows.first().map_or(Ok(false), |row| column(row, 0))
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
        match column::<Option<String>>(row, 0)? {
            Some(tenant) => found.scopes.push((tenant, column(row, 1)?)),
            None => found.more = column(row, 2)?,
        }
    }
    Ok(found)
}

/// The cursor of a scope: how far the projection has applied the log, and in which state.
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
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(Cursor {
        position: column(row, 0)?,
        status: column(row, 1)?,
        last_error: column(row, 2)?,
        generation: column(row, 3)?,
        applied: column(row, 4)?,
        version: column(row, 5)?,
    }))
}

pub(crate) async fn cursor(
    connection: &Connection,
    tenant: &str,
    projection: &str,
) -> Result<Option<Cursor>, Fault> {
    read_cursor(&connection.query(&CURSOR, &[&tenant, &projection]).await?)
}

/// Returns the cursor of a scope, as the snapshot of this transaction shows it.
pub(crate) async fn cursor_in(
    tx: &mut Tx,
    target: &Target,
    tenant: &str,
    projection: &str,
) -> Result<Option<Cursor>, Fault> {
    read_cursor(&query_in(tx, target, &CURSOR, &[&tenant, &projection]).await?)
}

/// Makes the transaction use one snapshot for all its later statements, including the statements of
/// the projection.
pub(crate) async fn one_snapshot(tx: &mut Tx, target: &Target) -> Result<(), Fault> {
    within_timeout(
        target,
        tx.batch_execute("set transaction isolation level repeatable read"),
    )
    .await
}

/// Returns the digest of the rows that a query of a projection returns.
pub(crate) async fn digest(
    tx: &Tx,
    query: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<u8>, Error> {
    let text = DIGEST.replace("the_rows", query.trim().trim_end_matches(';'));
    let row = tx
        .query_one(&text, params)
        .await
        .map_err(|error| Fault::of(&error).into_error("compute a digest"))?;
    column(&row, 0).map_err(|fault| fault.into_error("compute a digest"))
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

/// Marks parked events of a scope for a redrive. Returns how many events it marked.
pub(crate) async fn redrive(
    connection: &Connection,
    tenant: &str,
    projection: &str,
    position: Option<i64>,
) -> Result<usize, Fault> {
    Ok(connection
        .act_alone(&REDRIVE, &[&tenant, &projection, &position])
        .await?
        .len())
}

/// Returns the parked events that an operator has marked for a redrive.
pub(crate) async fn redrives(
    connection: &Connection,
    projections: &[&'static str],
) -> Result<Vec<(String, String, i64)>, Fault> {
    let rows = connection.query(&REDRIVES, &[&projections]).await?;
    rows.iter()
        .map(|row| Ok((column(row, 0)?, column(row, 1)?, column(row, 2)?)))
        .collect()
}

/// Records that a redrive has applied a parked event, in the transaction that applied the event.
/// Returns `false` if the event was not parked any more.
pub(crate) async fn redriven(
    tx: &mut Tx,
    target: &Target,
    (tenant, projection, position): (&str, &str, i64),
) -> Result<bool, Fault> {
    let params: &[Param<'_>] = &[&tenant, &projection, &position, &None::<&str>];
    Ok(!query_in(tx, target, &REDRIVEN, params).await?.is_empty())
}

/// Records that a redrive of a parked event failed.
pub(crate) async fn redrive_failed(
    connection: &Connection,
    (tenant, projection, position): (&str, &str, i64),
    error: &str,
) -> Result<(), Fault> {
    connection
        .query(&REDRIVEN, &[&tenant, &projection, &position, &Some(error)])
        .await
        .map(drop)
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
        .map(|row| column(row, 0))
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
