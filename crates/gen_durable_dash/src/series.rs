//! The throughput and latency of the last 15 minutes, second by second: the number of enqueued
//! instances, the number of settled instances, and the time from enqueue to settled.

use std::collections::BTreeMap;

use gen_durable::inspect::{Arrived, SettledCount, Status};
use serde::Serialize;

use crate::histogram::Histogram;

/// The number of seconds for which the dashboard keeps throughput and latency in memory.
pub(crate) const KEPT_SECONDS: i64 = 900;

#[derive(Debug, Clone, Default)]
struct Second {
    arrived: i64,
    done: i64,
    failed: i64,
    took: Histogram,
    /// The number of settled instances of each machine.
    machines: BTreeMap<String, i64>,
}

/// Throughput and latency of each second. The key of the map is the number of seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Series {
    seconds: BTreeMap<i64, Second>,
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
    pub(crate) p50: Option<f64>,
    pub(crate) p95: Option<f64>,
    pub(crate) p99: Option<f64>,
    /// The number of settled instances of each machine.
    pub(crate) machines: BTreeMap<String, i64>,
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
        for row in finished.into_iter().filter(|row| row.second >= from) {
            let second = self.seconds.entry(row.second).or_default();
            match row.status {
                Status::Done => second.done += row.count,
                _ => second.failed += row.count,
            }
            second.took.add(row.class, row.count);
            *second.machines.entry(row.machine).or_default() += row.count;
        }
    }

    /// Replaces the numbers of enqueued instances of all seconds from `from` on.
    pub(crate) fn arrived(&mut self, from: i64, arrived: &[Arrived]) {
        self.seconds
            .range_mut(from..)
            .for_each(|(_, second)| second.arrived = 0);
        for row in arrived.iter().filter(|row| row.second >= from) {
            self.seconds.entry(row.second).or_default().arrived = row.count;
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
            ..Sums::default()
        };
        let mut took = Histogram::default();
        for second in self.seconds.range(from..until).map(|(_, second)| second) {
            sums.arrived += second.arrived;
            sums.done += second.done;
            sums.failed += second.failed;
            took.merge(&second.took);
            for (machine, count) in &second.machines {
                *sums.machines.entry(machine.clone()).or_default() += count;
            }
        }
        let round = |ms: f64| (ms * 10.0).round() / 10.0;
        sums.p50 = took.percentile(0.5).map(round);
        sums.p95 = took.percentile(0.95).map(round);
        sums.p99 = took.percentile(0.99).map(round);
        sums
    }
}
