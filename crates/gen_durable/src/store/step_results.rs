//! Writes step results in batches. The statement writes a step result only if the claim under which
//! the step ran is still valid.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::{
    Sql,
    connection::{Connection, Param},
    fault::Fault,
    pick::claimed,
    row::{Claim, Claimed, Fields, column, unless_all},
    sql,
    target::Target,
    tx::{Transaction, query_in},
};
use crate::{
    event::NewEvent, history::HistoryRecord, id::Status, new_instance::New, send_signal::SignalRow,
};

sql!(prepared WRITE_RESULTS, "write_step_results.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT
]);
sql!(prepared WRITE_KEYED_RESULTS, "write_keyed_step_results.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT, INT8_ARRAY, INT8_ARRAY, TEXT, FLOAT8, TEXT_ARRAY
]);
sql!(prepared SETTLE_WITH_HISTORY, "write_step_results_with_history.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT,
    TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, FLOAT4_ARRAY, TEXT_ARRAY, TEXT
]);
sql!(prepared SETTLE_KEYED_WITH_HISTORY, "write_keyed_step_results_with_history.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT,
    TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, FLOAT4_ARRAY, TEXT_ARRAY, TEXT, INT8_ARRAY, INT8_ARRAY, TEXT, FLOAT8,
    TEXT_ARRAY
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
sql!(LOCK, "lock.sql", [INT8_ARRAY]);
sql!(WARM, "warm.sql", []);

/// The longest time that a batch of step results waits for a lock that another transaction holds.
/// This time is well below Postgres's deadlock_timeout (1 s), and about as long as a few commits
/// take.
pub(crate) const BATCH_LOCK_TIMEOUT: &str = "20ms";
/// The longest lock wait of a part of a batch of step results, after the whole batch failed to get
/// a lock.
pub(crate) const HALVED_LOCK_TIMEOUT: &str = "2ms";

/// The `attempt_change` of a step result with which the instance enters a step.
pub(crate) const ENTERS: i32 = -1;

/// The result of a step, with the values that the instance's row gets.
#[derive(Debug, Clone)]
pub(crate) struct StepResult {
    pub(crate) claim: Claim,
    pub(crate) status: Status,
    /// The new machine version of the instance. The commit writes it together with an upgraded
    /// state.
    pub(crate) version: Option<i32>,
    /// The step of the instance to write. `None`: the step has not changed.
    pub(crate) step: Option<String>,
    pub(crate) data: Option<String>,
    /// The state of the instance to write. `None`: the state has not changed.
    pub(crate) state: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    /// By how much the number of attempts of the step rises. [`ENTERS`]: the instance enters a
    /// step, and the attempts begin at zero.
    pub(crate) attempt_change: i32,
    pub(crate) delay_seconds: f64,
    /// True if the instance is in a lane or has a partition key: when the instance settles or
    /// waits, the commit promotes its successor in the lane or partition.
    pub(crate) keyed: bool,
    /// True if this worker may run the successor of the instance at once, because the commit of
    /// this step result promotes the successor too.
    pub(crate) takes: bool,
    /// True if the instance ran in a lane of which this worker is the lane worker.
    pub(crate) unclaimed: bool,
    /// The effects that commit together with the step result.
    pub(crate) more: Option<Box<Effects>>,
    /// The history entry that commits together with the step result.
    pub(crate) history: Option<Box<HistoryRecord>>,
}

/// The effects of a step result: wait, spawn, consume signals, write the outbox. Serialized as
/// `gen_durable._write_step_results_with_effects` expects them.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Effects {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) awaits: Option<Vec<&'static str>>,
    /// Ids of signals that the step has already received. These signals do not end the new wait of
    /// the instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) seen: Vec<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) consumed: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<Deadline>,
    /// The time at which the sleep of the instance ends, if the step sleeps until a given time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    /// The repeating timers of the wait that the step begins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) repeats: Vec<Repeat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spawn: Option<Spawn>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) new_instances: Vec<New>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) signals: Vec<SignalRow>,
    /// Events that the step records. The commit appends them to the log after all other effects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<NewEvent>,
    /// The parent of the instance, if the instance settles. The commit then updates the parent's
    /// row too.
    #[serde(rename = "child", skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<i64>,
}

