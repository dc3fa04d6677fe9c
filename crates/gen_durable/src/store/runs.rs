//! Statements about the runs of a projection scope: replays, rebuilds and verifications of the
//! projection's rows.

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    projections::{LogRow, log_rows},
    row::{named, only, parsed},
    sql,
    target::Target,
    tx::{Session, query_in},
};
use crate::model::projection::{ProjectionRun, RunKind};

sql!(
    REQUEST,
    "run_request.sql",
    [TEXT, TEXT, TEXT, INT8, INT8, BOOL, TEXT, INT4]
);
sql!(
    REQUEST_ALL,
    "run_request_all.sql",
    [TEXT, TEXT, INT8, INT8, BOOL, TEXT]
);
sql!(DUE, "runs_due.sql", [TEXT_ARRAY, INT4_ARRAY, TEXT]);
sql!(COLLECT, "collect_runs.sql", [FLOAT8, INT4]);
sql!(
    OPEN,
    "run_open.sql",
    [INT8, INT4, TEXT, TEXT_ARRAY, INT4, INT8, INT8, BOOL]
);
sql!(
    ADVANCE,
    "run_advance.sql",
    [INT8, INT8, INT8, INT8, TEXT, FLOAT8, BOOL]
);
sql!(PASS_OVER, "run_passed_over.sql", [INT8, INT8, TEXT]);
sql!(OUTAGE, "run_outage.sql", [INT8, TEXT]);
sql!(SWAP, "run_swap.sql", [INT8, INT4]);
sql!(RESTART, "run_restart.sql", [INT8, INT4]);
sql!(FINISH, "run_finish.sql", [INT8, TEXT, TEXT, TEXT]);
sql!(VERDICT, "run_verdict.sql", [INT8, TEXT]);
sql!(CANCEL, "run_cancel.sql", [INT8, TEXT]);
sql!(LIST, "runs.sql", [INT8, TEXT, TEXT, INT4]);
sql!(PAGE, "runs_page.sql", [TEXT, TEXT, INT8, INT4]);
sql!(LOCK_RETIRED, "run_retired_lock.sql", [INT8]);
sql!(CLEARED, "run_cleared.sql", [INT8]);
sql!(POSITION, "run_position.sql", [INT8]);

/// A request for a run of a projection.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) tenant: String,
    pub(crate) projection: String,
    pub(crate) kind: RunKind,
    pub(crate) from: i64,
    pub(crate) to: Option<i64>,
    pub(crate) force: bool,
    pub(crate) by: String,
    /// The version of the projection that a build must have to execute the run. `None`: any version
    /// that is not older than the version that wrote the rows of the scope.
    pub(crate) version: Option<i32>,
}

/// Requests a run of a scope. Returns `None` if the scope does not exist, or if the scope already
/// has an open run.
pub(crate) async fn request(
    connection: &Connection,
    request: &Request,
) -> Result<Option<i64>, Fault> {
    let Request {
        tenant,
        projection,
        kind,
        from,
        to,
        force,
        by,
        version,
    } = request;
    let params: &[Param<'_>] = &[
        tenant,
        projection,
        &kind.name(),
        from,
        to,
        force,
        by,
        version,
    ];
    let rows = connection.query(&REQUEST, params).await?;
    rows.first().map(only).transpose()
}

