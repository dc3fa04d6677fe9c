//! Counts, for each instance, how many runs of its step in a row met an outage of the database. A
//! single outage is not a failure of the step. But if only this step meets outages, while the
//! worker can renew its lease, the outages count as a failure of the step.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    failure::{Failure, FailureKind},
    store::row::Claimed,
};

/// If a step meets this many outages in a row, and the worker renews its lease between any two of
/// them, the outages count as a failure of the step.
const OUTAGES_MAX: u32 = 5;
/// For how many instances a process remembers outages. If there are more instances, the process
/// forgets all of them, because so many outages at once are an outage of the database and not
/// failures of steps.
const REMEMBERED_MAX: usize = 10_000;

#[derive(Debug)]
struct Met {
    step_entry_seq: i64,
    count: u32,
    /// How often the worker had renewed its lease when it counted the last outage of this instance.
    renewals: u64,
}

/// The outages that steps of this process have met, counted for each instance since its last run
/// without an outage.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// The counts of outages by instance id. No code holds the mutex for long.
    met: Mutex<HashMap<i64, Met>>,
    /// Number of instances in `met`. While it is zero, which is usual, `over` does not lock the
    /// map.
    count: AtomicUsize,
}

impl Outages {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Met>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an outage that a step has met. If the limit is reached, returns the failure for the
    /// step's handler.
    pub(super) fn met(&self, row: &Claimed, renewals: u64, error: &str) -> Option<Failure> {
        let mut all = self.lock();
        if all.len() >= REMEMBERED_MAX && !all.contains_key(&row.id) {
            all.clear();
        }
        let met = all.entry(row.id).or_insert(Met {
            step_entry_seq: row.step_entry_seq,
            count: 0,
            renewals: 0,
        });
        if met.step_entry_seq != row.step_entry_seq {
            *met = Met {
                step_entry_seq: row.step_entry_seq,
                count: 0,
                renewals: 0,
            };
        }
        // While the database cannot be reached, the worker does not renew its lease, so the
        // function counts no outage of the step.
        if met.renewals < renewals {
            (met.count, met.renewals) = (met.count + 1, renewals);
        }
        let is_over = met.count >= OUTAGES_MAX;
        if is_over {
            all.remove(&row.id);
        }
        self.count.store(all.len(), Ordering::Relaxed);
        is_over.then(|| {
            let message = format!(
                "the step met a database outage {OUTAGES_MAX} times in a row while this worker could renew its lease: {error}"
            );
            Failure::new(FailureKind::Outage, row.counts(), message, false)
        })
    }

    /// Removes the count of an instance after its step ended without an outage.
    pub(super) fn over(&self, id: i64) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut all = self.lock();
            all.remove(&id);
            self.count.store(all.len(), Ordering::Relaxed);
        }
    }
}