impl Effects {
    fn bytes(&self) -> usize {
        let inserted = self
            .spawn
            .iter()
            .flat_map(|spawn| &spawn.children)
            .chain(&self.new_instances);
        let inserted: usize = inserted.map(|new| new.state.get().len()).sum();
        let repeated: usize = self
            .repeats
            .iter()
            .map(|repeat| repeat.new_instance.state.get().len())
            .sum();
        let recorded: usize = self
            .events
            .iter()
            .map(|event| event.payload.get().len())
            .sum();
        let sent: usize = self
            .signals
            .iter()
            .map(|signal| signal.payload.get().len())
            .sum();
        inserted + repeated + recorded + sent
    }

    /// Returns whether the step result has no effects.
    pub(crate) fn is_nothing(&self) -> bool {
        self.awaits.is_none()
            && self.at.is_none()
            && self.spawn.is_none()
            && self.consumed.is_empty()
            && self.new_instances.is_empty()
            && self.signals.is_empty()
            && self.events.is_empty()
            && self.parent.is_none()
    }
}

/// When a wait of an instance ends without a signal, and the step that the instance then enters.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Deadline {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    pub(crate) step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<RawValue>>,
}

/// A repeating timer of a wait, and the instance that the timer enqueues. Serialized as
/// `gen_durable._insert_repeating_timers` expects it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Repeat {
    pub(crate) due: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining: Option<u32>,
    pub(crate) anchor: Timestamp,
    pub(crate) cycle: String,
    pub(crate) missed: &'static str,
    pub(crate) new_instance: New,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Spawn {
    pub(crate) any: bool,
    pub(crate) taken: &'static str,
    pub(crate) children: Vec<New>,
}

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

/// A step result with its effects, as JSON for `gen_durable._write_step_results_with_effects`.
#[derive(Serialize)]
struct ResultDocument<'a> {
    id: i64,
    epoch: i64,
    seq: i64,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    attempt_change: i32,
    delay: f64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    keyed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<&'a HistoryRecord>,
    #[serde(flatten)]
    more: Option<&'a Effects>,
}

/// Encodes a batch of step results as one JSON document. If the JSON of a step result is invalid,
/// the function returns a fault.
fn document<'a>(results: impl IntoIterator<Item = &'a StepResult>) -> Result<String, Fault> {
    let raw = |text: &'a Option<String>| -> Result<Option<&'a RawValue>, serde_json::Error> {
        text.as_deref()
            .map(serde_json::from_str::<&'a RawValue>)
            .transpose()
    };
    let mut sorted: Vec<&StepResult> = results.into_iter().collect();
    sorted.sort_unstable_by_key(|result| result.claim.id);
    let documents = sorted.into_iter().map(|e| {
        Ok(ResultDocument {
            id: e.claim.id,
            epoch: e.claim.epoch,
            seq: e.claim.seq,
            status: e.status.name(),
            version: e.version,
            step: e.step.as_deref(),
            data: raw(&e.data)?,
            state: raw(&e.state)?,
            result: raw(&e.result)?,
            error: e.error.as_deref(),
            attempt_change: e.attempt_change,
            delay: e.delay_seconds,
            keyed: e.keyed,
            history: e.history.as_deref(),
            more: e.more.as_deref(),
        })
    });
    documents
        .collect::<Result<Vec<_>, serde_json::Error>>()
        .and_then(|documents| serde_json::to_string(&documents))
        .map_err(|error| Fault::unsendable(format!("a step result cannot be encoded: {error}")))
}

impl StepResult {
    /// Returns the approximate number of bytes that the step result adds to a statement.
    pub(crate) fn bytes(&self) -> usize {
        let own: usize = [&self.data, &self.state, &self.result, &self.error]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum();
        own + self.more.as_deref().map_or(0, Effects::bytes)
    }
}

/// The parameters of a batch of step results, as one array per column. The entries are sorted by
/// instance id, because the statement locks the rows of `instances` in that order.
struct Columns<'a> {
    ids: Vec<i64>,
    epochs: Vec<i64>,
    seqs: Vec<i64>,
    statuses: Vec<&'static str>,
    versions: Vec<Option<i32>>,
    steps: Vec<Option<&'a str>>,
    data: Vec<Option<&'a str>>,
    states: Vec<Option<&'a str>>,
    results: Vec<Option<&'a str>>,
    errors: Vec<Option<&'a str>>,
    attempt_changes: Vec<i32>,
    delays: Vec<f64>,
    lock_timeout: Option<&'static str>,
}