/// Requests a run for the scope of every tenant of a projection, and ignores the tenant of the
/// request. Returns the ids of the runs. Leaves out scopes that already have an open run.
pub(crate) async fn request_all(
    connection: &Connection,
    request: &Request,
) -> Result<Vec<i64>, Fault> {
    let Request {
        projection,
        kind,
        from,
        to,
        force,
        by,
        ..
    } = request;
    let params: &[Param<'_>] = &[projection, &kind.name(), from, to, force, by];
    connection
        .query(&REQUEST_ALL, params)
        .await?
        .iter()
        .map(only)
        .collect()
}

/// Deletes runs that finished, and failures of projections that were resolved, longer ago than the
/// retention: up to `limit` of each. Returns the larger of the two numbers of deleted rows.
pub(crate) async fn collect(
    connection: &Connection,
    retention_seconds: f64,
    limit: i32,
) -> Result<i64, Fault> {
    let rows = connection
        .query(&COLLECT, &[&retention_seconds, &limit])
        .await?;
    rows.first().map_or(Ok(0), only)
}

/// A run of a projection scope on which a worker has to work.
#[derive(Debug, Clone)]
pub(crate) struct DueRun {
    pub(crate) id: i64,
    pub(crate) tenant: String,
    pub(crate) projection: String,
    pub(crate) kind: RunKind,
    /// The generation of the projection's rows that readers no longer use after the run, and that a
    /// worker has to delete.
    pub(crate) retired: Option<i32>,
}

/// Returns the runs that a worker can work on, if it has these versions of these projections.
pub(crate) async fn due(
    connection: &Connection,
    builds: &[(&'static str, i32)],
    worker: &str,
) -> Result<Vec<DueRun>, Fault> {
    let (names, versions): (Vec<&str>, Vec<i32>) = builds.iter().copied().unzip();
    let rows = connection
        .query(&DUE, &[&names, &versions, &worker])
        .await?;
    rows.iter()
        .map(|row| {
            Ok(DueRun {
                id: named(row, "id")?,
                tenant: named(row, "tenant")?,
                projection: named(row, "projection")?,
                kind: parsed(row, "kind")?,
                retired: named(row, "retired")?,
            })
        })
        .collect()
}

/// The parameters with which a worker opens a batch of events of a run.
#[derive(Debug)]
pub(crate) struct OpenRun<'a> {
    pub(crate) run: i64,
    pub(crate) version: i32,
    pub(crate) worker: &'a str,
    pub(crate) names: &'a [&'static str],
    pub(crate) limit: i32,
    pub(crate) bytes: i64,
    /// The log position of the last event that the batch may read.
    pub(crate) to: Option<i64>,
    /// Whether to lock the row of the scope first, so that no worker applies a normal batch to the
    /// current generation of the projection until this transaction ends.
    pub(crate) scope: bool,
}

/// The state of a run, and the next events that the run has to apply.
#[derive(Debug)]
pub(crate) struct OpenedRun {
    pub(crate) run: Held,
    pub(crate) events: Vec<LogRow>,
}

/// Whether this worker may apply the next batch of a run.
#[derive(Debug)]
pub(crate) enum Held {
    /// This worker may apply the next batch of the run.
    Ours(Standing),
    /// The run has finished, another worker is working on the run, or the run belongs to a newer
    /// build.
    Theirs,
    /// An older build has started the run, or a replay finds rows that an older version of the
    /// projection wrote. No build can continue the run.
    Outdated,
}

#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) position: i64,
    pub(crate) run_generation: i32,
    pub(crate) applied: i64,
    pub(crate) scope_position: i64,
    pub(crate) generation: i32,
    pub(crate) force: bool,
    /// The log position at which a replay ends. Runs of other kinds end at the position of the
    /// scope's cursor.
    pub(crate) target: Option<i64>,
}

/// Opens a batch of a run: locks the row of the run, and reads the next events that the run has to
/// apply.
pub(crate) async fn open(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    ask: &OpenRun<'_>,
) -> Result<OpenedRun, Fault> {
    let params: &[Param<'_>] = &[
        &ask.run,
        &ask.version,
        &ask.worker,
        &ask.names,
        &ask.limit,
        &ask.bytes,
        &ask.to,
        &ask.scope,
    ];
    let rows = query_in(tx, target, &OPEN, params).await?;
    let (first, rest) = rows.split_first().ok_or_else(Fault::no_row)?;
    match named::<&str>(first, "verdict")? {
        "go" => {}
        "outdated" => {
            return Ok(OpenedRun {
                run: Held::Outdated,
                events: Vec::new(),
            });
        }
        _ => {
            return Ok(OpenedRun {
                run: Held::Theirs,
                events: Vec::new(),
            });
        }
    }
    let standing = Standing {
        position: named(first, "run_position")?,
        run_generation: named(first, "run_generation")?,
        applied: named(first, "applied")?,
        scope_position: named(first, "scope_position")?,
        generation: named(first, "generation")?,
        force: named(first, "force")?,
        target: named(first, "target")?,
    };
    Ok(OpenedRun {
        run: Held::Ours(standing),
        events: log_rows(rest)?,
    })
}

/// The move of a run from one log position to another.
#[derive(Debug)]
pub(crate) struct Advance<'a> {
    pub(crate) run: i64,
    pub(crate) old: i64,
    pub(crate) new: i64,
    /// The running hash of all events that the run has applied.
    pub(crate) applied: i64,
    /// True if the run applied the events of the batch, false if it skipped them.
    pub(crate) has_applied: bool,
    pub(crate) worker: &'a str,
    pub(crate) owned_seconds: f64,
}

