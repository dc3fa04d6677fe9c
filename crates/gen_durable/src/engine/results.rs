//! The in-memory queues of step results that wait for a committer.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::local::HeldInstance;
use crate::{model::history::HistoryOutcome, model::step_result::StepResult, store::row::Claimed};

/// Number of committers that write, at the same time, results that free a lane or a partition key.
const COMMITTERS: usize = 2;
/// If at least this many step results wait, the two committers divide them between two commits.
const SHARED_FROM: usize = 16;
/// A step result waits at most this long until the other successors that were promoted by the same
/// commit have started their steps.
const GATHER_MAX: Duration = Duration::from_millis(1);

/// A step result, with the values that the engine needs after its commit.
#[derive(Debug)]
pub(crate) struct FinishedStep {
    pub(crate) result: StepResult,
    pub(crate) run: HeldInstance,
    pub(crate) queue: usize,
    pub(crate) outcome: HistoryOutcome,
    /// How long the step ran. `None`: no code of the step ran.
    pub(crate) took: Option<Duration>,
    /// True if the committer sent this result and got no reply, so the result may be committed
    /// already.
    pub(crate) unsure: bool,
    /// The instance row as it is after the commit, if the instance runs ahead on the same claim.
    pub(crate) ahead: Option<Claimed>,
}

/// An in-memory queue of step results. `take` removes the results that fit into one commit.
#[derive(Debug, Default)]
pub(crate) struct ResultQueue {
    /// The waiting step results. No code holds the mutex for long, or across an await.
    waiting: Mutex<Vec<FinishedStep>>,
    notify: Notify,
}

impl ResultQueue {
    pub(crate) fn push(&self, ended: FinishedStep) {
        if self.add(ended) == 1 {
            self.notify.notify_one();
        }
    }

    /// Adds a result without waking the committer. Returns how many results wait.
    fn add(&self, ended: FinishedStep) -> usize {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(ended);
        waiting.len()
    }

    /// Removes waiting step results from the in-memory queue, up to `limit` results and about
    /// `bytes_max` bytes; at least one, if there are any.
    pub(crate) fn take(&self, limit: usize, bytes_max: usize) -> Vec<FinishedStep> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0_usize;
        let fits = |ended: &&FinishedStep| {
            bytes = bytes.saturating_add(ended.result.bytes());
            bytes <= bytes_max
        };
        let count = waiting.iter().take(limit).take_while(fits).count().max(1);
        if waiting.len() <= count {
            return std::mem::take(&mut *waiting);
        }
        let rest = waiting.split_off(count);
        let taken = std::mem::replace(&mut *waiting, rest);
        drop(waiting);
        // `push` notifies the committer only for the first result. The results that stay in the
        // in-memory queue are not new, so `take` notifies the committer for them.
        self.notify.notify_one();
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }
}

/// Step results that free a lane or a partition key.
///
/// Such results arrive in groups: a commit promotes the successor in each of its lanes, and these
/// successors start together. The fixed cost of a commit equals the cost of about twelve results,
/// so a result waits while other instances of its group are about to start: the results of short
/// steps then share one commit. Groups that met in one commit would stay together and leave the
/// other committer idle, so each committer removes at most a fair share of all waiting results.
#[derive(Debug, Default)]
pub(crate) struct Keyed {
    results: ResultQueue,
    /// Since when the oldest waiting result has waited. The time may be that of a result that is
    /// committed already.
    since: Mutex<Option<Instant>>,
    /// Notified when a step result arrives while other instances of its group are about to start.
    soon: Notify,
    /// Number of worker tasks that were started for a group of promoted successors and have not
    /// begun a step yet.
    starting: AtomicUsize,
    /// Number of step results that the committers are writing now.
    taken: AtomicUsize,
    /// Number of committers that are away: busy with step results that free no lane and no
    /// partition key, or without a free connection.
    away: AtomicUsize,
    /// Notified when a step result arrives while a committer is away. The second committer then
    /// opens its connection.
    arrived: Notify,
}

