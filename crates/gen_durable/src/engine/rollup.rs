//! Counts committed step results by machine and queue, and adds the counts to the rollups in the
//! database. Counting needs no statement; a worker without results adds nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::core::Core;
use crate::{
    id::Status,
    model::{
        history::HistoryOutcome,
        rollup::{CLASSES, class},
    },
    store::{
        connection::Connection,
        fault::Fault,
        rollup::{self, Batch},
    },
};

/// How long a worker counts before it adds the counts to the database.
pub(crate) const ADD_EVERY: Duration = Duration::from_secs(10);
/// Delay before a worker sends a batch again if another worker held the rollup lock.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Delay before a worker sends a batch again after a failed statement.
const FAULT_PAUSE: Duration = Duration::from_secs(30);
/// How long and how often a worker that stops tries to add its last counts.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
const STOP_PAUSE: Duration = Duration::from_millis(50);
const STOP_ATTEMPTS_MAX: usize = 15;
/// A worker drops counts that are older than this, because the bucket of their time may be gone.
const AGE_MAX: Duration = Duration::from_secs(600);

/// The counts of one pair of a machine and a queue.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    steps: i64,
    failures: i64,
    done: i64,
    failed: i64,
    queue_time: [i64; CLASSES],
    duration: [i64; CLASSES],
}

/// What the worker counts of a committed step result.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountedStep {
    pub(super) machine: &'static str,
    pub(super) queue: usize,
    pub(super) outcome: HistoryOutcome,
    pub(super) status: Status,
    /// The time from the due time of the instance to the begin of the step. `None`: the step
    /// followed another one on the same claim.
    pub(super) waited: Option<Duration>,
    /// How long the step ran. `None`: no code of the step ran.
    pub(super) took: Option<Duration>,
}

/// The name of a machine, and the index of a queue of this worker.
type Pair = (&'static str, usize);

#[derive(Debug, Default)]
struct State {
    /// The counts of committed step results that belong to no batch yet. There is an entry for each
    /// pair of a registered machine and a queue of this worker at most.
    open: HashMap<Pair, Counts>,
    /// When the first result of `open` was counted.
    opened_at: Option<Instant>,
    /// The batch that the database may not have yet, and when its first result was counted. The
    /// worker sends it until it knows that the database has it.
    sealed: Option<(Batch, Instant)>,
    /// The number of the last batch.
    number: i64,
    /// A failed batch is not sent before this time.
    not_before: Option<Instant>,
}

/// The step results that this worker has counted since it last added its counts to the database.
#[derive(Debug, Default)]
pub(crate) struct RollupCounts {
    state: Mutex<State>,
}

impl RollupCounts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the database has all counts.
    fn is_empty(&self) -> bool {
        let state = self.state();
        state.opened_at.is_none() && state.sealed.is_none()
    }

    /// Counts step results that are committed.
    pub(super) fn count(&self, steps: &[CountedStep]) {
        if steps.is_empty() {
            return;
        }
        let mut state = self.state();
        state.opened_at.get_or_insert_with(Instant::now);
        for step in steps {
            let counts = state.open.entry((step.machine, step.queue)).or_default();
            counts.steps += 1;
            let is_failure = matches!(step.outcome, HistoryOutcome::Failure | HistoryOutcome::Fail);
            counts.failures += i64::from(is_failure);
            counts.done += i64::from(step.status == Status::Done);
            counts.failed += i64::from(step.status == Status::Failed);
            if let Some(waited) = step.waited {
                add(&mut counts.queue_time, waited);
            }
            if let Some(took) = step.took {
                add(&mut counts.duration, took);
            }
        }
    }

    /// Returns the batch to send now and the age of its counts, if one is due. `all`: counts are
    /// due at once.
    fn due(
        &self,
        now: Instant,
        queue: impl Fn(usize) -> String,
        all: bool,
    ) -> Option<(Batch, Duration)> {
        let mut state = self.state();
        let state = &mut *state;
        if !all && state.not_before.is_some_and(|at| at > now) {
            return None;
        }
        if state
            .sealed
            .as_ref()
            .is_some_and(|(_, from)| from.elapsed() > AGE_MAX)
        {
            state.sealed = None;
        }
        if state.sealed.is_none() {
            let opened_at = state.opened_at?;
            if !all && now.saturating_duration_since(opened_at) < ADD_EVERY {
                return None;
            }
            let open = std::mem::take(&mut state.open);
            state.opened_at = None;
            if opened_at.elapsed() > AGE_MAX {
                return None;
            }
            state.number += 1;
            state.sealed = Some((batch(state.number, open, queue), opened_at));
        }
        let (batch, from) = state.sealed.as_ref()?;
        // The middle of the time in which the worker counted.
        let age = now.saturating_duration_since(*from);
        Some((batch.clone(), age.saturating_sub(ADD_EVERY / 2)))
    }

    /// Records what became of the batch that was sent.
    fn sent(&self, added: &Result<bool, Fault>) {
        let mut state = self.state();
        state.not_before = match added {
            Ok(true) => {
                state.sealed = None;
                None
            }
            Ok(false) => Some(Instant::now() + BUSY_PAUSE),
            Err(_) => Some(Instant::now() + FAULT_PAUSE),
        };
    }
}

