//! Who should look now. A wake is only a hint: with all of them lost, the poll still finds everything.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Notify;

/// "There is work in this queue at this priority, due from then on."
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hint {
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) from: Timestamp,
}

/// A timer that was armed here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Armed {
    pub(crate) due: ArmedFor,
    /// A row of `timers`; otherwise the deadline of a wait.
    pub(crate) is_timer: bool,
}

/// When it falls due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ArmedFor {
    At(Timestamp),
    /// So long after a commit that was answered then.
    After(Duration, Instant),
}

/// At most so many armed timers are told to the clockwork at once; it finds the rest by itself.
const ARMED_MAX: usize = 100_000;

/// A bell that the picker of one engine listens to, and one for its clockwork.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    armed_bell: Notify,
    /// Timers that were armed here since the clockwork last looked. Guarded for a moment, never over an await.
    armed: Mutex<Vec<Armed>>,
    bell: Notify,
    /// Somebody was cancelled through this process: running steps may have lost their claim.
    doubt: Notify,
    /// The smallest due time told since the picker last looked, by queue and priority: its watermark is lowered to it.
    /// Guarded for a moment, never over an await.
    lowest: Mutex<BTreeMap<(String, i16), Timestamp>>,
}

impl Wake {
    /// Look, and look at least from there on.
    pub(crate) fn hint(&self, hint: Hint) {
        let mut lowest = self.lowest.lock().unwrap_or_else(PoisonError::into_inner);
        lowest
            .entry((hint.queue, hint.priority))
            .and_modify(|from| *from = (*from).min(hint.from))
            .or_insert(hint.from);
        drop(lowest);
        self.bell.notify_one();
    }

    /// A timer was armed here: it is known at once.
    pub(crate) fn arm(&self, armed: Armed) {
        let mut waiting = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < ARMED_MAX {
            waiting.push(armed);
        }
        drop(waiting);
        self.armed_bell.notify_one();
    }

    /// Wait until a timer is armed.
    pub(crate) async fn has_armed(&self) {
        self.armed_bell.notified().await;
    }

    pub(crate) fn take_armed(&self) -> Vec<Armed> {
        std::mem::take(&mut *self.armed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Look: a place became free.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Running steps may have lost their claim: whoever asks for it should be told.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Wait for a doubt. One that came before is not lost.
    pub(crate) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Wait for the bell. A ring that came before is not lost.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// What was told since the last time.
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

/// A bell for whoever places and projects: these tenants' logs have grown.
#[derive(Debug, Default)]
pub(crate) struct LogBell {
    bell: Notify,
    /// Tenants told of since the last look. Guarded for a moment, never over an await.
    tenants: Mutex<BTreeSet<String>>,
    /// A run was asked for, or something is to be tried again.
    runs: AtomicBool,
}

impl LogBell {
    pub(crate) fn poke_runs(&self) {
        self.runs.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }

    pub(crate) fn take_runs(&self) -> bool {
        self.runs.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn poke<'a>(&self, tenants: impl Iterator<Item = &'a str>) {
        let mut told = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        for tenant in tenants {
            if !told.contains(tenant) {
                told.insert(tenant.to_owned());
            }
        }
        drop(told);
        self.bell.notify_one();
    }

    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Wait for the bell. A ring that came before is not lost.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    pub(crate) fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.tenants.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
