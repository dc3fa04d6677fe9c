//! Keeps due times of timers and deadlines in memory, only to know when to query the tables. The
//! rows are the truth: if the whole memory is lost, every timer still fires, after the timer loop
//! has read its due time from the table.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};

use crate::wake::{NewTimer, TimerDue};

/// Maximum number of due times in memory for timers that this process armed. The same maximum
/// applies to timers that other processes armed. Each due time needs 16 bytes, plus the overhead of
/// the tree.
pub(crate) const KEPT_MAX: usize = 100_000;
/// A process fires the timers that it armed. Other processes query for these timers later, by a
/// random delay up to this limit, in case the first process has crashed.
const JITTER_MICROS: u64 = 10_000;
/// In a group of workers, one worker queries for such a timer at its due time. The others query for
/// all that became due since their last query, at most this often.
const LATER_MICROS: i64 = 1_000_000;

/// A due time in microseconds, and whether it belongs to a timer or to a deadline.
type DueTime = (i64, bool);

#[derive(Debug)]
pub(crate) struct Memory {
    own: BTreeSet<DueTime>,
    others: BTreeSet<DueTime>,
    /// The last known time of the database, and when this process received it. Due times are
    /// compared with no other clock.
    now: Timestamp,
    received_at: Instant,
    jitter: RandomState,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory {
            own: BTreeSet::new(),
            others: BTreeSet::new(),
            now: Timestamp::UNIX_EPOCH,
            received_at: Instant::now(),
            jitter: RandomState::new(),
        }
    }

    /// Records the current time of the database, as a reply has reported it.
    pub(crate) fn set_now(&mut self, now: Timestamp) {
        (self.now, self.received_at) = (now, Instant::now());
    }

    /// Estimates the time of the database in microseconds. The real time is never earlier, because
    /// the reply with the time took a while to arrive.
    fn now_micros(&self) -> i64 {
        let passed = i64::try_from(self.received_at.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.now.as_microsecond().saturating_add(passed)
    }

    /// Remembers the due time of a timer or deadline that this process armed.
    pub(crate) fn arm(&mut self, armed: NewTimer) {
        let at = match armed.due {
            TimerDue::At(at) => at.as_microsecond(),
            TimerDue::After(delay, answered) => {
                let since = self.now.as_microsecond().saturating_add(
                    i64::try_from(
                        answered
                            .saturating_duration_since(self.received_at)
                            .as_micros(),
                    )
                    .unwrap_or_default(),
                );
                since.saturating_add(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX))
            }
        };
        self.own.insert((at, armed.is_timer));
        if self.own.len() > KEPT_MAX {
            // Drops the latest due time. The timer loop reads that due time from its row when it is
            // near.
            self.own.pop_last();
        }
    }

    /// Schedules another query of the timer loop for timers, or for deadlines, after this delay.
    pub(crate) fn again(&mut self, is_timer: bool, after: Duration) {
        let at = self
            .now_micros()
            .saturating_add(i64::try_from(after.as_micros()).unwrap_or_default());
        self.own.insert((at, is_timer));
    }

    /// Replaces the remembered due times of other processes' timers by the due times that the timer
    /// loop has just read from the tables. `wakes_for` returns whether this worker is the one of
    /// its group that queries for a timer at its due time.
    pub(crate) fn refill(
        &mut self,
        due: impl IntoIterator<Item = (Timestamp, bool)>,
        wakes_for: impl Fn(Timestamp) -> bool,
    ) {
        self.others.clear();
        // Each process has its own moment within a second.
        let moment = i64::try_from(self.jitter.hash_one(0) % 1_000_000).unwrap_or_default();
        for (at, is_timer) in due.into_iter().take(KEPT_MAX) {
            let entry = (at.as_microsecond(), is_timer);
            if self.own.contains(&entry) {
                continue;
            }
            let query_at = if wakes_for(at) {
                let jitter = self.jitter.hash_one(entry) % JITTER_MICROS;
                entry.0.saturating_add_unsigned(jitter)
            } else {
                let past = (entry.0.saturating_sub(moment)).rem_euclid(LATER_MICROS);
                entry.0.saturating_add(LATER_MICROS - past)
            };
            self.others.insert((query_at, is_timer));
        }
    }

    /// Returns when the timer loop has to query the tables next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let next = self
            .own
            .first()
            .into_iter()
            .chain(self.others.first())
            .map(|(at, _)| *at)
            .min()?;
        let ahead =
            u64::try_from(next.saturating_sub(self.now.as_microsecond())).unwrap_or_default();
        // If the clock cannot represent the due time, the due time is later than the next time at
        // which the timer loop reads the tables, so no query is needed for it now.
        self.received_at.checked_add(Duration::from_micros(ahead))
    }

    /// Returns whether deadlines are due, and whether timers are due. Removes due times that have
    /// passed, because the caller queries the tables now.
    pub(crate) fn due(&mut self) -> (bool, bool) {
        let now = self.now_micros();
        let mut kinds = (false, false);
        for entries in [&mut self.own, &mut self.others] {
            let later = entries.split_off(&(now.saturating_add(1), false));
            for (_, is_timer) in std::mem::replace(entries, later) {
                *if is_timer { &mut kinds.1 } else { &mut kinds.0 } = true;
            }
        }
        kinds
    }

    /// Removes all due times from memory, after an outage or during the shutdown of the engine.
    pub(crate) fn clear(&mut self) {
        self.own.clear();
        self.others.clear();
    }

    /// Returns how many due times of timers and deadlines are in memory.
    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.others.len()
    }
}