impl<'a> Columns<'a> {
    fn of(
        results: impl IntoIterator<Item = &'a StepResult>,
        lock_timeout: Option<&'static str>,
    ) -> Columns<'a> {
        let mut sorted: Vec<&StepResult> = results.into_iter().collect();
        sorted.sort_unstable_by_key(|result| result.claim.id);
        Columns {
            ids: sorted.iter().map(|e| e.claim.id).collect(),
            epochs: sorted.iter().map(|e| e.claim.epoch).collect(),
            seqs: sorted.iter().map(|e| e.claim.seq).collect(),
            statuses: sorted.iter().map(|e| e.status.name()).collect(),
            versions: unless_all(None, sorted.iter().map(|e| e.version)),
            steps: unless_all(None, sorted.iter().map(|e| e.step.as_deref())),
            data: unless_all(None, sorted.iter().map(|e| e.data.as_deref())),
            states: unless_all(None, sorted.iter().map(|e| e.state.as_deref())),
            results: unless_all(None, sorted.iter().map(|e| e.result.as_deref())),
            errors: unless_all(None, sorted.iter().map(|e| e.error.as_deref())),
            attempt_changes: unless_all(0, sorted.iter().map(|e| e.attempt_change)),
            delays: unless_all(0.0, sorted.iter().map(|e| e.delay_seconds)),
            lock_timeout,
        }
    }

    fn params(&self) -> [Param<'_>; 13] {
        [
            &self.ids,
            &self.epochs,
            &self.seqs,
            &self.statuses,
            &self.versions,
            &self.steps,
            &self.data,
            &self.states,
            &self.results,
            &self.errors,
            &self.attempt_changes,
            &self.delays,
            &self.lock_timeout,
        ]
    }
}

/// The history entries of a batch of step results, as one array per column, in the order of
/// `Columns`. A batch without history uses a statement without these arrays, so that it does not
/// pay for them.
struct HistoryColumns<'a> {
    froms: Vec<Option<&'a str>>,
    outcomes: Vec<Option<&'a str>>,
    attempts: Vec<i32>,
    took: Vec<f32>,
    failures: Vec<Option<&'a str>>,
    worker: &'a str,
}

impl<'a> HistoryColumns<'a> {
    fn of(results: &[&'a StepResult]) -> Option<HistoryColumns<'a>> {
        let worker = &results
            .iter()
            .find_map(|result| result.history.as_deref())?
            .worker;
        let mut sorted = results.to_vec();
        sorted.sort_unstable_by_key(|result| result.claim.id);
        let histories = || sorted.iter().map(|result| result.history.as_deref());
        Some(HistoryColumns {
            froms: histories()
                .map(|history| history?.from.as_deref())
                .collect(),
            outcomes: histories().map(|history| Some(history?.outcome)).collect(),
            attempts: unless_all(
                0,
                histories().map(|history| {
                    history.map_or(0, |history| {
                        i32::try_from(history.attempt).unwrap_or(i32::MAX)
                    })
                }),
            ),
            took: histories()
                .map(|history| history.map_or(0.0, |history| history.took))
                .collect(),
            failures: unless_all(None, histories().map(|history| history?.failure.as_deref())),
            worker,
        })
    }

    fn params<'b>(&'b self, columns: &'b Columns<'_>) -> Vec<Param<'b>> {
        let own: [Param<'b>; 6] = [
            &self.froms,
            &self.outcomes,
            &self.attempts,
            &self.took,
            &self.failures,
            &self.worker,
        ];
        columns.params().into_iter().chain(own).collect()
    }
}

/// The instances of a batch of which a worker runs the successor directly after the commit, and
/// that worker.
struct Promotions<'a> {
    taking: Vec<i64>,
    /// The instances of `taking` that are in a lane of which this worker is not the lane worker
    /// yet.
    begins: Vec<i64>,
    taker: SuccessorWorker<'a>,
}

