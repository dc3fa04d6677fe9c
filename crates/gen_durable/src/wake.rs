//! Who should look now. A wake is only a hint: with all of them lost, the poll still finds everything.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use tokio::sync::Notify;

/// "There is work in this queue at this priority, due from then on."
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hint {
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) from: Timestamp,
}

/// A bell that the picker of one engine listens to.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    bell: Notify,
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

    /// Look: a place became free.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Wait for the bell. A ring that came before is not lost.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// What was told since the last time.
    pub(crate) fn take_hints(&self) -> Vec<Hint> {
        let taken = std::mem::take(&mut *self.lowest.lock().unwrap_or_else(PoisonError::into_inner));
        taken.into_iter().map(|((queue, priority), from)| Hint { queue, priority, from }).collect()
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