fn add(histogram: &mut [i64; CLASSES], duration: Duration) {
    if let Some(count) = histogram.get_mut(class(duration)) {
        *count += 1;
    }
}

fn batch(number: i64, open: HashMap<Pair, Counts>, queue: impl Fn(usize) -> String) -> Batch {
    let mut batch = Batch {
        number,
        ..Batch::default()
    };
    for ((machine, index), counts) in open {
        batch.machines.push(machine.to_owned());
        batch.queues.push(queue(index));
        batch.steps.push(counts.steps);
        batch.failures.push(counts.failures);
        batch.done.push(counts.done);
        batch.failed.push(counts.failed);
        batch.queue_time.extend(counts.queue_time);
        batch.duration.extend(counts.duration);
    }
    batch
}

/// Adds the counts of this worker to the rollups, if they are due. `all`: the worker stops, so all
/// counts are due. Returns false if counts are left that were due.
pub(crate) async fn write(core: &Core, connection: &Connection, all: bool) -> bool {
    let queue = |index| {
        core.queue(index)
            .map(|local| local.queue.name().to_owned())
            .unwrap_or_default()
    };
    while let Some((batch, age)) = core.rollups.due(Instant::now(), queue, all) {
        let added = rollup::add(connection, &core.worker.id, &batch, age).await;
        core.rollups.sent(&added);
        match added {
            Ok(true) => {}
            Ok(false) => return false,
            // A worker that stops tries again soon, and warns if it gives up.
            Err(fault) if all => {
                tracing::debug!(error = fault.message(), "could not add the last counts yet");
                return false;
            }
            Err(fault) => {
                tracing::warn!(
                    error = fault.message(),
                    "could not add the counts of step results to the rollups; charts lack them until a later attempt"
                );
                return false;
            }
        }
    }
    true
}

/// Adds the last counts of a worker that stops, after all its loops have ended. If the database
/// does not accept them within `STOP_TIMEOUT`, they are lost.
pub(crate) async fn stop(core: &Arc<Core>) {
    if core.rollups.is_empty() {
        return;
    }
    let worker = core.clone();
    let added = core.pool.connections.call(move |connection| async move {
        for _ in 0..STOP_ATTEMPTS_MAX {
            if write(&worker, &connection, true).await {
                return true;
            }
            tokio::time::sleep(STOP_PAUSE).await;
        }
        false
    });
    if !matches!(
        tokio::time::timeout(STOP_TIMEOUT, added).await,
        Ok(Ok(true))
    ) {
        tracing::warn!(
            "the counts of the last step results are missing in the rollups: the database did not accept them within {STOP_TIMEOUT:?}"
        );
    }
}