/// Returns how many seconds before `now` the timer was due.
pub(crate) fn lateness(due: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(due)
        .max(SignedDuration::ZERO)
        .as_secs_f64()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_microsecond(micros).unwrap()
    }

    #[test]
    fn the_timer_loop_keeps_a_bounded_number_of_due_times_in_memory_and_drops_the_latest() {
        let mut memory = Memory::new();
        memory.set_now(at(0));
        for n in 0..300_000_i64 {
            memory.arm(NewTimer {
                due: TimerDue::At(at(1_000_000_000_000 - n)),
                is_timer: n % 2 == 0,
            });
        }
        memory.refill(
            (0..300_000_i64).map(|n| (at(2_000_000_000_000 + n), true)),
            |_| true,
        );
        assert!(memory.len() <= 2 * KEPT_MAX);
        // The memory keeps the earliest due times.
        assert!(memory.own.contains(&(1_000_000_000_000 - 299_999, false)));
    }

    #[test]
    fn a_worker_queries_once_a_second_for_timers_that_another_worker_of_its_group_queries_first() {
        let mut memory = Memory::new();
        memory.set_now(at(0));
        let due: Vec<i64> = (1..=2_000).map(|n| n * 1_000).collect();
        let timers = || due.iter().map(|micros| (at(*micros), true));
        memory.refill(timers(), |_| true);
        assert!(memory.others.len() > 1_000);
        memory.refill(timers(), |_| false);
        let queries: Vec<i64> = memory.others.iter().map(|(at, _)| *at).collect();
        assert!(queries.len() <= 3, "{queries:?}");
        for micros in due {
            let query = queries.iter().find(|query| **query > micros).unwrap();
            assert!(query - micros <= LATER_MICROS, "{micros}: {queries:?}");
        }
    }

    #[test]
    fn the_timer_loop_treats_a_timer_as_due_by_the_clock_of_the_database_and_not_before() {
        let mut memory = Memory::new();
        memory.set_now(at(5_000_000));
        let received_at = memory.received_at;
        memory.arm(NewTimer {
            due: TimerDue::At(at(65_000_000)),
            is_timer: true,
        });
        assert_eq!(
            memory.next().unwrap(),
            received_at + Duration::from_secs(60)
        );
        assert_eq!(memory.due(), (false, false));
        // The new time of the database makes the timer due, whatever the local clock says.
        memory.set_now(at(65_000_000));
        assert_eq!(memory.due(), (false, true));
        assert_eq!(memory.due(), (false, false));
        assert_eq!(memory.next(), None);
    }

    #[test]
    fn a_process_queries_for_timers_of_other_processes_a_little_after_their_due_time() {
        let mut memory = Memory::new();
        memory.set_now(at(0));
        memory.arm(NewTimer {
            due: TimerDue::At(at(1_000_000)),
            is_timer: false,
        });
        memory.refill([(at(1_000_000), false), (at(2_000_000), false)], |_| true);
        assert_eq!(
            memory.others.len(),
            1,
            "an own due time is not kept as one of another process"
        );
        let (other, _) = *memory.others.first().unwrap();
        assert!((2_000_000..2_010_000).contains(&other), "{other}");
    }
}
