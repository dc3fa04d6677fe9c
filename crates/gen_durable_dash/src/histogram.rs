//! A histogram that counts durations in logarithmic classes, four classes for each doubling of the
//! duration. The dashboard stores class counts per second and not percentiles, because counts of
//! several seconds can be added and percentiles cannot.

use std::collections::BTreeMap;

/// The number of durations in each logarithmic class.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Histogram {
    classes: BTreeMap<i32, i64>,
}

impl Histogram {
    pub(crate) fn add(&mut self, class: i32, count: i64) {
        *self.classes.entry(class).or_default() += count;
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        other
            .classes
            .iter()
            .for_each(|(class, count)| self.add(*class, *count));
    }

    pub(crate) fn count(&self) -> i64 {
        self.classes.values().sum()
    }

    /// Returns the percentile `share` of the counted durations in milliseconds, with an error of at
    /// most a fifth. Returns `None` if the histogram is empty.
    pub(crate) fn percentile(&self, share: f64) -> Option<f64> {
        let all = self.count();
        if all == 0 {
            return None;
        }
        let wanted = share * all as f64;
        let mut before = 0_i64;
        for (class, count) in &self.classes {
            let reached = before + count;
            if reached as f64 >= wanted {
                let within = ((wanted - before as f64) / *count as f64).clamp(0.0, 1.0);
                return Some((2.0_f64).powf((f64::from(*class) + within) / 4.0));
            }
            before = reached;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;

    #[test]
    fn a_percentile_of_the_histogram_differs_from_the_exact_value_by_less_than_20_percent() {
        let mut histogram = Histogram::default();
        for ms in 1..=1000_i32 {
            histogram.add((4.0 * f64::from(ms).log2()).floor() as i32, 1);
        }
        for (share, expected) in [(0.5, 500.0), (0.95, 950.0), (0.99, 990.0)] {
            let found = histogram.percentile(share).unwrap_or_default();
            assert!(
                (found / expected - 1.0_f64).abs() < 0.2,
                "{share}: {found} instead of {expected}"
            );
        }
        assert_eq!(Histogram::default().percentile(0.5), None);
    }
}
