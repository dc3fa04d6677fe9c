//! The instances of one queue that this process holds. Each instance is ready to run, runs, or
//! waits for the commit of its step result.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{
    failure::Failure,
    id::Queue,
    store::row::{Claim, Claimed},
};

/// The picker claims more rows than there are free worker tasks: as many as can begin within this
/// time.
const AHEAD: Duration = Duration::from_millis(50);
/// Maximum number of instances that the picker claims before a worker task is free for them. It is
/// about as many as two commits write, so that the next pick can run while a commit is under way.
const AHEAD_MAX: usize = 2_000;
/// Approximate maximum size in bytes of the instances that the picker claims before a worker task
/// is free for them.
const AHEAD_BYTES_MAX: f64 = 32.0 * 1024.0 * 1024.0;
/// Maximum number of instances in one pick. The number is limited, because no instance can begin
/// its step before the whole pick has returned.
const PICK_MAX: usize = 500;
/// A worker that has no room claims instances of tenants that have just appeared in a fair queue:
/// up to the concurrency divided by this number more than others.
const NEW_PART: usize = 4;
/// Minimum length of the time windows in which this process counts ended steps to compute their
/// rate.
const WINDOW: Duration = Duration::from_millis(20);
/// Upkeep releases a claimed instance if its step has not begun after this time, because steps last
/// longer than they did before and another process may be free.
const READY_MAX: Duration = Duration::from_secs(1);

/// A claimed instance and its progress in this process.
#[derive(Debug, Clone)]
pub(crate) struct HeldInstance {
    pub(crate) row: Arc<Claimed>,
    /// How many steps of the instance have run on this claim.
    pub(crate) steps: u32,
    /// Since when this process has held the instance.
    pub(crate) since: Instant,
    /// The failure that the handler of the step receives, if the database refused the step result.
    pub(crate) poison: Option<Failure>,
    /// How often the database refused a result of this step.
    pub(crate) poisoned: u8,
    /// Since when the instance has been ready to begin its step.
    pub(crate) ready_at: Instant,
    /// The time from the due time of the instance to the begin of its first step on this claim.
    /// Until that step begins: the time to the claim.
    pub(crate) waited: Option<Duration>,
    /// The virtual time of the instance in a fair queue: of two instances with the same priority,
    /// the one with the smaller virtual time begins first. Zero in other queues, which keep the
    /// order of the pick.
    pub(crate) virtual_time: u64,
}

impl HeldInstance {
    pub(crate) fn new(row: Claimed) -> HeldInstance {
        let now = Instant::now();
        let waited = Duration::try_from(row.now.duration_since(row.eligible_at));
        HeldInstance {
            waited: Some(waited.unwrap_or_default()),
            row: Arc::new(row),
            steps: 0,
            since: now,
            poison: None,
            poisoned: 0,
            ready_at: now,
            virtual_time: 0,
        }
    }
}

/// A running step in this process.
#[derive(Debug)]
struct Busy {
    /// The notification that stops the step. Only steps in a lane or under a partition key have it.
    fence: Option<Arc<Notify>>,
}

/// The instances of one queue that this process holds, and the tasks that run their steps.
#[derive(Debug)]
pub(crate) struct LocalQueue {
    pub(crate) queue: Queue,
    /// How many steps of the queue may run at the same time in this process.
    concurrency: usize,
    /// The held instances. No code holds the mutex for long, or across an await.
    inner: Mutex<HeldInstances>,
}

