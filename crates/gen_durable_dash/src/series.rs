//! The throughput and latency of the last 15 minutes, second by second: the number of enqueued
//! instances, the number of settled instances, and the time from enqueue to settled.

use std::collections::BTreeMap;

use gen_durable::inspect::{Arrived, SettledCount, Status};
use serde::Serialize;

use crate::histogram::Histogram;

/// The number of seconds for which the dashboard keeps throughput and latency in memory.
pub(crate) const KEPT_SECONDS: i64 = 900;
/// The largest number of settled, and of new, instances that one read of the database counts.
const SAMPLED_MAX: i64 = 20_000;

#[derive(Debug, Clone, Default)]
struct Second {
    arrived: i64,
    settled: Settled,
    /// The settled instances of each machine.
    machines: BTreeMap<String, Settled>,
}

/// The numbers of settled instances by status, and the times of those that are done or failed. The
/// time of a cancelled instance says how long it waited until it was cancelled, so it is left out.
#[derive(Debug, Clone, Default)]
struct Settled {
    done: i64,
    failed: i64,
    cancelled: i64,
    took: Histogram,
}

impl Settled {
    fn add(&mut self, row: &SettledCount) {
        match row.status {
            Status::Done => self.done += row.count,
            Status::Cancelled => self.cancelled += row.count,
            _ => self.failed += row.count,
        }
        if row.status != Status::Cancelled {
            self.took.add(row.class, row.count);
        }
    }

    fn merge(&mut self, other: &Settled) {
        self.done += other.done;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.took.merge(&other.took);
    }

    /// Returns a percentile of the times in milliseconds.
    fn percentile(&self, share: f64) -> Option<f64> {
        let exact = self.took.percentile(share);
        exact.map(|ms| (ms * 10.0).round() / 10.0)
    }
}

/// The settled instances of one machine over a range of seconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct MachineSums {
    pub(crate) done: i64,
    pub(crate) failed: i64,
    pub(crate) cancelled: i64,
    pub(crate) p50: Option<f64>,
    pub(crate) p95: Option<f64>,
    pub(crate) p99: Option<f64>,
}

impl MachineSums {
    /// Returns the number of all settled instances.
    pub(crate) fn settled(&self) -> i64 {
        self.done + self.failed + self.cancelled
    }
}

/// Throughput and latency of each second. The key of the map is the number of seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Series {
    seconds: BTreeMap<i64, Second>,
    /// The seconds of which a read may have counted only a part: from the first one (inclusive) to
    /// the second one (exclusive).
    partial: (i64, i64),
}

/// A chart: arrays of equal length, one element per point.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Chart {
    /// The start of the first point of the chart, in seconds since 1970.
    pub(crate) from: i64,
    /// The number of seconds per point of the chart.
    pub(crate) step: i64,
    pub(crate) arrived: Vec<i64>,
    pub(crate) done: Vec<i64>,
    pub(crate) failed: Vec<i64>,
    pub(crate) cancelled: Vec<i64>,
    /// The median of the milliseconds from enqueue to settled at each point of the chart; null if
    /// no instance settled in the time of that point.
    pub(crate) p50: Vec<Option<f64>>,
    pub(crate) p95: Vec<Option<f64>>,
    pub(crate) p99: Vec<Option<f64>>,
}

/// The numbers of enqueued and settled instances, and percentiles of the time from enqueue to
/// settled, over a range of seconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Sums {
    pub(crate) seconds: i64,
    pub(crate) arrived: i64,
    pub(crate) done: i64,
    pub(crate) failed: i64,
    pub(crate) cancelled: i64,
    /// Whether the numbers are lower bounds, because a read of the database counts at most
    /// `SAMPLED_MAX` instances.
    pub(crate) is_lower_bound: bool,
    pub(crate) p50: Option<f64>,
    pub(crate) p95: Option<f64>,
    pub(crate) p99: Option<f64>,
    /// The settled instances of each machine.
    pub(crate) machines: BTreeMap<String, MachineSums>,
}