/// Closes a batch of a run. Returns `false` if the run is no longer at the log position at which
/// the batch began, or has finished.
pub(crate) async fn advance(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    advance: &Advance<'_>,
) -> Result<bool, Fault> {
    let Advance {
        run,
        old,
        new,
        applied,
        has_applied,
        worker,
        owned_seconds,
    } = advance;
    let params: &[Param<'_>] = &[run, old, new, applied, worker, owned_seconds, has_applied];
    Ok(!query_in(tx, target, &ADVANCE, params).await?.is_empty())
}

/// Records that a run skips an event, in the transaction that moves the run past that event.
pub(crate) async fn pass_over(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    run: i64,
    position: i64,
    error: &str,
) -> Result<(), Fault> {
    query_in(tx, target, &PASS_OVER, &[&run, &position, &error])
        .await
        .map(drop)
}

/// Counts an attempt to apply a batch of a run that failed because the server cancelled a statement
/// or the connection broke. Returns the number of such attempts in a row, or `None` if the run has
/// finished.
pub(crate) async fn outage(
    connection: &Connection,
    run: i64,
    error: &str,
) -> Result<Option<i32>, Fault> {
    connection
        .query(&OUTAGE, &[&run, &error])
        .await?
        .first()
        .map(only)
        .transpose()
}

/// Returns the log position of a run, as the snapshot of this transaction shows it. Returns `None`
/// if the run has finished.
pub(crate) async fn position_in(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    run: i64,
) -> Result<Option<i64>, Fault> {
    query_in(tx, target, &POSITION, &[&run])
        .await?
        .first()
        .map(only)
        .transpose()
}

/// Makes the rows that this run wrote the current generation of the projection, which readers use
/// from now on. Returns `false` if the run is not at the position of the scope's cursor.
pub(crate) async fn swap(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    run: i64,
    version: i32,
) -> Result<bool, Fault> {
    let rows = query_in(tx, target, &SWAP, &[&run, &version]).await?;
    rows.first().map_or(Ok(false), only)
}

/// Sets the cursor of the scope back to the beginning of the log, after the worker deleted the rows
/// of the scope. Normal batches of the scope then write the rows anew.
pub(crate) async fn restart(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    run: i64,
    version: i32,
) -> Result<bool, Fault> {
    Ok(!query_in(tx, target, &RESTART, &[&run, &version])
        .await?
        .is_empty())
}

/// Records in the row of a run that the run has finished.
pub(crate) async fn finish(
    connection: &Connection,
    run: i64,
    error: Option<&str>,
    verdict: Option<&str>,
) -> Result<bool, Fault> {
    let status = if error.is_some() { "failed" } else { "done" };
    Ok(!connection
        .query(&FINISH, &[&run, &status, &error, &verdict])
        .await?
        .is_empty())
}

pub(crate) async fn verdict(connection: &Connection, run: i64, verdict: &str) -> Result<(), Fault> {
    connection
        .query(&VERDICT, &[&run, &verdict])
        .await
        .map(drop)
}

pub(crate) async fn cancel(connection: &Connection, run: i64, why: &str) -> Result<bool, Fault> {
    Ok(!connection
        .act_alone(&CANCEL, &[&run, &why])
        .await?
        .is_empty())
}

/// Locks the row of a run, and returns the generation of rows that readers no longer use. Returns
/// `None` if another worker is deleting the rows of that generation.
pub(crate) async fn lock_retired(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    run: i64,
) -> Result<Option<i32>, Fault> {
    query_in(tx, target, &LOCK_RETIRED, &[&run])
        .await?
        .first()
        .map(only)
        .transpose()
}

pub(crate) async fn cleared(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    run: i64,
) -> Result<(), Fault> {
    query_in(tx, target, &CLEARED, &[&run]).await.map(drop)
}

pub(crate) async fn list(
    connection: &Connection,
    run: Option<i64>,
    tenant: Option<&str>,
    projection: Option<&str>,
    limit: i32,
) -> Result<Vec<ProjectionRun>, Fault> {
    let rows = connection
        .query(&LIST, &[&run, &tenant, &projection, &limit])
        .await?;
    rows.iter().map(read_run).collect()
}

/// Returns a page of runs, the newest first, with ids below `before`.
pub(crate) async fn page(
    connection: &Connection,
    projection: Option<&str>,
    tenant: Option<&str>,
    before: i64,
    limit: i32,
) -> Result<Vec<ProjectionRun>, Fault> {
    let rows = connection
        .query(&PAGE, &[&projection, &tenant, &before, &limit])
        .await?;
    rows.iter().map(read_run).collect()
}

/// Reads a run of a projection from a row of one of the queries that list runs.
fn read_run(row: &Row) -> Result<ProjectionRun, Fault> {
    Ok(ProjectionRun {
        id: named(row, "id")?,
        tenant: named(row, "tenant")?,
        projection: named(row, "projection")?,
        kind: parsed(row, "kind")?,
        status: parsed(row, "status")?,
        generation: named(row, "generation")?,
        position: named(row, "position")?,
        target: named(row, "target")?,
        verdict: named(row, "verdict")?,
        error: named(row, "error")?,
        requested_by: named(row, "requested_by")?,
        inserted_at: named(row, "inserted_at")?,
        started_at: named(row, "started_at")?,
        updated_at: named(row, "updated_at")?,
        finished_at: named(row, "finished_at")?,
        owner: named(row, "owner")?,
    })
}
