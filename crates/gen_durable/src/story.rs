//! What is told of an instance: how much a machine tells, and the line that an ending adds to the story.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::{engine::execute::Decision, store::row::Claimed};

/// How much is told of what the steps of a machine decided: [`Machine::STORY`](crate::Machine::STORY),
/// [`Job::STORY`](crate::Job::STORY). What is done to an instance from outside (a cancel, the death of its process, an
/// operator's retry) is told in any case.
///
/// A line is a row, written by the commit that it tells of. It is kept as long as its instance, the last 1,000 commits of it
/// at the most, and read by `durable show` and [`Inspect::story`](crate::Inspect::story).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Story {
    /// Every commit: what a machine does unless it says otherwise.
    All,
    /// Only what went wrong: retries, failures, stops. What a job does unless it says otherwise.
    Failures,
    /// Nothing: for what is many, and dull.
    Off,
}

/// From this commit on a story is trimmed…
const TRIM_FROM: i64 = 1_000;
/// …with every so many commits: by the one that makes it so many, or, if that was no step's, by the next.
const TRIM_EVERY: i64 = 100;

/// What the commit of an ending tells, in the words of `gen_durable.tell_endings`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Tale {
    /// The step that ran. `None`: nothing is told, and the story is trimmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    pub(crate) outcome: &'static str,
    pub(crate) attempt: u32,
    /// How long the step ran, in seconds.
    pub(crate) took: f32,
    /// The failure that a handler dealt with, where the row forgets it.
    #[serde(rename = "error", skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    #[serde(serialize_with = "shared")]
    pub(crate) worker: Arc<str>,
}

fn shared<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

impl Tale {
    /// What is to be told of a decision, if anything is.
    pub(crate) fn of(row: &Claimed, decision: &Decision, worker: &Arc<str>) -> Option<Box<Tale>> {
        let went_wrong = decision.failure.is_some()
            || matches!(
                decision.outcome,
                "retry" | "failure" | "stop" | "outage" | "stuck"
            );
        let told = match decision.story {
            Story::All => true,
            Story::Failures => went_wrong,
            Story::Off => return None,
        };
        let commit = row.step_seq + 1;
        let trims = commit >= TRIM_FROM && commit % TRIM_EVERY < 2;
        (told || trims).then(|| {
            Box::new(Tale {
                from: told.then(|| row.step.clone()),
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
