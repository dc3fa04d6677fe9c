//! The use of each limit in the last 15 minutes: the number of claimed steps that take the limit,
//! and the number of instances that wait for it.

use std::collections::BTreeMap;

use gen_durable::inspect::LimitInfo;
use serde::Serialize;

use crate::series::KEPT_SECONDS;

/// The dashboard reads the use of limits about once a second. A second without a read has the
/// numbers of the last read, if that read is at most this many seconds older.
const BRIDGED_SECONDS: i64 = 3;

/// The numbers of running steps and of waiting instances.
type Use = (i64, i64);

/// The use of limits at each read. The key of the map is the time of the read in seconds since
/// 1970.
#[derive(Debug, Default)]
pub(crate) struct LimitSeries {
    reads: BTreeMap<i64, BTreeMap<String, Use>>,
}

/// The use of one limit over time: arrays of equal length, one element per second. A second that
/// the dashboard did not read is null.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LimitChart {
    /// The first second of the chart, in seconds since 1970.
    from: i64,
    /// The number of seconds per point of the chart.
    step: i64,
    running: Vec<Option<i64>>,
    waiting: Vec<Option<i64>>,
}

impl LimitSeries {
    /// Adds the numbers of a read, and removes those that are older than `KEPT_SECONDS`.
    pub(crate) fn add(&mut self, now: i64, counts: &[LimitInfo]) {
        let used = counts
            .iter()
            .map(|limit| (limit.name.clone(), (limit.running, limit.waiting)));
        self.reads.insert(now, used.collect());
        self.reads = self.reads.split_off(&(now - KEPT_SECONDS));
    }

    /// Returns the use of a limit in the `window` seconds up to `now`, which is the last of them.
    pub(crate) fn show(&self, name: &str, now: i64, window: i64) -> LimitChart {
        let from = now - window + 1;
        let used = (from..=now).map(|second| self.at(name, second));
        let (running, waiting) = used
            .map(|used| {
                let (running, waiting) = used.unzip();
                (running, waiting)
            })
            .unzip();
        LimitChart {
            from,
            step: 1,
            running,
            waiting,
        }
    }

    fn at(&self, name: &str, second: i64) -> Option<Use> {
        let mut read = self.reads.range(second - BRIDGED_SECONDS..=second);
        read.next_back()?.1.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_without_a_read_has_the_numbers_of_the_read_before_and_a_longer_gap_has_none() {
        let mut series = LimitSeries::default();
        for (second, used) in [(100, (2, 7)), (102, (3, 8)), (110, (0, 0))] {
            let reads = BTreeMap::from([("api".to_owned(), used)]);
            series.reads.insert(second, reads);
        }
        let chart = series.show("api", 110, 11);
        assert_eq!((chart.from, chart.step), (100, 1));
        let (two, three) = (Some(2), Some(3));
        let running = [two, two, three, three, three, three, None, None, None, None];
        assert_eq!(chart.running, [&running[..], &[Some(0)]].concat());
        assert_eq!(chart.waiting.len(), 11);
        let other = series.show("other", 110, 11);
        assert!(other.running.iter().all(Option::is_none));
        series.add(102 + KEPT_SECONDS, &[]);
        assert_eq!(
            series.reads.keys().copied().collect::<Vec<_>>(),
            [102, 110, 102 + KEPT_SECONDS]
        );
    }
}
