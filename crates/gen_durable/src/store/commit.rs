//! Writes step results in batches. The statement writes a step result only if the claim under which
//! the step ran is still valid.

mod columns;

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use tokio_postgres::Row;

use self::columns::{HistoryColumns, Promotions, ResultColumns};

use super::{
    connection::Connection,
    fault::Fault,
    pick::{ClaimedColumns, claimed},
    row::{Claimed, Fields, column, columns, only},
    sql,
    target::Target,
    tx::{Session, query_in},
};
use crate::model::step_result::StepResult;

sql!(prepared WRITE_RESULTS, "write_step_results.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT
]);
sql!(prepared WRITE_KEYED_RESULTS, "write_keyed_step_results.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT, INT8_ARRAY, TEXT, FLOAT8, TEXT_ARRAY
]);
sql!(prepared WRITE_RESULTS_WITH_HISTORY, "write_step_results_with_history.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT,
    TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, FLOAT4_ARRAY, TEXT_ARRAY, TEXT
]);
sql!(prepared WRITE_KEYED_RESULTS_WITH_HISTORY, "write_keyed_step_results_with_history.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT,
    TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, FLOAT4_ARRAY, TEXT_ARRAY, TEXT, INT8_ARRAY, TEXT, FLOAT8, TEXT_ARRAY
]);
sql!(prepared WRITE_WITH_EFFECTS, "write_step_results_with_effects.sql", [TEXT, TEXT]);
sql!(
    WRITE_RESULTS_WITHIN,
    "write_step_results_within.sql",
    [
        INT8_ARRAY,
        INT8_ARRAY,
        INT8_ARRAY,
        TEXT_ARRAY,
        INT4_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        INT4_ARRAY,
        FLOAT8_ARRAY,
        TEXT,
        TEXT
    ]
);
sql!(
    WRITE_WITH_EFFECTS_WITHIN,
    "write_step_results_with_effects_within.sql",
    [TEXT, TEXT]
);
sql!(LOCKED, "locked.sql", [INT8_ARRAY]);
sql!(WARM, "warm.sql", []);

/// The longest time that a batch of step results waits for a lock that another transaction holds.
/// This time is well below Postgres's deadlock_timeout (1 s), and about as long as a few commits
/// take.
pub(crate) const BATCH_LOCK_TIMEOUT: &str = "20ms";
/// The longest lock wait of a part of a batch of step results, after the whole batch failed to get
/// a lock.
pub(crate) const HALVED_LOCK_TIMEOUT: &str = "2ms";

/// The inputs of the next step of an instance that runs ahead: its signals and its children, as
/// JSON.
#[derive(Debug, Clone, Default)]
pub(crate) struct NextInputs {
    pub(crate) inbox: Option<String>,
    pub(crate) children: Option<String>,
}

/// The outcome of a commit of a batch of step results.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The step results that the commit wrote, by instance id. The fence rejected every step result
    /// that is missing in this map.
    pub(crate) found: HashMap<i64, NextInputs>,
    /// The promoted successors that this worker runs now, each with the id of its predecessor.
    pub(crate) promoted: Vec<(i64, Claimed)>,
}

/// The worker that runs promoted successors in lanes and partitions directly after the commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuccessorWorker<'a> {
    pub(crate) worker: &'a str,
    pub(crate) lease_seconds: f64,
    pub(crate) steps: &'a [String],
}

impl SuccessorWorker<'_> {
    /// The value for no worker: the pickers claim the promoted successors.
    const NONE: SuccessorWorker<'static> = SuccessorWorker {
        worker: "00000000-0000-0000-0000-000000000000",
        lease_seconds: 0.0,
        steps: &[],
    };
}

/// Encodes a batch of step results as one JSON document, sorted by instance id, because the
/// statement locks the rows of `instances` in that order.
fn document<'a>(results: impl IntoIterator<Item = &'a StepResult>) -> Result<String, Fault> {
    let mut sorted: Vec<&StepResult> = results.into_iter().collect();
    sorted.sort_unstable_by_key(|result| result.claim.id);
    serde_json::to_string(&sorted)
        .map_err(|error| Fault::unsendable(format!("a step result cannot be encoded: {error}")))
}

