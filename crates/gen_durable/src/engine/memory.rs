//! What a process keeps in mind of timers: when to look, and nothing else. The rows are the truth; with all of this forgotten
//! everything still happens, at the refill's pace.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};

use crate::wake::{Armed, ArmedFor};

/// At most so many due times are kept of what was armed here, and as many of what was armed elsewhere: 16 bytes each, and
/// what a tree needs around them.
pub(crate) const KEPT_MAX: usize = 100_000;
/// What another process armed, it fires itself; when it does not, others come up to this much later.
const JITTER_MICROS: u64 = 10_000;

/// A due time in microseconds, and whether it is a timer's or a deadline's.
type Entry = (i64, bool);

#[derive(Debug)]
pub(crate) struct Memory {
    own: BTreeSet<Entry>,
    others: BTreeSet<Entry>,
    /// The database's time, and when we were told: no other clock counts here.
    now: Timestamp,
    told: Instant,
    jitter: RandomState,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory {
            own: BTreeSet::new(),
            others: BTreeSet::new(),
            now: Timestamp::UNIX_EPOCH,
            told: Instant::now(),
            jitter: RandomState::new(),
        }
    }

    /// The database has said what time it is.
    pub(crate) fn tell(&mut self, now: Timestamp) {
        (self.now, self.told) = (now, Instant::now());
    }

    /// The database's time, as far as we know. It is later there, never earlier: its answer took a while to come.
    fn now_micros(&self) -> i64 {
        let passed = i64::try_from(self.told.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.now.as_microsecond().saturating_add(passed)
    }

    /// Something was armed here.
    pub(crate) fn arm(&mut self, armed: Armed) {
        let at = match armed.due {
            ArmedFor::At(at) => at.as_microsecond(),
            ArmedFor::After(delay, answered) => {
                let since = self.now.as_microsecond().saturating_add(
                    i64::try_from(answered.saturating_duration_since(self.told).as_micros())
                        .unwrap_or_default(),
                );
                since.saturating_add(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX))
            }
        };
        self.own.insert((at, armed.is_timer));
        if self.own.len() > KEPT_MAX {
            // The farthest: the refill finds it when its time comes near.
            self.own.pop_last();
        }
    }

    /// Look again at this time.
    pub(crate) fn again(&mut self, is_timer: bool, after: Duration) {
        let at = self
            .now_micros()
            .saturating_add(i64::try_from(after.as_micros()).unwrap_or_default());
        self.own.insert((at, is_timer));
    }

    /// What the table says of the time around now. It replaces what we knew of others' timers.
    pub(crate) fn refill(&mut self, due: impl IntoIterator<Item = (Timestamp, bool)>) {
        self.others.clear();
        for (at, is_timer) in due.into_iter().take(KEPT_MAX) {
            let entry = (at.as_microsecond(), is_timer);
            if !self.own.contains(&entry) {
                let jitter = self.jitter.hash_one(entry) % JITTER_MICROS;
                self.others
                    .insert((entry.0.saturating_add_unsigned(jitter), is_timer));
            }
        }
    }

    /// When to look next.
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
        // A time that no clock here can show is beyond every refill.
        self.told.checked_add(Duration::from_micros(ahead))
    }

    /// Which kinds are due: (deadlines, timers). They are forgotten: whoever asks now looks.
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

    /// Forget everything: after an outage, or while draining.
    pub(crate) fn clear(&mut self) {
        self.own.clear();
        self.others.clear();
    }

    /// How many due times are kept.
    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.others.len()
    }
}

/// How long before now something was due.
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
    fn what_is_kept_is_bounded_however_much_is_armed() {
        let mut memory = Memory::new();
        memory.tell(at(0));
        for n in 0..300_000_i64 {
            memory.arm(Armed {
                due: ArmedFor::At(at(1_000_000_000_000 - n)),
                is_timer: n % 2 == 0,
            });
        }
        memory.refill((0..300_000_i64).map(|n| (at(2_000_000_000_000 + n), true)));
        assert!(memory.len() <= 2 * KEPT_MAX);
        // The nearest were kept.
        assert!(memory.own.contains(&(1_000_000_000_000 - 299_999, false)));
    }

    #[test]
    fn a_look_comes_at_the_due_time_by_the_databases_clock_and_not_before() {
        let mut memory = Memory::new();
        memory.tell(at(5_000_000));
        let told = memory.told;
        memory.arm(Armed {
            due: ArmedFor::At(at(65_000_000)),
            is_timer: true,
        });
        assert_eq!(memory.next().unwrap(), told + Duration::from_secs(60));
        assert_eq!(memory.due(), (false, false));
        // A clock that is told anew, whatever this machine's own says.
        memory.tell(at(65_000_000));
        assert_eq!(memory.due(), (false, true));
        assert_eq!(memory.due(), (false, false));
        assert_eq!(memory.next(), None);
    }

    #[test]
    fn what_others_armed_is_looked_at_a_little_later_than_what_was_armed_here() {
        let mut memory = Memory::new();
        memory.tell(at(0));
        memory.arm(Armed {
            due: ArmedFor::At(at(1_000_000)),
            is_timer: false,
        });
        memory.refill([(at(1_000_000), false), (at(2_000_000), false)]);
        assert_eq!(
            memory.others.len(),
            1,
            "what is known as ours is not taken for another's"
        );
        let (other, _) = *memory.others.first().unwrap();
        assert!((2_000_000..2_010_000).contains(&other), "{other}");
    }
}
