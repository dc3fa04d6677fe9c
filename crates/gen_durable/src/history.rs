//! The history of an instance: how much of it a machine records, and the entry that a step result
//! adds.

use std::sync::Arc;

use crate::{
    engine::execute::StepRun,
    model::history::{HistoryOutcome, HistoryRecord},
    store::row::Claimed,
};

/// How much history the steps of a machine record: [`Machine::HISTORY`](crate::Machine::HISTORY),
/// [`Job::HISTORY`](crate::Job::HISTORY). Acts from outside (a cancel, the crash of a worker, an
/// operator's retry) add an entry with every policy.
///
/// An entry is one row, inserted by the commit that it describes. The engine keeps the entries of
/// the last 1,000 commits of an instance, until the instance is deleted. `durable show` and
/// [`Inspect::history`](crate::inspect::Inspect::history) read the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum HistoryPolicy {
    /// The engine records one history entry per commit. This is the default of a machine.
    All,
    /// Records only results without progress: retries, failures, outages, stuck instances, and the
    /// end of an instance by `fail`. The default of a job.
    Failures,
    /// Records no step results: for large numbers of instances that need no history.
    Off,
}

/// The number of the first commit of an instance that may trim its history.
const TRIM_FROM: i64 = 1_000;
/// A commit trims the history once per this many commits of an instance: in the commit with a
/// multiple of this number, and in the commit after it, because the first of the two may be a
/// deadline, which does not trim.
const TRIM_EVERY: i64 = 100;

impl HistoryRecord {
    /// Returns the history entry for a step result, or `None` if the commit neither adds an entry
    /// nor trims the history.
    pub(crate) fn of(
        row: &Claimed,
        run: &StepRun,
        worker: &Arc<str>,
    ) -> Option<Box<HistoryRecord>> {
        let went_wrong = run.failure.is_some()
            || matches!(
                run.outcome,
                HistoryOutcome::Retry
                    | HistoryOutcome::Failure
                    | HistoryOutcome::Fail
                    | HistoryOutcome::Outage
                    | HistoryOutcome::Stuck
            );
        let recorded = match run.history {
            HistoryPolicy::All => true,
            HistoryPolicy::Failures => went_wrong,
            HistoryPolicy::Off => return None,
        };
        let commit = row.step_seq + 1;
        let trims = commit >= TRIM_FROM && commit % TRIM_EVERY < 2;
        (recorded || trims).then(|| {
            Box::new(HistoryRecord {
                from: recorded.then(|| row.step.clone()),
                outcome: run.outcome,
                attempt: row.attempt,
                took: run.took.as_secs_f32(),
                failure: run.failure.clone().filter(|_| run.result.error.is_none()),
                worker: worker.clone(),
            })
        })
    }
}