impl Keyed {
    pub(crate) fn push(&self, ended: FinishedStep) {
        if self.results.add(ended) == 1 {
            *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        if self.starting.load(Ordering::SeqCst) == 0 {
            self.results.wake()
        } else {
            self.soon.notify_one()
        }
        if self.away.load(Ordering::SeqCst) > 0 {
            self.arrived.notify_one();
        }
    }

    /// Waits until a step result arrives while a committer is away.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Removes one committer's share of the waiting step results. Returns `None` if no result
    /// waits, or if other instances of the group are about to start and their results should be in
    /// the same commit. With `at_once`, the function does not wait for these instances.
    pub(crate) fn share(&self, at_once: bool, limit: usize, bytes_max: usize) -> Option<Share<'_>> {
        let waiting = self.results.len();
        if waiting == 0 {
            return None;
        }
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let is_long = since.is_none_or(|since| since.elapsed() >= GATHER_MAX);
        if self.starting.load(Ordering::SeqCst) > 0 && !is_long && !at_once {
            self.soon.notify_one();
            return None;
        }
        let committers = COMMITTERS.saturating_sub(self.away.load(Ordering::SeqCst));
        let fair = fair(waiting, self.taken.load(Ordering::SeqCst), committers);
        let results = self.results.take(fair.min(limit), bytes_max);
        self.taken.fetch_add(results.len(), Ordering::SeqCst);
        Some(Share {
            keyed: self,
            count: results.len(),
            results,
        })
    }

    /// Waits until the committer should call `share` for waiting step results.
    pub(crate) async fn woken(&self) {
        tokio::select! {
            () = self.results.woken() => {}
            () = self.soon.notified() => drop(tokio::time::timeout(GATHER_MAX, self.results.woken()).await),
        }
    }

    /// Marks the calling committer as away until the guard is dropped. The calling committer may
    /// have consumed a notification about waiting step results, so this function notifies the other
    /// committer.
    pub(crate) fn mark_away(&self) -> Away<'_> {
        self.away.fetch_add(1, Ordering::SeqCst);
        if !self.results.is_empty() {
            self.results.wake();
        }
        Away(self)
    }

    /// Records that the engine starts this many worker tasks for a group of promoted successors.
    /// Each task calls `begun` when its first step begins.
    pub(crate) fn start(&self, workers: usize) {
        self.starting.fetch_add(workers, Ordering::SeqCst);
    }

    /// Records that a worker task of a group of promoted successors has begun its first step. The
    /// last task of the group wakes the committer if step results wait.
    pub(crate) fn begun(&self) {
        if self.starting.fetch_sub(1, Ordering::SeqCst) == 1 && !self.results.is_empty() {
            self.results.wake();
        }
    }
}

/// The step results that one committer is writing. They count as being written until the value is
/// dropped.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    keyed: &'a Keyed,
    count: usize,
    pub(crate) results: Vec<FinishedStep>,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.keyed.taken.fetch_sub(self.count, Ordering::SeqCst);
    }
}

/// The guard of a committer that is away.
#[derive(Debug)]
pub(crate) struct Away<'a>(&'a Keyed);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.away.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns how many of the waiting step results one committer removes from the in-memory queue
/// while committers are writing `taken` other results.
fn fair(waiting: usize, taken: usize, committers: usize) -> usize {
    let all = waiting + taken;
    if all < SHARED_FROM {
        waiting
    } else {
        all.div_ceil(committers.max(1)).min(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::fair;

    #[test]
    fn a_committer_takes_all_of_a_few_step_results_and_at_most_its_fair_share_of_many() {
        assert_eq!(
            (
                fair(0, 0, 2),
                fair(15, 0, 2),
                fair(16, 0, 2),
                fair(101, 0, 2)
            ),
            (0, 15, 8, 51)
        );
        assert_eq!(
            (fair(95, 5, 2), fair(5, 95, 2), fair(50, 50, 2)),
            (50, 5, 50)
        );
        assert_eq!((fair(100, 0, 1), fair(100, 0, 0)), (100, 100));
    }
}
