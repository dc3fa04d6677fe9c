//! The watermarks of the picker: for each queue and priority, where the next pick begins to read
//! the index of runnable instances.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};

use super::local::HeldInstance;
use crate::store::pick::Mark;

/// How far the watermark of a priority stays behind the current time. A transaction that enqueues
/// an instance commits a little after the due time that it wrote. Because of the distance, the
/// watermark has not passed most rows that commit late. The distance is up to the maximum while
/// there is little work, and falls to the minimum under load. The sweep finds rows that commit even
/// later.
const LATE_COMMITS_MIN: Duration = Duration::from_millis(50);
const LATE_COMMITS_MAX: Duration = Duration::from_secs(5);
/// How many rows that are already claimed a pick may have to skip. This number and the rate of
/// claimed rows determine the distance between the watermark and the current time.
const PASSED_MAX: f64 = 200.0;
/// The picker forgets a priority that neither a hint nor a sweep has named for this long. A sweep
/// names the priority before its rows become due.
const PRIORITY_FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The state of the picker for one priority of a queue.
#[derive(Debug, Clone, Copy)]
struct PriorityMark {
    /// Where the next pick of this priority begins to read the index of runnable instances.
    mark: Mark,
    /// When the priority was last in use: a hint or the sweep named it, or a pick claimed a row of
    /// it.
    used_at: Instant,
}

impl PriorityMark {
    fn new() -> PriorityMark {
        PriorityMark {
            mark: Mark::START,
            used_at: Instant::now(),
        }
    }
}

/// How far a pick has read a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reached {
    /// The last claimed instance: its priority and its position in the index.
    pub(super) last: Option<(i16, Mark)>,
    /// Whether the pick claimed as many instances as it had asked for, so that more may be due.
    pub(super) is_full: bool,
    /// The time of the database.
    pub(super) now: Timestamp,
}

/// The priorities in use in each queue, each with its watermark.
#[derive(Debug, Default)]
pub(super) struct Watermarks {
    queues: HashMap<String, BTreeMap<i16, PriorityMark>>,
}

impl Watermarks {
    /// Forgets all watermarks and priorities.
    pub(super) fn clear(&mut self) {
        self.queues.clear();
    }

    /// Adds a priority that is in use.
    pub(super) fn add(&mut self, queue: String, priority: i16) {
        let marks = self.queues.entry(queue).or_default();
        marks.entry(priority).or_insert_with(PriorityMark::new);
    }

    /// Records that these priorities of a queue are in use.
    pub(super) fn keep(&mut self, queue: &str, used: impl IntoIterator<Item = i16>) {
        let marks = self.queues.entry(queue.to_owned()).or_default();
        for priority in used {
            marks
                .entry(priority)
                .or_insert_with(PriorityMark::new)
                .used_at = Instant::now();
        }
    }

    /// Lowers the watermark of a priority to this due time.
    pub(super) fn lower(&mut self, queue: String, priority: i16, to: Timestamp) {
        let marks = self.queues.entry(queue).or_default();
        let known = marks.entry(priority).or_insert_with(PriorityMark::new);
        *known = PriorityMark {
            mark: known.mark.min(Mark { at: to, id: 0 }),
            used_at: Instant::now(),
        };
    }

    /// Makes the next pick read a queue from its beginning.
    pub(super) fn restart(&mut self, queue: &str) {
        for known in self.queues.get_mut(queue).into_iter().flatten() {
            known.1.mark = Mark::START;
        }
    }

    /// Returns the priorities that a pick of this queue reads, each with its watermark, the most
    /// urgent priority first.
    pub(super) fn ranges(&mut self, queue: &str) -> impl Iterator<Item = (i16, Mark)> {
        let marks = self.queues.entry(queue.to_owned()).or_default();
        // Each priority costs an index probe in every pick, so the picker forgets a priority that
        // is no longer in use.
        forget_unused(marks, Instant::now());
        marks.entry(0).or_insert_with(PriorityMark::new);
        marks
            .iter()
            .map(|(priority, known)| (*priority, known.mark))
    }

    /// Records that the priorities of the claimed rows are in use. The runs are sorted by priority.
    pub(super) fn mark_used(&mut self, queue: &str, runs: &[HeldInstance]) {
        let Some(marks) = self.queues.get_mut(queue) else {
            return;
        };
        for same in runs.chunk_by(|a, b| a.row.priority == b.row.priority) {
            if let Some(known) = same
                .first()
                .and_then(|run| marks.get_mut(&run.row.priority))
            {
                known.used_at = Instant::now();
            }
        }
    }

    /// Moves the watermarks of a fair queue after a pick that has found more due instances than it
    /// had room for. The picker knows the tenants of all instances before the new watermarks.
    /// `reached` has the priorities that the pick has not read to the end, and how far it has.
    pub(super) fn advance_fair(
        &mut self,
        queue: &str,
        reached: &BTreeMap<i16, Mark>,
        now: Timestamp,
        rate: f64,
    ) {
        let seen_to = seen_to(now, rate);
        for (priority, known) in self.queues.get_mut(queue).into_iter().flatten() {
            let reached = reached.get(priority).copied().unwrap_or(seen_to);
            known.mark = known.mark.max(reached.min(seen_to));
        }
    }

    /// Moves the watermarks of a queue after a pick. `rate` is how many rows per second all workers
    /// of the group claim.
    pub(super) fn advance(&mut self, queue: &str, reached: Reached, rate: f64) {
        let Some(marks) = self.queues.get_mut(queue) else {
            return;
        };
        let seen_to = seen_to(reached.now, rate);
        for (priority, known) in marks.iter_mut() {
            let reached = match (reached.is_full, reached.last) {
                // The pick returned fewer rows than it asked for, so it has claimed every due row.
                (false, _) => seen_to,
                // This priority is more urgent than the priority at which the pick ended, so the
                // pick has claimed every due row of this priority.
                (true, Some((stopped, _))) if *priority < stopped => seen_to,
                (true, Some((stopped, mark))) if *priority == stopped => mark.min(seen_to),
                // The pick ended at a more urgent priority, so it did not read this priority.
                _ => continue,
            };
            known.mark = known.mark.max(reached);
        }
    }
}

/// Returns how far a watermark may move at this time of the database.
fn seen_to(now: Timestamp, rate: f64) -> Mark {
    let late = Duration::try_from_secs_f64(PASSED_MAX / rate.max(1.0)).unwrap_or(LATE_COMMITS_MAX);
    let late = late.clamp(LATE_COMMITS_MIN, LATE_COMMITS_MAX);
    Mark {
        at: now - SignedDuration::try_from(late).unwrap_or_default(),
        id: 0,
    }
}

fn forget_unused(marks: &mut BTreeMap<i16, PriorityMark>, now: Instant) {
    marks
        .retain(|_, known| now.saturating_duration_since(known.used_at) < PRIORITY_FORGOTTEN_AFTER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picker_forgets_a_priority_that_was_not_used_for_a_while() {
        let mut marks = BTreeMap::from([(3, PriorityMark::new())]);
        let begun = Instant::now();
        marks.insert(
            5,
            PriorityMark {
                mark: Mark::START,
                used_at: begun + PRIORITY_FORGOTTEN_AFTER,
            },
        );
        forget_unused(
            &mut marks,
            begun + PRIORITY_FORGOTTEN_AFTER + PRIORITY_FORGOTTEN_AFTER / 2,
        );
        assert_eq!(marks.into_keys().collect::<Vec<_>>(), [5]);
    }
}
