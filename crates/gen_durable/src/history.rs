//! The history of an instance: how much of it a machine records, and the entry that a step result
//! adds.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::{engine::execute::Decision, store::row::Claimed};

/// How much history the steps of a machine record: [`Machine::HISTORY`](crate::Machine::HISTORY),
/// [`Job::HISTORY`](crate::Job::HISTORY). Acts from outside (a cancel, the loss of a worker, an
/// operator's retry) are recorded in any case.
///
/// An entry is one row, written by the commit that it describes. It is kept as long as its
/// instance, up to the last 1,000 commits per instance. `durable show` and
/// [`Inspect::history`](crate::Inspect::story) read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum HistoryPolicy {
    /// One entry per commit. The default of a machine.
    All,
    /// Only retries, failures and stops. The default of a job.
    Failures,
    /// No entries: for large numbers of instances with no need for a history.
    Off,
}

/// The commit number from which on the history of an instance is trimmed.
const TRIM_FROM: i64 = 1_000;
/// The trim runs once per this many commits: in the commit that reaches the multiple, and in the
/// one after it, because the first may not be the commit of a step.
const TRIM_EVERY: i64 = 100;

/// The history entry of one step result, in the JSON form that `gen_durable._record_result_history` reads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct HistoryRecord {
    /// The step that ran. `None`: no entry is written, and the history is only trimmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    pub(crate) outcome: &'static str,
    pub(crate) attempt: u32,
    /// The duration of the step, in seconds.
    pub(crate) took: f32,
    /// The failure that a handler recovered from, if the row itself does not keep it.
    #[serde(rename = "error", skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    #[serde(serialize_with = "shared")]
    pub(crate) worker: Arc<str>,
}

fn shared<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

impl HistoryRecord {
    /// Returns the history entry for a decision, or `None` if the machine does not record it.
    pub(crate) fn of(row: &Claimed, decision: &Decision, worker: &Arc<str>) -> Option<Box<HistoryRecord>> {
        let went_wrong = decision.failure.is_some()
            || matches!(
                decision.outcome,
                "retry" | "failure" | "stop" | "outage" | "stuck"
            );
        let recorded = match decision.history {
            HistoryPolicy::All => true,
            HistoryPolicy::Failures => went_wrong,
            HistoryPolicy::Off => return None,
        };
        let commit = row.step_seq + 1;
        let trims = commit >= TRIM_FROM && commit % TRIM_EVERY < 2;
        (recorded || trims).then(|| {
            Box::new(HistoryRecord {
                from: recorded.then(|| row.step.clone()),
                outcome: decision.outcome,
                attempt: row.attempt,
                took: decision.took.as_secs_f32(),
                failure: decision
                    .failure
                    .clone()
                    .filter(|_| decision.error.is_none()),
                worker: worker.clone(),
            })
        })
    }
}
