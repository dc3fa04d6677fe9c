//! What this process holds of one queue: what is ready, what runs, what waits for its commit.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{
    error::Failure,
    id::Queue,
    store::row::{Claim, Claimed},
};

/// Rows are claimed ahead of the free workers: as many as can begin within this time…
const AHEAD: Duration = Duration::from_millis(50);
/// …and never more than this: about two commits' worth, so that the next pick runs while a commit is under way…
const AHEAD_MAX: usize = 2_000;
/// …nor more than about so many bytes.
const AHEAD_BYTES_MAX: f64 = 32.0 * 1024.0 * 1024.0;
/// At most this many in one pick: while it runs, what it will bring cannot begin.
const PICK_MAX: usize = 500;
/// How fast steps end is measured over windows of at least this.
const WINDOW: Duration = Duration::from_millis(20);
/// What has not begun after this long was claimed by mistake: steps take longer than they did.
const READY_MAX: Duration = Duration::from_secs(1);

/// A claimed row on its way through this process.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) row: Arc<Claimed>,
    /// How many steps it has done on this claim.
    pub(crate) steps: u32,
    /// Since when it has been held.
    pub(crate) since: Instant,
    /// The database refused the outcome of its step: the handler is to be told this.
    pub(crate) poison: Option<Failure>,
    /// How often that happened to this step.
    pub(crate) poisoned: u8,
    /// Since when it has waited for its turn.
    pub(crate) ready_at: Instant,
    /// It follows in a lane that this process leads, and nothing of it was written yet.
    pub(crate) unclaimed: bool,
}

impl Run {
    pub(crate) fn new(row: Claimed) -> Run {
        let now = Instant::now();
        let unclaimed = row.led;
        Run {
            row: Arc::new(row),
            steps: 0,
            since: now,
            poison: None,
            poisoned: 0,
            ready_at: now,
            unclaimed,
        }
    }
}

/// A step that runs.
#[derive(Debug)]
struct Busy {
    /// A keyed one can be told to stop.
    fence: Option<Arc<Notify>>,
    /// Since when it has run in a lane that this process leads, and is not claimed.
    led_since: Option<Instant>,
}

/// One queue as this process sees it.
#[derive(Debug)]
pub(crate) struct LocalQueue {
    pub(crate) queue: Queue,
    /// How many steps may run at once.
    workers: usize,
    /// Guarded for a moment at each hand-over, never over an await.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// What can begin, by priority: something urgent that was claimed later begins before what is less so.
    ready: BTreeMap<i16, VecDeque<Run>>,
    ready_count: usize,
    /// Steps that run now.
    busy: HashMap<Claim, Busy>,
    /// Worker tasks that are alive.
    loops: usize,
    /// Everything claimed and not yet left: ready, running, or waiting for its commit. By id, with the epoch.
    held: HashMap<i64, i64>,
    /// Steps that end in a second, lately.
    rate: f64,
    /// Those of the present window, and when it began.
    ended: u32,
    window: Option<Instant>,
    /// How large a row is, averaged, in bytes of JSON.
    row_bytes: f64,
    /// The queue's shutdown: nothing more begins.
    closed: bool,
}

impl Inner {
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

    fn pop(&mut self) -> Option<Run> {
        let run = self.ready.values_mut().find_map(VecDeque::pop_front)?;
        self.ready_count -= 1;
        Some(run)
    }
}

