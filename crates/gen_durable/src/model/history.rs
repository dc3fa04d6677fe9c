//! The history of an instance, and the edges between steps that histories contain.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::json::seconds;
use crate::{id::Status, names::names};

/// An entry of an instance's history: one commit that changed the instance. The fields of `cursor`
/// serialize as fields of the entry.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The position of the entry in the history of its instance.
    #[serde(flatten)]
    pub cursor: HistoryCursor,
    /// When the commit changed the instance.
    pub at: Timestamp,
    /// The step of the instance before the commit of this history entry.
    pub from: String,
    /// The step of the instance after the commit of this history entry.
    pub to: String,
    /// The kind of the entry: a step result or an act from outside.
    pub outcome: HistoryOutcome,
    /// The status of the instance after the commit. `Executing`: the worker ran ahead, so it began
    /// the next step of the instance on the same claim.
    pub status: Status,
    /// The number of attempts of the step before the attempt of this history entry.
    pub attempt: i32,
    /// How long the step ran. `None`: the entry records an act from outside and not a step.
    #[serde(rename = "took_seconds", serialize_with = "seconds::optional")]
    pub took: Option<Duration>,
    /// When the wait or the stuck status that this entry began has ended, if the entry began one.
    pub woken_at: Option<Timestamp>,
    /// The reason why the wait or the stuck status of the instance ended: `signal paid`,
    /// `children`, `another build`.
    pub cause: Option<String>,
    /// The first 1,000 characters of the step's error.
    pub error: Option<String>,
    /// The worker that ran the step, or that crashed while it ran the step, as `host/pid`.
    pub worker: Option<String>,
}

/// The position of an entry in the history of an instance: the number of commits and the number of
/// claims that the instance had. A later entry has a larger position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HistoryCursor {
    /// The `step_seq` of the instance after the commit of the history entry.
    pub step_seq: i64,
    /// The `claim_epoch` of the instance after the commit of the history entry.
    pub claim_epoch: i64,
}

/// A transition of instances from one step to another, aggregated over instances.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Edge {
    /// The name of the machine in which the transition happened.
    pub machine: String,
    /// The step result, or the act from outside, that caused the transition.
    pub outcome: HistoryOutcome,
    /// The step of the instance before the transition.
    pub from: String,
    /// The step of the instance after the transition.
    pub to: String,
    /// How often the transition happened, among the history rows that the query read.
    pub count: i64,
    /// The average run time of the step `from` before this transition.
    #[serde(rename = "took_seconds", serialize_with = "seconds::optional")]
    pub took: Option<Duration>,
    /// When an instance last made this transition.
    pub last_at: Timestamp,
}

/// What a history entry records: the result of a step, or an act from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum HistoryOutcome {
    /// The step returned `next`.
    Next,
    /// The step returned `sleep`.
    Sleep,
    /// The step returned `wait_for`.
    Wait,
    /// The step returned `spawn`.
    Spawn,
    /// The step returned `retry_after`, or postponed itself.
    Retry,
    /// The step failed, and runs again later or has failed for good.
    Failure,
    /// The step returned `done`.
    Done,
    /// The step returned `fail`.
    Fail,
    /// The engine's own database could not be reached while the step ran; the step runs again.
    Outage,
    /// The step takes limits that were not known before its claim; the instance waits for them.
    Limit,
    /// The engine set the instance aside for an operator.
    Stuck,
    /// The deadline of a wait passed.
    Deadline,
    /// A live worker released the claim of an expired worker.
    Reap,
    /// A caller cancelled the instance.
    Cancel,
    /// An operator retried the instance.
    OperatorRetry,
    /// A newer build wrote an outcome that this build does not know.
    Unknown,
}

names!(HistoryOutcome, "outcome", {
    Next => "next",
    Sleep => "sleep",
    Wait => "wait",
    Spawn => "spawn",
    Retry => "retry",
    Failure => "failure",
    Done => "done",
    Fail => "fail",
    Outage => "outage",
    Limit => "limit",
    Stuck => "stuck",
    Deadline => "deadline",
    Reap => "reap",
    Cancel => "cancel",
    OperatorRetry => "operator_retry",
    Unknown => "unknown",
});

impl HistoryOutcome {
    /// Returns the outcome with this name. While two builds run, the newer one may write an outcome
    /// that this build does not know; a reader must not fail because of it.
    pub(crate) fn read(name: &str) -> HistoryOutcome {
        name.parse().unwrap_or(HistoryOutcome::Unknown)
    }
}

/// The history entry of one step result, in the JSON form that `gen_durable._record_result_history`
/// reads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct HistoryRecord {
    /// The step that ran. `None` means that the commit inserts no history entry and only trims the
    /// history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    pub(crate) outcome: HistoryOutcome,
    pub(crate) attempt: u32,
    /// The duration of the step, in seconds.
    pub(crate) took: f32,
    /// The failure that a handler recovered from, if `last_error` of the instance does not keep it.
    #[serde(rename = "error", skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    #[serde(serialize_with = "shared")]
    pub(crate) worker: Arc<str>,
}

fn shared<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

#[cfg(test)]
mod tests {
    use super::HistoryOutcome;

    #[test]
    fn an_outcome_that_this_build_does_not_know_is_read_as_unknown() {
        assert_eq!(HistoryOutcome::read("done"), HistoryOutcome::Done);
        assert_eq!(
            HistoryOutcome::read("<b>later</b>"),
            HistoryOutcome::Unknown
        );
    }
}
