//! Steps that meet an outage of the database, run after run. An outage is not the step's failure; but one that only this step meets,
//! while the worker's lease is renewed, is.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{error::Failure, store::row::Claimed};

/// So many outages in a row, with a renewal of the lease between any two of them, are the step's failure.
const OUTAGES_MAX: u32 = 5;
/// How many instances are remembered. If there are more, all are forgotten: so many at once is an outage.
const REMEMBERED_MAX: usize = 10_000;

#[derive(Debug)]
struct Met {
    visit: i64,
    count: u32,
    /// How often the lease had been renewed when the last one was counted.
    renewals: u64,
}

/// The outages that steps of this process have met since they last did not.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// By instance. Guarded for a moment.
    met: Mutex<HashMap<i64, Met>>,
    /// How many there are: most of the time none, and then nothing is locked.
    count: AtomicUsize,
}

impl Outages {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Met>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an outage of a step. Returns what its handler is to be told if that was one too many.
    pub(super) fn met(&self, row: &Claimed, renewals: u64, error: &str) -> Option<Failure> {
        let mut all = self.lock();
        if all.len() >= REMEMBERED_MAX && !all.contains_key(&row.id) {
            all.clear();
        }
        let met = all.entry(row.id).or_insert(Met {
            visit: row.visit,
            count: 0,
            renewals: 0,
        });
        if met.visit != row.visit {
            *met = Met {
                visit: row.visit,
                count: 0,
                renewals: 0,
            };
        }
        // During an outage of the database no lease is renewed, and nothing is counted.
        if met.renewals < renewals {
            (met.count, met.renewals) = (met.count + 1, renewals);
        }
        let is_over = met.count >= OUTAGES_MAX;
        if is_over {
            all.remove(&row.id);
        }
        self.count.store(all.len(), Ordering::Relaxed);
        is_over.then(|| Failure {
            attempt: row.attempt,
            failures: row.failures,
            message: format!(
                "the step met an outage {OUTAGES_MAX} times in a row, while this worker was in contact: {error}"
            ),
            fatal: false,
        })
    }

    /// A step of this instance has ended otherwise.
    pub(super) fn over(&self, id: i64) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut all = self.lock();
            all.remove(&id);
            self.count.store(all.len(), Ordering::Relaxed);
        }
    }
}
