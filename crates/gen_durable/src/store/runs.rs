//! Statements about the runs of a projection scope: replays, rebuilds and verifications of the
//! projection's rows.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    projections::{LogRow, log_row, unexpected},
    row::column,
    sql,
    target::Target,
    tx::{Tx, query_in},
};

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
sql!(LOCK_RETIRED, "run_retired_lock.sql", [INT8]);
sql!(CLEARED, "run_cleared.sql", [INT8]);
sql!(POSITION, "run_position.sql", [INT8]);

/// The kind of a run of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunKind {
    /// A replay applies events of the log again to the existing rows of the projection.
    Replay,
    /// A rebuild in place deletes the rows of the projection, and applies all events of the log
    /// again.
    Rebuild,
    /// A shadow rebuild applies all events to a second set of rows (a new generation), compares
    /// these rows with the rows of the current generation of the projection, and then lets readers
    /// use the new rows.
    Shadow,
    /// A verification applies all events to a second set of rows (a new generation), compares these
    /// rows with the rows of the current generation of the projection, and reports whether they are
    /// equal.
    Verify,
}

impl RunKind {
    /// Returns the name of the kind of run, as the database stores it.
    pub const fn name(self) -> &'static str {
        match self {
            RunKind::Replay => "replay",
            RunKind::Rebuild => "rebuild",
            RunKind::Shadow => "shadow",
            RunKind::Verify => "verify",
        }
    }

    fn named(name: &str) -> Result<RunKind, Fault> {
        let all = [
            RunKind::Replay,
            RunKind::Rebuild,
            RunKind::Shadow,
            RunKind::Verify,
        ];
        all.into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| unexpected(name))
    }
}

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
    rows.first().map(|row| column(row, 0)).transpose()
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
        .map(|row| column(row, 0))
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
    rows.first().map_or(Ok(0), |row| column(row, 0))
}

/// A run of a projection scope on which a worker has to work.
#[derive(Debug, Clone)]
pub(crate) struct Due {
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
) -> Result<Vec<Due>, Fault> {
    let (names, versions): (Vec<&str>, Vec<i32>) = builds.iter().copied().unzip();
    let rows = connection
        .query(&DUE, &[&names, &versions, &worker])
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Due {
                id: column(row, 0)?,
                tenant: column(row, 1)?,
                projection: column(row, 2)?,
                kind: RunKind::named(&column::<String>(row, 3)?)?,
                retired: column(row, 5)?,
            })
        })
        .collect()
}

/// The parameters with which a worker opens a batch of events of a run.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
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
pub(crate) struct Opened {
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
pub(crate) async fn open(tx: &mut Tx, target: &Target, ask: &Ask<'_>) -> Result<Opened, Fault> {
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
    let Some((first, rest)) = rows.split_first() else {
        return Err(unexpected("no row"));
    };
    match column::<String>(first, 0)?.as_str() {
        "go" => {}
        "outdated" => {
            return Ok(Opened {
                run: Held::Outdated,
                events: Vec::new(),
            });
        }
        _ => {
            return Ok(Opened {
                run: Held::Theirs,
                events: Vec::new(),
            });
        }
    }
    let standing = Standing {
        position: column(first, 1)?,
        run_generation: column(first, 2)?,
        applied: column(first, 3)?,
        scope_position: column(first, 4)?,
        generation: column(first, 5)?,
        force: column(first, 9)?,
        target: column(first, 10)?,
    };
    Ok(Opened {
        run: Held::Ours(standing),
        events: rest
            .iter()
            .map(|row| log_row(row, 11))
            .collect::<Result<_, _>>()?,
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
    tx: &mut Tx,
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
    tx: &mut Tx,
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
        .map(|row| column(row, 0))
        .transpose()
}

/// Returns the log position of a run, as the snapshot of this transaction shows it. Returns `None`
/// if the run has finished.
pub(crate) async fn position_in(
    tx: &mut Tx,
    target: &Target,
    run: i64,
) -> Result<Option<i64>, Fault> {
    query_in(tx, target, &POSITION, &[&run])
        .await?
        .first()
        .map(|row| column(row, 0))
        .transpose()
}

/// Makes the rows that this run wrote the current generation of the projection, which readers use
/// from now on. Returns `false` if the run is not at the position of the scope's cursor.
pub(crate) async fn swap(
    tx: &mut Tx,
    target: &Target,
    run: i64,
    version: i32,
) -> Result<bool, Fault> {
    let rows = query_in(tx, target, &SWAP, &[&run, &version]).await?;
    rows.first().map_or(Ok(false), |row| column(row, 0))
}

/// Sets the cursor of the scope back to the beginning of the log, after the worker deleted the rows
/// of the scope. Normal batches of the scope then write the rows anew.
pub(crate) async fn restart(
    tx: &mut Tx,
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
    tx: &mut Tx,
    target: &Target,
    run: i64,
) -> Result<Option<i32>, Fault> {
    query_in(tx, target, &LOCK_RETIRED, &[&run])
        .await?
        .first()
        .map(|row| column(row, 0))
        .transpose()
}

pub(crate) async fn cleared(tx: &mut Tx, target: &Target, run: i64) -> Result<(), Fault> {
    query_in(tx, target, &CLEARED, &[&run]).await.map(drop)
}

/// A replay, a rebuild or a verification of a projection.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // The columns of the row, by their names.
pub struct ProjectionRun {
    pub id: i64,
    pub tenant: String,
    pub projection: String,
    pub kind: RunKind,
    /// The status of the run: `pending`, `running`, `done`, `failed` or `cancelled`.
    pub status: String,
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

/// Reads a run of a projection from a row of one of the queries that list runs.
pub(super) fn read_run(row: &Row) -> Result<ProjectionRun, Fault> {
    Ok(ProjectionRun {
        id: column(row, 0)?,
        tenant: column(row, 1)?,
        projection: column(row, 2)?,
        kind: RunKind::named(&column::<String>(row, 3)?)?,
        status: column(row, 4)?,
        generation: column(row, 5)?,
        position: column(row, 6)?,
        target: column(row, 7)?,
        verdict: column(row, 8)?,
        error: column(row, 9)?,
        requested_by: column(row, 10)?,
        inserted_at: column(row, 11)?,
        started_at: column(row, 12)?,
        updated_at: column(row, 13)?,
        finished_at: column(row, 14)?,
        owner: column(row, 15)?,
    })
}
