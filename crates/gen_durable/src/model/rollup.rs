//! Rollups: step results counted by machine and queue in buckets of time.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::names::names;

/// The number of classes of a histogram.
pub(crate) const CLASSES: usize = Rollup::BOUNDS_MS.len() + 1;

/// A period before now for which the database has rollups, and the length of its buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RollupPeriod {
    /// The last hour, in buckets of a minute.
    Hour,
    /// The last 24 hours, in buckets of ten minutes.
    Day,
    /// The last seven days, in buckets of an hour.
    Week,
}

names!(RollupPeriod, "period", {
    Hour => "hour",
    Day => "day",
    Week => "week",
});

impl RollupPeriod {
    /// Returns the length of a bucket.
    pub const fn bucket(self) -> Duration {
        Duration::from_secs(match self {
            RollupPeriod::Hour => 60,
            RollupPeriod::Day => 600,
            RollupPeriod::Week => 3_600,
        })
    }

    /// Returns the number of buckets of the period, with the one that has not ended.
    pub const fn buckets(self) -> usize {
        match self {
            RollupPeriod::Hour => 60,
            RollupPeriod::Day => 144,
            RollupPeriod::Week => 168,
        }
    }
}

/// Counts of step results in one bucket, or over a period: of all machines and queues, or of one
/// pair of a machine and a queue.
///
/// A worker counts a result after its commit was acknowledged, in memory, and adds its counts to
/// the database about every ten seconds and when it stops. So the counts are a lower bound: a
/// worker that is killed loses those that it has not added yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Rollup {
    /// The begin of the bucket or of the period.
    pub at: Timestamp,
    /// The machine, if the counts are of one. Empty: the pairs beyond the 100 that a bucket
    /// distinguishes.
    pub machine: Option<String>,
    /// The queue, if the counts are of one. Empty as `machine`.
    pub queue: Option<String>,
    /// The number of committed step results.
    pub steps: i64,
    /// The number of these results of which the run of the step failed, whether it is repeated or
    /// not.
    pub failures: i64,
    /// The number of instances that a step result made done.
    pub done: i64,
    /// The number of instances that a step result made failed.
    pub failed: i64,
    /// A histogram of the time in the queue: from the due time of an instance to the begin of its
    /// step. It has one time for each claim. Element `n` counts the times of at most
    /// `BOUNDS_MS[n]` milliseconds, and of more than the bound before; the last element counts the
    /// times above all bounds.
    pub queue_time: Vec<i64>,
    /// A histogram of the durations of the steps, with the classes of `queue_time`.
    pub duration: Vec<i64>,
}

impl Rollup {
    /// The upper bounds of the classes of a histogram, in milliseconds.
    pub const BOUNDS_MS: [u64; 20] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000,
        1_800_000, 3_600_000, 21_600_000, 86_400_000,
    ];
}

/// Returns the class of a duration in a histogram.
pub(crate) fn class(duration: Duration) -> usize {
    Rollup::BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < duration)
}

/// The rollups of a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Rollups {
    /// The begin of the first bucket of the period.
    pub from: Timestamp,
    /// The time of the schema's clock when the rollups were read. The bucket of this time has not
    /// ended.
    pub now: Timestamp,
    /// The oldest bucket of this length in the database, of any machine and queue. `None`: no
    /// worker has added counts.
    pub oldest: Option<Timestamp>,
    /// The buckets with counts, in the order of time. A bucket without counts is missing.
    pub points: Vec<Rollup>,
    /// The sums over the period by machine and queue, the pairs with the most step results first,
    /// at most 200.
    pub pairs: Vec<Rollup>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CLASSES, class};

    #[test]
    fn a_duration_is_in_the_class_of_the_smallest_bound_that_is_not_below_it() {
        let of = |micros| class(Duration::from_micros(micros));
        assert_eq!((of(0), of(1_000), of(1_001), of(2_000)), (0, 0, 1, 1));
        assert_eq!((of(500_000), of(500_001)), (8, 9));
        assert_eq!(class(Duration::from_secs(86_400)), CLASSES - 2);
        assert_eq!(class(Duration::MAX), CLASSES - 1);
    }
}
