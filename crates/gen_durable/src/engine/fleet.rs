//! How this worker shares its polls with other workers that can claim the same instances.
//!
//! The expected delay until an instance is claimed depends on the rate of all polls together, so
//! the workers of a group share one poll budget: each polls the less often the more workers there
//! are. The first worker of the group does the upkeep of the group. All of this is a hint: a wrong
//! count changes how often a worker polls, and never which instances it may claim.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::store::pick::{CountGroup, Group};

/// How often a pick counts the workers of the group. A count reads the rows of all workers, so in a
/// large group that has found no work for `CALM_AFTER` a worker counts less often: once in
/// `COUNT_EVERY_WORKER` for each worker of the group, up to a longest interval.
const COUNT_EVERY: Duration = Duration::from_secs(1);
const COUNT_EVERY_WORKER: Duration = Duration::from_millis(300);
const COUNT_EVERY_MAX: Duration = Duration::from_secs(30);
/// A group that has found no work for this long is calm: its workers poll and count less often.
pub(crate) const CALM_AFTER: Duration = Duration::from_secs(30);
/// A worker in a group that has work polls at least this often, however many workers the group
/// has: all others may have just been killed.
pub(crate) const SHARED_POLL_MAX: Duration = Duration::from_millis(100);
/// A worker that is not the first of its group does the upkeep of the group this much less often,
/// in case the first worker does not. In a larger group it does the upkeep even less often, so that
/// all such workers together cost about as much as the first one.
pub(crate) const FOLLOWER_UPKEEP: u32 = 4;
/// The size of a group lengthens the interval of a task of upkeep up to this interval.
const UPKEEP_MAX: Duration = Duration::from_secs(300);
/// A count that is this much older than the interval of counts says nothing: the worker then counts
/// as the first of its group. A full worker does not pick, and so does not count.
const COUNT_VALID: Duration = Duration::from_secs(4);
/// A worker that had no room for this long holds no share of the polls.
const FULL_AFTER: Duration = Duration::from_secs(1);

/// The group of workers that can claim every instance that this worker can claim.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// The number of workers in the group that poll, and how many of them come before this worker.
    size: AtomicU32,
    place: AtomicU32,
    /// When a pick last counted the group, and for how long the group had found no work then.
    counted: Mutex<Option<(Instant, Duration)>>,
    /// When this worker last found work, and whether it has since it last asked for a count.
    found_work_at: Mutex<Instant>,
    found_work: AtomicBool,
    /// Since when the picker has had no room for an instance of any queue.
    full_since: Mutex<Option<Instant>>,
    /// The clock of the database, as the replies to picks show it.
    clock: Mutex<DatabaseClock>,
    /// Whether the row of this worker says that the worker polls.
    polls: AtomicBool,
}

impl Default for Fleet {
    fn default() -> Fleet {
        Fleet {
            size: AtomicU32::new(1),
            place: AtomicU32::new(0),
            counted: Mutex::default(),
            found_work_at: Mutex::new(Instant::now()),
            found_work: AtomicBool::new(false),
            full_since: Mutex::default(),
            clock: Mutex::new(DatabaseClock::new(Instant::now())),
            polls: AtomicBool::new(true),
        }
    }
}

