//! Dates, periods and cycles: the computation of due times. The functions of this module are pure:
//! they use no database and no clock, and callers pass the current time.
//!
//! The rules, each with a test against the arithmetic of Postgres:
//!
//! - Years, months, weeks and days are counted on the calendar of a zone; hours, minutes and
//!   seconds are elapsed time.
//! - Occurrence `k` of a cycle is its anchor plus `k` periods, never the previous occurrence plus
//!   one period: if the anchor is on the 31st, the occurrence after a short month is on the 31st.
//! - A day that a month does not have becomes the last day of that month.
//! - A local time that the clocks skip is shifted later by the skipped amount; a local time that
//!   occurs twice means the first of the two.

mod cron;
mod cycle;
mod due;
mod misfire;
mod period;
mod zone;

pub use cycle::{Cycle, MisfirePolicy};
pub use due::Due;
pub use period::Period;

pub(crate) use cycle::First;
pub(crate) use due::Moment;
pub(crate) use misfire::{MisfireDecision, decide};

use jiff::{SignedDuration, Timestamp};

/// An occurrence of a schedule, passed to the function that creates the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occurrence {
    /// The due time. Name the instance by this time, not by the clock.
    pub due: Timestamp,
    /// The number of missed occurrences that this occurrence replaces ([`MisfirePolicy::Latest`]).
    pub missed: u32,
    /// Whether an operator requested this occurrence.
    pub manual: bool,
}

/// Rounds a due time up to the microseconds of Postgres, so that no timer fires early. The last
/// representable time is rounded down, and times before 1970 become 1970: the text and the binary
/// form of a date then stay within the ranges of Postgres and Rust.
pub(crate) fn to_micros(at: Timestamp) -> Timestamp {
    rounded_up(at.max(Timestamp::UNIX_EPOCH))
}

/// Rounds a time up to microseconds, including a time before 1970, because the anchor of a cycle
/// may be before 1970.
fn rounded_up(at: Timestamp) -> Timestamp {
    // Does not use `from_microsecond`, which rejects the last second of the calendar.
    let down = Timestamp::new(at.as_second(), at.subsec_nanosecond() / 1_000 * 1_000).unwrap_or(at);
    if down < at {
        down.checked_add(SignedDuration::from_micros(1))
            .unwrap_or(down)
    } else {
        down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_micros_rounds_a_due_time_up_and_the_last_representable_time_down() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(
            to_micros(at("2026-01-05T08:00:00.000000001Z")),
            at("2026-01-05T08:00:00.000001Z")
        );
        assert_eq!(
            to_micros(at("2026-01-05T08:00:00.000001Z")),
            at("2026-01-05T08:00:00.000001Z")
        );
        assert_eq!(to_micros(Timestamp::MAX), at("9999-12-30T22:00:00.999999Z"));
        assert_eq!(to_micros(Timestamp::MIN), Timestamp::UNIX_EPOCH);
        assert_eq!(
            rounded_up(at("1969-12-31T23:30:00.000000001Z")),
            at("1969-12-31T23:30:00.000001Z")
        );
    }
}