/// Writes a batch of step results in one statement, which is one transaction. Either no step result
/// of the batch has effects, or all have. The statement waits briefly for row locks
/// (`lock_timeout`), then fails as `Busy`. Returns the step results that the statement wrote. The
/// fence rejected all other step results, because this worker had lost their claims.
///
/// If a step result frees a lane or a partition key, the statement promotes the successor. The
/// worker `taker`, if there is one, then runs the successor.
pub(crate) async fn write<'a>(
    connection: &Connection,
    results: impl IntoIterator<Item = &'a StepResult>,
    taker: Option<SuccessorWorker<'_>>,
    lock_timeout: &'static str,
) -> Result<Written, Fault> {
    let results: Vec<&StepResult> = results.into_iter().collect();
    if results.iter().any(|result| result.effects.is_some()) {
        let document = document(results.iter().copied())?;
        return written(
            &connection
                .query(&WRITE_WITH_EFFECTS, &[&document, &Some(lock_timeout)])
                .await?,
        );
    }
    let columns = ResultColumns::of(results.iter().copied(), Some(lock_timeout));
    let history = HistoryColumns::of(&results);
    if results.iter().any(|result| result.keyed) {
        let promotions = Promotions {
            taking: results
                .iter()
                .filter(|result| result.takes && taker.is_some())
                .map(|result| result.claim.id)
                .collect(),
            taker: taker.unwrap_or(SuccessorWorker::NONE),
        };
        let (statement, params) = promotions.statement(&columns, history.as_ref());
        return written_keyed(&connection.query(statement, &params).await?);
    }
    match &history {
        None => written(&connection.query(&WRITE_RESULTS, &columns.params()).await?),
        Some(history) => written(
            &connection
                .query(&WRITE_RESULTS_WITH_HISTORY, &history.params(&columns))
                .await?,
        ),
    }
}

/// Prepares a new connection for commits: makes the server plan the functions that commits of step
/// results call.
pub(crate) async fn warm(connection: &Connection) -> Result<(), Fault> {
    connection.query(&WARM, &[]).await.map(drop)
}

/// Returns which of these rows of `instances` another transaction has locked, without waiting.
pub(crate) async fn locked(connection: &Connection, ids: &[i64]) -> Result<HashSet<i64>, Fault> {
    connection
        .query(&LOCKED, &[&ids])
        .await?
        .iter()
        .map(only)
        .collect()
}

/// Writes one step result in the step's own transaction. Returns `None` if this worker has lost the
/// claim; the caller must then not commit the transaction.
pub(crate) async fn write_within<T: Session>(
    tx: &mut T,
    target: &Target,
    result: &StepResult,
) -> Result<Option<NextInputs>, Fault> {
    let commit_within = format!("{}ms", target.statement_timeout().as_millis());
    // `_write_step_results_with_effects` writes a step result that has history, or that may free a
    // lane or a partition key, even if the step result has no effects. So the statement for plain
    // step results needs no variant for history, lanes and partition keys.
    let rows = if result.effects.is_some() || result.keyed || result.history.is_some() {
        let document = document([result])?;
        query_in(
            tx,
            target,
            &WRITE_WITH_EFFECTS_WITHIN,
            &[&document, &commit_within],
        )
        .await?
    } else {
        let columns = ResultColumns::of([result], None);
        let mut params = columns.params().to_vec();
        params.push(&commit_within);
        query_in(tx, target, &WRITE_RESULTS_WITHIN, &params).await?
    };
    Ok(written(&rows)?.found.into_values().next())
}

columns!(
    /// The columns of the statements that return the inputs of the next steps of instances.
    InputColumns { id, inbox, children }
);

/// Reads the inputs of the next steps of instances, by instance id.
pub(super) fn next_inputs(rows: &[impl Fields]) -> Result<HashMap<i64, NextInputs>, Fault> {
    let at = InputColumns::of(rows)?;
    let read = |row| {
        Ok((
            column(row, at.id)?,
            NextInputs {
                inbox: column(row, at.inbox)?,
                children: column(row, at.children)?,
            },
        ))
    };
    rows.iter().map(read).collect()
}

fn written(rows: &[impl Fields]) -> Result<Written, Fault> {
    Ok(Written {
        found: next_inputs(rows)?,
        promoted: Vec::new(),
    })
}

/// Reads the rows that the statement for a keyed batch of step results returns. The first row has
/// the ids of the written step results. Each other row has either the inputs of an instance that
/// runs ahead, or a successor and the id of its predecessor.
fn written_keyed(rows: &[Row]) -> Result<Written, Fault> {
    let mut written = Written::default();
    let at = ClaimedColumns::of(rows)?;
    let Some((first, rows)) = rows.split_first() else {
        return Ok(written);
    };
    let now: Timestamp = column(first, at.eligible_at)?;
    written.found = column::<Vec<i64>>(first, at.marks)?
        .into_iter()
        .map(|id| (id, NextInputs::default()))
        .collect();
    for row in rows {
        match column::<Option<i64>>(row, at.predecessor_id)? {
            None => {
                let found = NextInputs {
                    inbox: column(row, at.inbox)?,
                    children: column(row, at.children)?,
                };
                written.found.insert(column(row, at.id)?, found);
            }
            Some(predecessor_id) => {
                written
                    .promoted
                    .push((predecessor_id, claimed(row, at, now)?));
            }
        }
    }
    Ok(written)
}