impl LocalQueue {
    pub(crate) fn new(queue: Queue, workers: usize) -> LocalQueue {
        LocalQueue {
            queue,
            workers,
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many rows to claim now. None while plenty is ready: a pick of many costs little more than a pick of one.
    pub(crate) fn room(&self) -> usize {
        let inner = self.lock();
        let bearable = AHEAD_BYTES_MAX / inner.row_bytes.max(1.0);
        let ahead = {
            // By how fast steps end here, and not by how long one takes: workers share the cores. `as` cuts what is too
            // large; the bound is below.
            let first = f64::from(inner.ended) / WINDOW.as_secs_f64();
            let startable = AHEAD.as_secs_f64() * if inner.rate > 0.0 { inner.rate } else { first };
            (startable.min(bearable) as usize).min(AHEAD_MAX)
        };
        let target = self.workers + ahead;
        if inner.closed || inner.held.len() >= target || inner.ready_count > target / 4 {
            return 0;
        }
        // One answer holds about so many bytes as well, however many workers are free.
        (target - inner.held.len())
            .min(PICK_MAX)
            .min((bearable as usize).max(1))
    }

    /// Take in what was claimed. Answers how many worker tasks to start.
    pub(crate) fn take_in(&self, runs: impl IntoIterator<Item = Run>) -> usize {
        let mut inner = self.lock();
        for mut run in runs {
            run.ready_at = Instant::now();
            inner.held.insert(run.row.id, run.row.claim_epoch);
            inner.row_bytes = inner.row_bytes * 0.95 + run.row.bytes() as f64 * 0.05;
            inner.ready_count += 1;
            let ready = inner.ready.entry(run.row.priority).or_default();
            // What a process died with goes first: its next commit clears it, and it should not be there at the next death.
            if run.row.crash_count > 0 {
                ready.push_front(run)
            } else {
                ready.push_back(run)
            }
        }
        let wanted = self.workers.min(inner.loops + inner.ready_count);
        let start = wanted.saturating_sub(inner.loops);
        inner.loops += start;
        start
    }

    /// A worker has ended one run and wants the next. `None`: there is none, and the worker goes home.
    pub(crate) fn next(&self, ended: Option<Claim>) -> Option<(Run, Option<Arc<Notify>>)> {
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
        let fence = run.row.keyed.then(|| Arc::new(Notify::new()));
        let led_since = run.unclaimed.then(Instant::now);
        inner.busy.insert(
            run.row.claim(),
            Busy {
                fence: fence.clone(),
                led_since,
            },
        );
        Some((run, fence))
    }

    /// These claims have left. By claim and not by row: between a commit and its answer the row may have been claimed
    /// anew by this very process, and that claim stays.
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

    /// Stop every running step that promised exclusion: our lease has run out by our own clock.
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

    /// What has run without a claim for so long; and whether anything has that did not run as long yet.
    pub(crate) fn lasting(&self, long: Duration) -> (Vec<Claim>, bool) {
        let inner = self.lock();
        let led = || {
            inner
                .busy
                .iter()
                .filter_map(|(claim, busy)| Some((claim, busy.led_since?)))
        };
        let lasting: Vec<Claim> = led()
            .filter(|(_, since)| since.elapsed() >= long)
            .map(|(claim, _)| *claim)
            .collect();
        let waits = led().count() > lasting.len();
        (lasting, waits)
    }

    /// These have a claim now.
    pub(crate) fn claimed<'a>(&self, claims: impl IntoIterator<Item = &'a Claim>) {
        let mut inner = self.lock();
        for claim in claims {
            if let Some(busy) = inner.busy.get_mut(claim) {
                busy.led_since = None;
            }
        }
    }

    /// Begin nothing more. Answers what was ready and never began.
    pub(crate) fn close(&self) -> Vec<Run> {
        let mut inner = self.lock();
        inner.closed = true;
        std::iter::from_fn(|| inner.pop()).collect()
    }

    /// What was claimed and has waited for its turn for longer than it should have: all places are taken by steps that
    /// take long. Others may have room.
    pub(crate) fn overdue(&self) -> Vec<Run> {
        let mut inner = self.lock();
        let is_overdue = |run: &Run| run.poison.is_none() && run.ready_at.elapsed() > READY_MAX;
        let mut overdue = Vec::new();
        for ready in inner.ready.values_mut() {
            let (late, in_time): (VecDeque<Run>, VecDeque<Run>) =
                std::mem::take(ready).into_iter().partition(is_overdue);
            *ready = in_time;
            overdue.extend(late);
        }
        inner.ready_count -= overdue.len();
        if !overdue.is_empty() {
            // How fast steps ended before says nothing of those that run now: by it we would claim the same rows again at
            // once, before anybody who has room comes by.
            (inner.rate, inner.ended, inner.window) = (0.0, 0, None);
        }
        overdue
    }

    /// The claims of steps that still run.
    pub(crate) fn running(&self) -> Vec<Claim> {
        self.lock().busy.keys().copied().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().held.is_empty()
    }
}