#[derive(Debug, Default)]
struct HeldInstances {
    /// Instances that can begin their step, by priority: an urgent instance that was claimed later
    /// begins before less urgent instances.
    ready: BTreeMap<i16, VecDeque<HeldInstance>>,
    ready_count: usize,
    /// The largest virtual time of the instances that have begun their step.
    begun: u64,
    /// The running steps, by claim.
    busy: HashMap<Claim, Busy>,
    /// Number of live worker tasks, which run the steps of this queue.
    loops: usize,
    /// All instances that this process holds: ready, running, or waiting for their commit. Maps the
    /// id to the claim epoch.
    held: HashMap<i64, i64>,
    /// Recent number of steps that end per second.
    rate: f64,
    /// Number of steps that ended in the current measuring window, and the start of the window.
    ended: u32,
    window: Option<Instant>,
    /// Average size of a claimed instance row of this queue, in bytes of JSON.
    row_bytes: f64,
    /// True after the shutdown of the engine has closed this in-memory queue: no further step
    /// begins.
    closed: bool,
}

impl HeldInstances {
    fn count_end(&mut self) {
        self.ended += 1;
        let elapsed = self.window.get_or_insert_with(Instant::now).elapsed();
        if elapsed >= WINDOW {
            let now = f64::from(self.ended) / elapsed.as_secs_f64();
            self.rate = if self.rate > 0.0 {
                self.rate * 0.7 + now * 0.3
            } else {
                now
            };
            (self.ended, self.window) = (0, Some(Instant::now()));
        }
    }

    /// Returns how many instances the picker may claim before a worker task is free for them.
    fn ahead(&self) -> usize {
        // Estimates how many steps can begin soon by the rate at which steps end in this process,
        // and not by the duration of one step, because worker tasks share the cores. `as`
        // saturates, and `min` then limits the number.
        let first = f64::from(self.ended) / WINDOW.as_secs_f64();
        let startable = AHEAD.as_secs_f64() * if self.rate > 0.0 { self.rate } else { first };
        (startable.min(self.bearable()) as usize).min(AHEAD_MAX)
    }

    /// Returns how many instances of the usual size fit into the limit in bytes.
    fn bearable(&self) -> f64 {
        AHEAD_BYTES_MAX / self.row_bytes.max(1.0)
    }

    fn room(&self, concurrency: usize) -> usize {
        let target = concurrency + self.ahead();
        if self.closed || self.held.len() >= target || self.ready_count > target / 4 {
            return 0;
        }
        // The limit in bytes bounds the size of the reply to one pick, however many worker tasks
        // are free.
        (target - self.held.len())
            .min(PICK_MAX)
            .min((self.bearable() as usize).max(1))
    }

    fn pop(&mut self) -> Option<HeldInstance> {
        let run = self.ready.values_mut().find_map(VecDeque::pop_front)?;
        self.ready_count -= 1;
        self.begun = self.begun.max(run.virtual_time);
        Some(run)
    }
}

