//! Notifications between the loops of an engine in one process. A wake is only a hint: if every
//! wake is lost, the loops still find all due instances, timers and events when they poll the
//! database.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Notify;

/// A hint for the picker: instances are available in this queue at this priority, due at `from` or
/// later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hint {
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) from: Timestamp,
}

/// A timer that a step or a caller of this process has set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NewTimer {
    pub(crate) due: TimerDue,
    /// Whether the due time belongs to a row of `timers`. If not, it belongs to the deadline of a
    /// wait.
    pub(crate) is_timer: bool,
}

/// The due time of a timer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TimerDue {
    At(Timestamp),
    /// Due this duration after a commit that the database acknowledged at this instant.
    After(Duration, Instant),
}

/// The largest number of new timers in `Wake::armed`. The timer loop reads further timers from the
/// database.
const ARMED_MAX: usize = 100_000;

/// Wakes the picker, the timer loop and the claim watch of one engine.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    timer_wake: Notify,
    /// Timers that this process has set since the timer loop last read this list. Callers hold the
    /// lock of this mutex only briefly, never across an await.
    armed: Mutex<Vec<NewTimer>>,
    picker_wake: Notify,
    /// True while this process has no room for another instance of some queue.
    waits_for_room: AtomicBool,
    /// Signalled after a cancel through this process: running steps may have lost their claim.
    claims_wake: Notify,
    /// The smallest due time of the hints since the picker last read them, by queue and priority.
    /// The picker lowers its watermark to this time. Callers hold the lock of this mutex only
    /// briefly, never across an await.
    lowest: Mutex<BTreeMap<(String, i16), Timestamp>>,
}

impl Wake {
    /// Wakes the picker, and makes its next pick read instances from the due time of the hint on.
    pub(crate) fn hint(&self, hint: Hint) {
        let mut lowest = self.lowest.lock().unwrap_or_else(PoisonError::into_inner);
        lowest
            .entry((hint.queue, hint.priority))
            .and_modify(|from| *from = (*from).min(hint.from))
            .or_insert(hint.from);
        drop(lowest);
        self.picker_wake.notify_one();
    }

    /// Passes a new timer to the timer loop of the engine and wakes that loop.
    pub(crate) fn arm(&self, armed: NewTimer) {
        let mut waiting = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < ARMED_MAX {
            waiting.push(armed);
        }
        drop(waiting);
        self.timer_wake.notify_one();
    }

    /// Waits until this process sets a timer.
    pub(crate) async fn has_armed(&self) {
        self.timer_wake.notified().await;
    }

    pub(crate) fn take_armed(&self) -> Vec<NewTimer> {
        std::mem::take(&mut *self.armed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the picker, for example because a step has ended and the engine can run another step
    /// of the same queue.
    pub(crate) fn wake(&self) {
        self.picker_wake.notify_one();
    }

    /// Records whether this process has no room for another instance of some queue.
    pub(crate) fn announce_wait_for_room(&self, waits: bool) {
        self.waits_for_room.store(waits, Ordering::SeqCst);
    }

    /// Wakes the picker if a queue had no room.
    pub(crate) fn wake_for_room(&self) {
        if self.waits_for_room.load(Ordering::SeqCst) {
            self.picker_wake.notify_one();
        }
    }

    /// Wakes the claim watch, which then checks whether running steps that use `Context::cancelled`
    /// have lost their claim.
    pub(crate) fn wake_claims(&self) {
        self.claims_wake.notify_one();
    }

    /// Waits for a wake of the claim watch. A wake before this call ends the wait at once.
    pub(crate) async fn claims_woken(&self) {
        self.claims_wake.notified().await;
    }

    /// Waits for a wake of the picker. A wake before this call ends the wait at once.
    pub(crate) async fn woken(&self) {
        self.picker_wake.notified().await;
    }

    /// Returns the hints for the picker since the last call, and clears them.
    pub(crate) fn take_hints(&self) -> Vec<Hint> {
        let taken =
            std::mem::take(&mut *self.lowest.lock().unwrap_or_else(PoisonError::into_inner));
        taken
            .into_iter()
            .map(|((queue, priority), from)| Hint {
                queue,
                priority,
                from,
            })
            .collect()
    }
}

/// Wakes the projector, which assigns log positions and runs projections: the logs of these tenants
/// have grown.
#[derive(Debug, Default)]
pub(crate) struct LogWake {
    wake: Notify,
    /// Tenants with new events since the projector last read this set. Callers hold the lock of
    /// this mutex only briefly, never across an await.
    tenants: Mutex<BTreeSet<String>>,
    /// Whether the projector must search at once for runs, retries and redrives that it has to
    /// process.
    runs: AtomicBool,
}

impl LogWake {
    pub(crate) fn wake_runs(&self) {
        self.runs.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn take_runs(&self) -> bool {
        self.runs.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn wake_readers<'a>(&self, tenants: impl Iterator<Item = &'a str>) {
        let mut grown = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        for tenant in tenants {
            if !grown.contains(tenant) {
                grown.insert(tenant.to_owned());
            }
        }
        drop(grown);
        self.wake.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits for a wake of the projector. A wake before this call ends the wait at once.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(crate) fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.tenants.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The engines of this process that a pool wakes after a caller appended events.
#[derive(Debug, Default)]
pub(crate) struct LogWakes {
    /// The wakes of the engines that assign log positions and run projections. No code holds the
    /// mutex over an await.
    wakes: Mutex<Vec<Weak<LogWake>>>,
}

impl LogWakes {
    pub(crate) fn subscribe(&self, notify: &Arc<LogWake>) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        wakes.retain(|notify| notify.strong_count() > 0);
        wakes.push(Arc::downgrade(notify));
    }

    /// Wakes the engines of this process, with a hint that these tenants have new events.
    pub(crate) fn wake_readers<'a>(&self, tenants: impl Iterator<Item = &'a str> + Clone) {
        if tenants.clone().next().is_none() {
            return;
        }
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        for notify in wakes.iter().filter_map(Weak::upgrade) {
            notify.wake_readers(tenants.clone());
        }
    }

    /// Wakes the engines of this process, with a hint that a caller is about to commit an event
    /// without a log position.
    pub(crate) fn wake_for_unplaced(&self) {
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        wakes
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|notify| notify.wake());
    }

    /// Wakes the engines of this process, with a hint that a caller requested a run of a
    /// projection.
    pub(crate) fn wake_runs(&self) {
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        wakes
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|notify| notify.wake_runs());
    }
}