impl Fleet {
    /// Returns the number of workers that share the polls, at least one.
    pub(crate) fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed).max(1)
    }

    /// Returns whether this worker does the upkeep of its group.
    pub(crate) fn is_first(&self) -> bool {
        self.place.load(Ordering::Relaxed) == 0
            || self.count_age() > self.count_every() + COUNT_VALID
    }

    fn count_every(&self) -> Duration {
        if self.idle() < CALM_AFTER || self.found_work.load(Ordering::Relaxed) {
            return COUNT_EVERY;
        }
        (COUNT_EVERY_WORKER * self.size()).clamp(COUNT_EVERY, COUNT_EVERY_MAX)
    }

    fn counted(&self) -> Option<(Instant, Duration)> {
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_age(&self) -> Duration {
        self.counted()
            .map_or(Duration::MAX, |(counted_at, _)| counted_at.elapsed())
    }

    /// Returns whether the next pick should count the group.
    pub(crate) fn is_count_due(&self) -> bool {
        self.count_age() >= self.count_every()
    }

    /// Returns what the next pick should ask about the group, if it should count the group.
    pub(crate) fn count_due(&self) -> Option<CountGroup> {
        self.is_count_due().then(|| CountGroup {
            found_work: self.found_work.swap(false, Ordering::Relaxed),
        })
    }

    /// Records that this worker has found work: a pick claimed an instance, or a commit did.
    pub(crate) fn record_work(&self) {
        *self
            .found_work_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.found_work.store(true, Ordering::Relaxed);
    }

    /// Returns for how long the group has found no work, as far as this worker knows.
    pub(crate) fn idle(&self) -> Duration {
        let own = self
            .found_work_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed();
        self.counted().map_or(own, |(counted_at, idle)| {
            own.min(counted_at.elapsed().saturating_add(idle))
        })
    }

    /// Records the time of the database that a pick returned.
    pub(crate) fn set_now(&self, now: Timestamp) {
        let since = Duration::try_from(now.duration_since(Timestamp::UNIX_EPOCH));
        self.clock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .read(since.unwrap_or_default(), Instant::now());
    }

    /// Records the group as a pick has counted it.
    pub(crate) fn count(&self, group: Group) {
        self.size.store(group.size, Ordering::Relaxed);
        self.place.store(group.place, Ordering::Relaxed);
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), group.idle));
    }

    /// Returns the delay before the next poll of this worker, if one worker alone would poll after
    /// `pause`. The workers take turns: the period is as many pauses as there are workers, and each
    /// worker polls once in it. The delay is at most `max`.
    pub(crate) fn share(&self, pause: Duration, max: Duration) -> Duration {
        let now = self
            .clock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .at(Instant::now());
        self.share_at(now, pause, max)
    }

    /// Returns the delay of `share` at this time. Each worker polls at its own part of the period
    /// by the clock of the database, so that the polls are spread evenly.
    fn share_at(&self, now: Duration, pause: Duration, max: Duration) -> Duration {
        let size = self.size();
        if size == 1 {
            return pause;
        }
        let max = max.max(pause);
        let period = pause.saturating_mul(size).min(max);
        let turn = period / size * (self.place.load(Ordering::Relaxed) % size);
        let nanos = period.as_nanos().max(1);
        let since = (now.as_nanos() + nanos - turn.as_nanos()) % nanos;
        let since = Duration::from_nanos(u64::try_from(since).unwrap_or_default());
        let left = period.saturating_sub(since);
        // A timer may end a little early. The worker then has polled for this turn already.
        if left < period / 4 {
            (left + period).min(max)
        } else {
            left
        }
    }

    /// Returns whether this worker wakes for the instance that is due at this time. One worker of
    /// the group does; the polls of the others find the instance too, a little later.
    pub(crate) fn wakes_for(&self, due: Timestamp) -> bool {
        let size = u64::from(self.size());
        due.as_microsecond().unsigned_abs() % size
            == u64::from(self.place.load(Ordering::Relaxed)) % size
    }

    /// Returns `pause` for the first worker of the group, and a longer time for the others.
    pub(crate) fn upkeep(&self, pause: Duration) -> Duration {
        if self.is_first() {
            return pause;
        }
        let longest = UPKEEP_MAX.max(pause * FOLLOWER_UPKEEP);
        let workers = self.size().max(FOLLOWER_UPKEEP);
        pause.saturating_mul(workers).min(longest)
    }

    /// Records whether the picker has room for an instance.
    pub(crate) fn record_room(&self, has_room: bool) {
        let mut full_since = self
            .full_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *full_since = match (*full_since, has_room) {
            (_, true) => None,
            (None, false) => Some(Instant::now()),
            (since, false) => since,
        };
    }

    /// Returns whether this worker holds a share of the polls: it is not draining, and has had room
    /// lately.
    pub(crate) fn polls(&self, is_draining: bool) -> bool {
        let full_since = *self
            .full_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        !is_draining && full_since.is_none_or(|since| since.elapsed() < FULL_AFTER)
    }

    /// Returns whether the row of this worker says something else than `polls`.
    pub(crate) fn is_outdated(&self, polls: bool) -> bool {
        self.polls.load(Ordering::Relaxed) != polls
    }

    /// Records what the row of this worker says.
    pub(crate) fn wrote(&self, polls: bool) {
        self.polls.store(polls, Ordering::Relaxed);
    }
}

/// The clock of the database by the local clock. A reply carries the time at which its statement
/// began, and arrives a little later: the later it arrives, the more the clock would lag. So a
/// reading counts only if it is ahead of what the readings before it predict.
#[derive(Debug)]
struct DatabaseClock {
    database: Duration,
    at: Instant,
}

/// How fast a prediction falls behind the local clock, so that readings correct a local clock that
/// is too fast: one part in this many.
const CLOCK_LAG: u32 = 1_000;

impl DatabaseClock {
    fn new(at: Instant) -> DatabaseClock {
        DatabaseClock {
            database: Duration::ZERO,
            at,
        }
    }

    fn read(&mut self, database: Duration, at: Instant) {
        let since = at.saturating_duration_since(self.at);
        let predicted = self.database + since - since / CLOCK_LAG;
        // A clock that was set back makes all predictions wrong.
        let is_set_back = predicted.saturating_sub(database) > Duration::from_secs(1);
        self.database = if is_set_back {
            database
        } else {
            database.max(predicted)
        };
        self.at = at;
    }

