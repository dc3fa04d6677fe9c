//! Runs of a scope: replays, rebuilds, verifications.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    projections::{LogRow, log_row, unexpected},
    row::column,
    sql,
    target::Target,
    tx::{Tx, ride},
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

/// What a run is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunKind {
    /// Apply events again to the rows that are there.
    Replay,
    /// Clear the rows, and apply everything again.
    Rebuild,
    /// Apply everything to rows of another generation, compare, and let readers see those from then on.
    Shadow,
    /// Apply everything to rows of another generation, compare, and say what came of it.
    Verify,
}

impl RunKind {
    /// As it stands in the row.
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

/// A run that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) tenant: String,
    pub(crate) projection: String,
    pub(crate) kind: RunKind,
    pub(crate) from: i64,
    pub(crate) to: Option<i64>,
    pub(crate) anyway: bool,
    pub(crate) by: String,
    /// Only by a build with this version of the projection; `None`: with any that is not older than the rows.
    pub(crate) version: Option<i32>,
}

/// Ask for a run. `None`: there is no such scope, or one is under way there.
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
        anyway,
        by,
        version,
    } = request;
    let params: &[Param<'_>] = &[
        tenant,
        projection,
        &kind.name(),
        from,
        to,
        anyway,
        by,
        version,
    ];
    let rows = connection.query(&REQUEST, params).await?;
    rows.first().map(|row| column(row, 0)).transpose()
}

/// Asks for a run of every tenant's scope of a projection; the tenant of the request is not used. Returns the numbers of the
/// runs: scopes in which one is open are left out.
pub(crate) async fn request_all(
    connection: &Connection,
    request: &Request,
) -> Result<Vec<i64>, Fault> {
    let Request {
        projection,
        kind,
        from,
        to,
        anyway,
        by,
        ..
    } = request;
    let params: &[Param<'_>] = &[projection, &kind.name(), from, to, anyway, by];
    connection
        .query(&REQUEST_ALL, params)
        .await?
        .iter()
        .map(|row| column(row, 0))
        .collect()
}

/// Deletes finished runs and resolved failures that ended this long ago, up to `limit` of each. Returns how many of the more
/// numerous.
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

/// A run that a worker has to do something about.
#[derive(Debug, Clone)]
pub(crate) struct Due {
    pub(crate) id: i64,
    pub(crate) tenant: String,
    pub(crate) projection: String,
    pub(crate) kind: RunKind,
    /// It is over, and has left rows that nobody reads.
    pub(crate) retired: Option<i32>,
}

/// Runs for whoever has these projections in these versions.
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

/// What is asked for when a batch of a run begins.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) run: i64,
    pub(crate) version: i32,
    pub(crate) worker: &'a str,
    pub(crate) names: &'a [&'static str],
    pub(crate) limit: i32,
    pub(crate) bytes: i64,
    /// No further than this.
    pub(crate) to: Option<i64>,
    /// Live stands still until this transaction ends.
    pub(crate) scope: bool,
}

/// Where a run stands, and what comes next.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) run: Held,
    pub(crate) events: Vec<LogRow>,
}

/// Whether a run is ours for this batch.
#[derive(Debug)]
pub(crate) enum Held {
    /// It is, and stands there.
    Ours(Standing),
    /// It is over, or somebody else is at it, or should be.
    Theirs,
    /// An older build has begun it, or a replay finds the rows of one: nobody can go on with it.
    Outdated,
}

#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) position: i64,
    pub(crate) run_generation: i32,
    pub(crate) applied: i64,
    pub(crate) scope_position: i64,
    pub(crate) generation: i32,
    pub(crate) anyway: bool,
    /// Where it ends, if that is not where live stands.
    pub(crate) target: Option<i64>,
}

/// Begin a batch of a run.
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
    let rows = ride(tx, target, &OPEN, params).await?;
    let Some((first, rest)) = rows.split_first() else {
        return Err(unexpected("an empty answer"));
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
        anyway: column(first, 9)?,
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

/// The move of a run from one position to another.
#[derive(Debug)]
pub(crate) struct Advance<'a> {
    pub(crate) run: i64,
    pub(crate) old: i64,
    pub(crate) new: i64,
    /// The running hash of all that was applied.
    pub(crate) applied: i64,
    /// Whether the events were applied, or passed over.
    pub(crate) has_applied: bool,
    pub(crate) worker: &'a str,
    pub(crate) owned_seconds: f64,
}

/// Ends a batch of a run. `false`: the run is not where it was found, or is over.
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
    Ok(!ride(tx, target, &ADVANCE, params).await?.is_empty())
}

/// Records that a run passes over an event: part of the transaction that moves the run past it.
pub(crate) async fn pass_over(
    tx: &mut Tx,
    target: &Target,
    run: i64,
    position: i64,
    error: &str,
) -> Result<(), Fault> {
    ride(tx, target, &PASS_OVER, &[&run, &position, &error])
        .await
        .map(drop)
}

/// Counts a try of a run that the server cancelled, or whose connection broke. Returns how many there were in a row, or
/// `None` if the run is over.
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

/// How far a run has come, as a transaction's own snapshot has it. `None`: it is over.
pub(crate) async fn position_in(
    tx: &mut Tx,
    target: &Target,
    run: i64,
) -> Result<Option<i64>, Fault> {
    ride(tx, target, &POSITION, &[&run])
        .await?
        .first()
        .map(|row| column(row, 0))
        .transpose()
}

/// Readers see the rows of this run from now on.
pub(crate) async fn swap(
    tx: &mut Tx,
    target: &Target,
    run: i64,
    version: i32,
) -> Result<bool, Fault> {
    let rows = ride(tx, target, &SWAP, &[&run, &version]).await?;
    rows.first().map_or(Ok(false), |row| column(row, 0))
}

/// The rows are cleared: live begins anew.
pub(crate) async fn restart(
    tx: &mut Tx,
    target: &Target,
    run: i64,
    version: i32,
) -> Result<bool, Fault> {
    Ok(!ride(tx, target, &RESTART, &[&run, &version])
        .await?
        .is_empty())
}

/// It is over.
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

/// The generation that a run left behind, if nobody else is clearing it.
pub(crate) async fn lock_retired(
    tx: &mut Tx,
    target: &Target,
    run: i64,
) -> Result<Option<i32>, Fault> {
    ride(tx, target, &LOCK_RETIRED, &[&run])
        .await?
        .first()
        .map(|row| column(row, 0))
        .transpose()
}

pub(crate) async fn cleared(tx: &mut Tx, target: &Target, run: i64) -> Result<(), Fault> {
    ride(tx, target, &CLEARED, &[&run]).await.map(drop)
}

/// A replay, a rebuild or a verification.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // The columns of the row, by their names.
pub struct ProjectionRun {
    pub id: i64,
    pub tenant: String,
    pub projection: String,
    pub kind: RunKind,
    /// `pending`, `running`, `done`, `failed` or `cancelled`.
    pub status: String,
    pub generation: Option<i32>,
    /// How far it has come…
    pub position: i64,
    /// …of how much.
    pub target: Option<i64>,
    /// What came of it: "equal at position 42: …".
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
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.finished_at.is_some()
    }

    /// Of a verification or a rebuild in a shadow: whether it came to the same as the rows that are read. `None`: nothing
    /// was compared, or not yet.
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

/// A run, as both lists answer it.
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