impl LocalQueue {
    pub(crate) fn new(queue: Queue, concurrency: usize) -> LocalQueue {
        LocalQueue {
            queue,
            concurrency,
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HeldInstances> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many instances the picker should claim for this queue now. Returns zero while
    /// enough instances are ready, because a pick of many instances costs little more than a pick
    /// of one.
    pub(crate) fn room(&self) -> usize {
        self.lock().room(self.concurrency)
    }

    /// Returns how many instances of tenants that have just appeared the picker should claim for
    /// this queue, although enough instances of other tenants are ready.
    pub(crate) fn room_for_new(&self) -> usize {
        let inner = self.lock();
        let extra = (self.concurrency / NEW_PART).max(1);
        let may_hold = self.concurrency + inner.ahead() + extra;
        if inner.closed || inner.held.len() >= may_hold {
            return 0;
        }
        extra
    }

    /// Returns the largest virtual time of the instances that have begun their step.
    pub(crate) fn begun(&self) -> u64 {
        self.lock().begun
    }

    /// Adds claimed instances to the instances that are ready to run. Returns how many worker tasks
    /// the caller has to start.
    pub(crate) fn take_in(&self, runs: impl IntoIterator<Item = HeldInstance>) -> usize {
        let mut inner = self.lock();
        for mut run in runs {
            run.ready_at = Instant::now();
            inner.held.insert(run.row.id, run.row.claim_epoch);
            inner.row_bytes = inner.row_bytes * 0.95 + run.row.bytes() as f64 * 0.05;
            inner.ready_count += 1;
            let ready = inner.ready.entry(run.row.priority).or_default();
            // An instance that a crashed worker held begins first: its next commit resets its
            // `crash_count`, so this process is less likely to hold it if this process crashes.
            if run.row.crash_count > 0 {
                run.virtual_time = 0;
                ready.push_front(run)
            } else {
                let place = ready.partition_point(|other| other.virtual_time <= run.virtual_time);
                ready.insert(place, run)
            }
        }
        let wanted = self.concurrency.min(inner.loops + inner.ready_count);
        let start = wanted.saturating_sub(inner.loops);
        inner.loops += start;
        start
    }

    /// Records that a worker task has ended the step of one instance, and returns the next
    /// instance. Returns `None` if no instance is ready; the worker task then ends.
    pub(crate) fn next(&self, ended: Option<Claim>) -> Option<(HeldInstance, Option<Arc<Notify>>)> {
        let mut inner = self.lock();
        if let Some(claim) = ended {
            inner.busy.remove(&claim);
            inner.count_end();
        }
        let next = if inner.closed { None } else { inner.pop() };
        let Some(run) = next else {
            inner.loops -= 1;
            return None;
        };
        let fence = run.row.is_exclusive().then(|| Arc::new(Notify::new()));
        inner.busy.insert(
            run.row.claim(),
            Busy {
                fence: fence.clone(),
            },
        );
        Some((run, fence))
    }

    /// Removes claims from the held instances. The function compares the claim and not only the id:
    /// between a commit and its reply, this process may have claimed the instance a second time,
    /// and the new claim must stay.
    pub(crate) fn let_go(&self, claims: impl IntoIterator<Item = Claim>) {
        let mut inner = self.lock();
        for claim in claims {
            if inner.held.get(&claim.id) == Some(&claim.epoch) {
                inner.held.remove(&claim.id);
            }
        }
    }

    pub(crate) fn holds(&self, claim: &Claim) -> bool {
        self.lock().held.get(&claim.id) == Some(&claim.epoch)
    }

    /// Stops every running step that relies on mutual exclusion, because this worker's lease has
    /// expired by the local clock.
    pub(crate) fn fence(&self) {
        for fence in self
            .lock()
            .busy
            .values()
            .filter_map(|busy| busy.fence.as_ref())
        {
            fence.notify_one();
        }
    }

    /// Closes the in-memory queue, so that no further step begins. Returns the instances that were
    /// ready and have not begun their step.
    pub(crate) fn close(&self) -> Vec<HeldInstance> {
        let mut inner = self.lock();
        inner.closed = true;
        std::iter::from_fn(|| inner.pop()).collect()
    }

    /// Removes and returns the claimed instances that have been ready for too long, because long
    /// steps occupy all worker tasks. Another process may have free worker tasks.
    pub(crate) fn overdue(&self) -> Vec<HeldInstance> {
        let mut inner = self.lock();
        let is_overdue =
            |run: &HeldInstance| run.poison.is_none() && run.ready_at.elapsed() > READY_MAX;
        let mut overdue = Vec::new();
        for ready in inner.ready.values_mut() {
            let (late, in_time): (VecDeque<HeldInstance>, VecDeque<HeldInstance>) =
                std::mem::take(ready).into_iter().partition(is_overdue);
            *ready = in_time;
            overdue.extend(late);
        }
        inner.ready_count -= overdue.len();
        if !overdue.is_empty() {
            // Resets the rate, because the rate of earlier steps says nothing about the steps that
            // run now. By the old rate this process would claim the same rows at once, before a
            // process with free worker tasks can.
            (inner.rate, inner.ended, inner.window) = (0.0, 0, None);
        }
        overdue
    }

    /// Returns the claims of the running steps.
    pub(crate) fn running(&self) -> Vec<Claim> {
        self.lock().busy.keys().copied().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().held.is_empty()
    }
}
