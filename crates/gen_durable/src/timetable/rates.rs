//! The part of a forecast that rates decide: when the instances begin that wait for a rate.

use crate::model::{
    limit::Rate,
    schedule::{Forecast, TimerKind},
};

/// The instances that wait for one rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateBacklog {
    pub(super) rate: Rate,
    pub(super) waiting: i64,
    pub(super) tokens: f64,
}

/// Returns how many instances the rates let begin in each of these parts of the time ahead. Each
/// instance counts as if it weighed 1, and other bounds of its limits had room.
pub(super) fn forecast(rates: &[RateBacklog], seconds: f64, parts: i32) -> Vec<Forecast> {
    let length = seconds / f64::from(parts);
    let begun_by = |backlog: &RateBacklog, at: f64| {
        let rate = backlog.rate.weight / backlog.rate.period_seconds;
        let tokens = backlog.tokens.min(backlog.rate.burst) + at * rate;
        tokens.clamp(0.0, backlog.waiting as f64) as i64
    };
    let count_by = |at: f64| {
        rates
            .iter()
            .map(|backlog| begun_by(backlog, at))
            .sum::<i64>()
    };
    let counts = (0..parts).map(|part| {
        let part_end = count_by(f64::from(part + 1) * length);
        let part_begin = if part == 0 {
            0
        } else {
            count_by(f64::from(part) * length)
        };
        (part, part_end - part_begin)
    });
    let some = counts.filter(|(_, count)| *count > 0);
    some.map(|(part, count)| Forecast {
        part: usize::try_from(part).unwrap_or_default(),
        kind: TimerKind::Rate,
        count,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(backlog: RateBacklog) -> Vec<(usize, i64)> {
        let found = forecast(&[backlog], 3_600.0, 12);
        found.iter().map(|part| (part.part, part.count)).collect()
    }

    #[test]
    fn instances_that_wait_for_a_rate_begin_in_the_parts_in_which_it_has_tokens() {
        let rate = Rate::of(Some(2.0), Some(60.0), Some(5.0)).unwrap();
        let backlog = RateBacklog {
            rate,
            waiting: 25,
            tokens: -3.0,
        };
        assert_eq!(counts(backlog), [(0, 7), (1, 10), (2, 8)]);
        let slow = RateBacklog {
            rate: Rate::of(Some(1.0), Some(86_400.0), Some(1.0)).unwrap(),
            ..backlog
        };
        assert_eq!(counts(slow), []);
    }
}