    fn at(&self, at: Instant) -> Duration {
        self.database + at.saturating_duration_since(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn group(size: u32, place: u32) -> Group {
        Group {
            size,
            place,
            idle: Duration::ZERO,
        }
    }

    #[test]
    fn a_worker_alone_polls_at_its_own_rate_and_wakes_for_every_due_time() {
        let fleet = Fleet::default();
        assert_eq!(fleet.share(6 * MS, SHARED_POLL_MAX), 6 * MS);
        assert_eq!(fleet.share(MS, Duration::ZERO), MS);
        assert!((0..100).all(|n| fleet.wakes_for(Timestamp::from_microsecond(n).unwrap())));
        assert_eq!(fleet.upkeep(MS), MS);
    }

    /// Returns the times of the next polls of the workers of a group, which all ask at `now`.
    fn polls(size: u32, now: Duration) -> Vec<Duration> {
        let next = |place| {
            let fleet = Fleet::default();
            fleet.count(group(size, place));
            now + fleet.share_at(now, 6 * MS, SHARED_POLL_MAX)
        };
        let mut polls: Vec<Duration> = (0..size).map(next).collect();
        polls.sort();
        polls
    }

    #[test]
    fn the_workers_of_a_group_take_turns_and_poll_together_as_often_as_one_worker_alone() {
        for now in (0..100).map(|n| Duration::from_millis(1_700_000_000_003) + n * MS) {
            let polls = polls(8, now);
            for pair in polls.windows(2) {
                assert_eq!(pair[1] - pair[0], 6 * MS, "{now:?}: {polls:?}");
            }
            assert!(polls[7] <= now + 60 * MS, "{now:?}: {polls:?}");
        }
    }

    #[test]
    fn a_late_reply_does_not_delay_the_clock_of_the_database() {
        let (begun, epoch) = (Instant::now(), Duration::from_secs(1_700_000_000));
        let mut clock = DatabaseClock::new(begun);
        clock.read(epoch, begun + MS);
        clock.read(epoch + 100 * MS, begun + 150 * MS);
        let late = epoch + 199 * MS - clock.at(begun + 200 * MS);
        assert!(late < MS, "{late:?} late");
        clock.read(epoch - 5_000 * MS, begun + 300 * MS);
        assert_eq!(clock.at(begun + 300 * MS), epoch - 5_000 * MS);
    }

    #[test]
    fn workers_behind_the_first_one_share_further_upkeep_up_to_a_longest_interval() {
        let fleet = Fleet::default();
        let second = 1_000 * MS;
        for (size, expected) in [(2, 4 * second), (8, 8 * second), (1_000, 300 * second)] {
            fleet.count(group(size, 1));
            assert_eq!(fleet.upkeep(second), expected, "{size} workers");
        }
        assert_eq!(fleet.upkeep(100 * second), 400 * second);
        fleet.count(group(1_000, 0));
        assert_eq!(fleet.upkeep(second), second);
    }

    #[test]
    fn a_worker_without_work_is_as_busy_as_its_group() {
        let fleet = Fleet::default();
        assert!(fleet.count_due().is_some_and(|count| !count.found_work));
        fleet.record_work();
        assert!(fleet.count_due().is_some_and(|count| count.found_work));
        assert!(fleet.count_due().is_some_and(|count| !count.found_work));
        fleet.count(group(2, 1));
        assert!(fleet.count_due().is_none());
        let own = Instant::now().checked_sub(20_000 * MS).unwrap();
        *fleet.found_work_at.lock().unwrap() = own;
        assert!(fleet.idle() < 20_000 * MS, "another worker found work");
        fleet.count(Group {
            idle: 1_000_000 * MS,
            ..group(2, 1)
        });
        let idle = fleet.idle();
        assert!(
            idle >= 20_000 * MS && idle < 1_000_000 * MS,
            "this worker did"
        );
    }

    #[test]
    fn a_calm_group_is_counted_less_often_the_larger_it_is_and_at_once_when_it_finds_work() {
        let fleet = Fleet::default();
        let long_ago = Instant::now().checked_sub(CALM_AFTER).unwrap();
        *fleet.found_work_at.lock().unwrap() = long_ago;
        for (size, expected) in [(1, 1_000), (3, 1_000), (50, 15_000), (1_000, 30_000)] {
            fleet.count(Group {
                idle: CALM_AFTER,
                ..group(size, 0)
            });
            assert_eq!(fleet.count_every(), expected * MS, "{size} workers");
        }
        fleet.record_work();
        assert_eq!(fleet.count_every(), COUNT_EVERY);
    }

    #[test]
    fn a_worker_of_a_large_group_still_polls_several_times_a_second() {
        let now = Duration::from_millis(1_700_000_000_003);
        let polls = polls(1_000, now);
        assert!(polls[999] <= now + SHARED_POLL_MAX, "{polls:?}");
    }

    #[test]
    fn exactly_one_worker_of_a_group_wakes_for_a_due_time() {
        let group: Vec<Fleet> = (0..7)
            .map(|place| {
                let fleet = Fleet::default();
                fleet.count(group(7, place));
                fleet
            })
            .collect();
        for n in 0..100 {
            let due = Timestamp::from_microsecond(1_700_000_000_000_000 + n).unwrap();
            assert_eq!(group.iter().filter(|one| one.wakes_for(due)).count(), 1);
        }
    }

    #[test]
    fn a_worker_that_drains_holds_no_share_of_the_polls() {
        let fleet = Fleet::default();
        assert!(fleet.polls(false) && !fleet.polls(true));
        assert!(fleet.is_outdated(false) && !fleet.is_outdated(true));
        fleet.wrote(false);
        assert!(!fleet.is_outdated(false) && fleet.is_outdated(true));
    }
}