impl Promotions<'_> {
    fn statement<'b>(
        &'b self,
        columns: &'b Columns<'_>,
        history: Option<&'b HistoryColumns<'_>>,
    ) -> (&'static Sql, Vec<Param<'b>>) {
        let Promotions {
            taking,
            begins,
            taker,
        } = self;
        let more: [Param<'b>; 5] = [
            taking,
            begins,
            &taker.worker,
            &taker.lease_seconds,
            &taker.steps,
        ];
        match history {
            None => (
                &WRITE_KEYED_RESULTS,
                columns.params().into_iter().chain(more).collect(),
            ),
            Some(history) => (
                &SETTLE_KEYED_WITH_HISTORY,
                history.params(columns).into_iter().chain(more).collect(),
            ),
        }
    }
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
    if results.iter().any(|result| result.more.is_some()) {
        let document = document(results.iter().copied())?;
        return written(
            &connection
                .query(&WRITE_WITH_EFFECTS, &[&document, &Some(lock_timeout)])
                .await?,
        );
    }
    let columns = Columns::of(results.iter().copied(), Some(lock_timeout));
    let history = HistoryColumns::of(&results);
    if results.iter().any(|result| result.keyed) {
        let taking = results
            .iter()
            .filter(|result| result.takes && taker.is_some());
        let promotions = Promotions {
            taking: taking.clone().map(|result| result.claim.id).collect(),
            begins: taking
                .filter(|result| !result.unclaimed)
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
                .query(&SETTLE_WITH_HISTORY, &history.params(&columns))
                .await?,
        ),
    }
}

/// Prepares a new connection for commits: makes the server plan the functions that commits of step
/// results call.
pub(crate) async fn warm(connection: &Connection) -> Result<(), Fault> {
    connection.query(&WARM, &[]).await.map(drop)
}

/// Locks these rows of `instances` until the open transaction ends, without waiting. Returns the
/// ids of the rows that another transaction has locked.
pub(crate) async fn lock(connection: &Connection, ids: &[i64]) -> Result<HashSet<i64>, Fault> {
    connection
        .query(&LOCK, &[&ids])
        .await?
        .iter()
        .map(|row| column(row, 0))
        .collect()
}

/// Writes one step result in the step's own transaction. Returns `None` if this worker has lost the
/// claim; the caller must then not commit the transaction.
pub(crate) async fn write_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    result: &StepResult,
) -> Result<Option<NextInputs>, Fault> {
    let commit_within = format!("{}ms", target.statement_timeout().as_millis());
    // `_write_step_results_with_effects` writes a step result that has history, or that may free a
    // lane or a partition key, even if the step result has no effects. So the statement for plain
    // step results needs no variant for history, lanes and partition keys.
    let rows = if result.more.is_some() || result.keyed || result.history.is_some() {
        let document = document([result])?;
        query_in(
            tx,
            target,
            &WRITE_WITH_EFFECTS_WITHIN,
            &[&document, &commit_within],
        )
        .await?
    } else {
        let columns = Columns::of([result], None);
        let mut params = columns.params().to_vec();
        params.push(&commit_within);
        query_in(tx, target, &WRITE_RESULTS_WITHIN, &params).await?
    };
    Ok(written(&rows)?.found.into_values().next())
}

fn written(rows: &[impl Fields]) -> Result<Written, Fault> {
    let found = |row| {
        Ok((
            column(row, 0)?,
            NextInputs {
                inbox: column(row, 1)?,
                children: column(row, 2)?,
            },
        ))
    };
    Ok(Written {
        found: rows.iter().map(found).collect::<Result<_, Fault>>()?,
        promoted: Vec::new(),
    })
}

/// Reads the rows that the statement for a keyed batch of step results returns. The first row has
/// the ids of the written step results. Each other row has either the inputs of an instance that
/// runs ahead, or a successor and the id of its predecessor.
fn written_keyed(rows: &[Row]) -> Result<Written, Fault> {
    let mut written = Written::default();
    let Some((first, rows)) = rows.split_first() else {
        return Ok(written);
    };
    let now: Timestamp = column(first, 12)?;
    written.found = column::<Vec<i64>>(first, 24)?
        .into_iter()
        .map(|id| (id, NextInputs::default()))
        .collect();
    for row in rows {
        match column::<Option<i64>>(row, 23)? {
            None => {
                let found = NextInputs {
                    inbox: column(row, 20)?,
                    children: column(row, 21)?,
                };
                written.found.insert(column(row, 0)?, found);
            }
            Some(predecessor_id) => {
                let unclaimed = column(row, 27)?;
                written.promoted.push((
                    predecessor_id,
                    Claimed {
                        unclaimed,
                        ..claimed(row, now)?
                    },
                ));
            }
        }
    }
    Ok(written)
}
