//! How many instances one statement of this worker may claim.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::{fault::Fault, pick::Wanted};

/// The limit of the picker and of the sweep: how many instances of one queue a statement asks for.
/// Both use one limit, because both send the same statement to the same server. A statement that
/// failed may have asked for too many, so it halves what it asked for.
#[derive(Debug)]
pub(crate) struct BatchLimit(AtomicUsize);

impl Default for BatchLimit {
    fn default() -> BatchLimit {
        BatchLimit(AtomicUsize::new(usize::MAX))
    }
}

impl BatchLimit {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Records a statement that failed. Its reply did not arrive in time, or exceeded a limit of
    /// the server; any other fault says nothing about the number of instances.
    pub(crate) fn failed(&self, wanted: &Wanted, fault: &Fault) {
        if fault.is_infrastructure() {
            let asked = wanted.room.iter().max().copied().unwrap_or_default();
            let asked = usize::try_from(asked).unwrap_or_default();
            self.0.store((asked / 2).max(1), Ordering::Relaxed);
        }
    }

    /// Records a statement that claimed this many instances. Fewer instances than the limit do not
    /// show that a statement for more of them would succeed.
    pub(crate) fn claimed(&self, count: usize) {
        let limit = self.get();
        if count >= limit {
            self.0.store(limit.saturating_mul(2), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(room: usize) -> Wanted {
        let mut wanted = Wanted::default();
        wanted.add("default", room, []);
        wanted
    }

    #[test]
    fn a_statement_that_timed_out_halves_the_limit_and_only_a_full_one_doubles_it() {
        let limit = BatchLimit::default();
        limit.failed(&asks(120), &Fault::TimedOut(String::new()));
        assert_eq!(limit.get(), 60);
        limit.claimed(59);
        assert_eq!(limit.get(), 60);
        limit.claimed(60);
        assert_eq!(limit.get(), 120);
        limit.failed(&asks(1), &Fault::TimedOut(String::new()));
        assert_eq!(limit.get(), 1);
    }
}
