//! Dates, periods and cycles: when something falls due. Pure: no database, and no clock but the one that is handed in.
//!
//! The rules, each with a test against Postgres's own arithmetic:
//!
//! - Years, months, weeks and days are counted on the calendar of a zone; hours, minutes and seconds are time that passes.
//! - Occurrence `k` of a cycle is its anchor plus `k` periods, never the last occurrence plus one: the 31st comes back.
//! - A day that a month does not have is its last one.
//! - A local time that the clocks skip is as much later as they skip; one that comes twice is the first of the two.

mod cron;
mod cycle;
mod due;
mod judge;
mod period;
mod zone;

pub use cycle::{Cycle, Missed};
pub use due::Due;
pub use period::Period;

pub(crate) use cycle::First;
pub(crate) use due::Moment;
pub(crate) use judge::{Judgement, judge};

use jiff::{SignedDuration, Timestamp};

/// An occurrence of a schedule, for whoever makes what it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occurrence {
    /// When it was due: by this, and not by the clock, should what it starts be named.
    pub due: Timestamp,
    /// How many occurrences before it were missed and stand behind this one ([`Missed::Latest`]).
    pub missed: u32,
    /// Whether somebody asked for it by hand.
    pub by_hand: bool,
}

/// Rounds a due time up to Postgres' microseconds, so that nothing is ever early. The last moment of all is rounded down, and
/// one before 1970 is 1970: both the text and the binary form of a date are then within what Postgres and Rust can hold.
pub(crate) fn to_micros(at: Timestamp) -> Timestamp {
    rounded_up(at.max(Timestamp::UNIX_EPOCH))
}

/// Rounds a moment of the calendar up to microseconds, also one before 1970: occurrences are counted from there.
fn rounded_up(at: Timestamp) -> Timestamp {
    // Not by `from_microsecond`: it refuses the last second of the calendar.
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
    fn a_due_time_is_rounded_up_and_the_last_moment_down() {
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