impl Series {
    /// Replaces the numbers of settled instances of all seconds from `from` on. The dashboard reads
    /// these seconds more than once, because a commit may become visible later than its timestamp
    /// says.
    pub(crate) fn settled(&mut self, from: i64, finished: Vec<SettledCount>) {
        for second in self.seconds.range_mut(from..).map(|(_, second)| second) {
            *second = Second {
                arrived: second.arrived,
                ..Second::default()
            };
        }
        let read = finished.iter().map(|row| (row.second, row.count));
        self.note_partial(from, read);
        for row in finished.into_iter().filter(|row| row.second >= from) {
            let second = self.seconds.entry(row.second).or_default();
            second.settled.add(&row);
            second
                .machines
                .entry(row.machine.clone())
                .or_default()
                .add(&row);
        }
    }

    /// Replaces the numbers of enqueued instances of all seconds from `from` on.
    pub(crate) fn arrived(&mut self, from: i64, arrived: &[Arrived]) {
        self.seconds
            .range_mut(from..)
            .for_each(|(_, second)| second.arrived = 0);
        self.note_partial(from, arrived.iter().map(|row| (row.second, row.count)));
        for row in arrived.iter().filter(|row| row.second >= from) {
            self.seconds.entry(row.second).or_default().arrived = row.count;
        }
    }

    /// Notes which seconds from `from` on the read has counted in part. A read returns the newest
    /// `SAMPLED_MAX` instances, so it is complete only after the oldest second that it returns.
    fn note_partial(&mut self, from: i64, read: impl Iterator<Item = (i64, i64)>) {
        let (mut oldest, mut count) = (i64::MAX, 0);
        for (second, of) in read {
            oldest = oldest.min(second);
            count += of;
        }
        if count >= SAMPLED_MAX && oldest >= from {
            self.partial = match self.partial {
                (first, end) if end > from => (first.min(from), end.max(oldest + 1)),
                _ => (from, oldest + 1),
            };
        }
    }

    /// Removes the throughput and latency of seconds that are older than `KEPT_SECONDS`.
    pub(crate) fn trim(&mut self, now: i64) {
        self.seconds = self.seconds.split_off(&(now - KEPT_SECONDS));
    }

    /// Returns a chart of the last `window` seconds before `now`, with `step` seconds per point.
    pub(crate) fn show(&self, now: i64, window: i64, step: i64) -> Chart {
        let step = step.max(1);
        // The points of the chart begin at multiples of `step`, so that the values of a point do
        // not change as `now` advances.
        let end = now.div_euclid(step) * step;
        let mut shown = Chart {
            from: end - window,
            step,
            ..Chart::default()
        };
        let mut at = shown.from;
        while at < end {
            let sums = self.sums(at, at + step);
            shown.arrived.push(sums.arrived);
            shown.done.push(sums.done);
            shown.failed.push(sums.failed);
            shown.cancelled.push(sums.cancelled);
            shown.p50.push(sums.p50);
            shown.p95.push(sums.p95);
            shown.p99.push(sums.p99);
            at += step;
        }
        shown
    }

    /// Returns the numbers of enqueued and settled instances over the seconds from `from`
    /// (inclusive) to `until` (exclusive).
    pub(crate) fn sums(&self, from: i64, until: i64) -> Sums {
        let mut sums = Sums {
            seconds: until - from,
            is_lower_bound: from < self.partial.1 && until > self.partial.0,
            ..Sums::default()
        };
        let mut settled = Settled::default();
        let mut machines: BTreeMap<&str, Settled> = BTreeMap::new();
        for second in self.seconds.range(from..until).map(|(_, second)| second) {
            sums.arrived += second.arrived;
            settled.merge(&second.settled);
            for (machine, of) in &second.machines {
                machines.entry(machine).or_default().merge(of);
            }
        }
        sums.done = settled.done;
        sums.failed = settled.failed;
        sums.cancelled = settled.cancelled;
        sums.p50 = settled.percentile(0.5);
        sums.p95 = settled.percentile(0.95);
        sums.p99 = settled.percentile(0.99);
        let of_machine = |(machine, of): (&str, Settled)| {
            let sums = MachineSums {
                done: of.done,
                failed: of.failed,
                cancelled: of.cancelled,
                p50: of.percentile(0.5),
                p95: of.percentile(0.95),
                p99: of.percentile(0.99),
            };
            (machine.to_owned(), sums)
        };
        sums.machines = machines.into_iter().map(of_machine).collect();
        sums
    }
}
