//! Scopes: a batch's beginning and end, and failures. What operators see of them: `scopes`.

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
    /// A redrive must wait: the cursor is before its event, or a run is open; or the event is not parked any more.
    Blocked,
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
    let Some((first, rest)) = rows.split_first() else {
        return Err(unexpected("an empty answer"));
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
        message: format!("an unexpected answer: {what:?}"),
    }
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
    let rows = connection
        .query(
            &FAIL,
            &[&tenant, &projection, &old, &error, &state, &delay, &version],
        )
        .await?;
    rows.first().map_or(Ok(false), |row| column(row, 0))
}

/// A projection as the sweep asks for it: its name, its version, and whether it does something about older rows by itself.
pub(crate) type Swept = (&'static str, i32, bool);

/// How the walk over all tenants goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// Tenants of a page.
    pub(crate) page: i32,
    /// The pause after a page, and at the end of the walk.
    pub(crate) pause_seconds: f64,
    pub(crate) idle_seconds: f64,
    /// All tenants at once, whatever the walk says: for a test bench.
    pub(crate) all: bool,
}

/// What a look for scopes with something to do has found.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// Tenant and projection of each.
    pub(crate) scopes: Vec<(String, String)>,
    /// There is another page.
    pub(crate) more: bool,
}

/// Finds scopes of these projections that are to be tried again, and those behind their log among the next page of tenants, as far
/// as no other worker is at the scope or at the walk.
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
    answered(
        target,
        tx.batch_execute("set transaction isolation level repeatable read"),
    )
    .await
}

/// The digest of what a query of the caller's answers.
pub(crate) async fn digest(
    tx: &Tx,
    query: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<u8>, Error> {
    let text = DIGEST.replace("the_rows", query.trim().trim_end_matches(';'));
    let row = tx
        .query_one(&text, params)
        .await
        .map_err(|error| Fault::of(&error).into_error("take a digest"))?;
    column(&row, 0).map_err(|fault| fault.into_error("take a digest"))
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

/// Let a scope that halted, or waits to be tried again, go on. Answers whether it did.
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

/// Parked events that are to be tried again. Answers how many.
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

/// Parked events that somebody wants tried again.
pub(crate) async fn redrives(
    connection: &Connection,
    projections: &[&'static str],
) -> Result<Vec<(String, String, i64)>, Fault> {
    let rows = connection.query(&REDRIVES, &[&projections]).await?;
    rows.iter()
        .map(|row| Ok((column(row, 0)?, column(row, 1)?, column(row, 2)?)))
        .collect()
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
    connection
        .query(&REDRIVEN, &[&tenant, &projection, &position, &Some(error)])
        .await
        .map(drop)
}

/// The rows are taken over as they are by a newer version.
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

/// Every projection that follows the log of any tenant.
pub(crate) async fn names(connection: &Connection) -> Result<Vec<String>, Fault> {
    connection
        .query(&NAMES, &[])
        .await?
        .iter()
        .map(|row| column(row, 0))
        .collect()
}

/// A rebuild is due: these builds, by name and version, leave older rows alone. Of one tenant, or of all.
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
