//! When a sleep or a deadline ends: after a while, after a period on a calendar, or at a date.

use std::time::Duration;

use jiff::Timestamp;

use super::{Period, to_micros, zone};
use crate::error::Error;

/// When something is due: a duration (`3 * DAY`), a [`Period`] on a calendar, or a date (a [`Timestamp`]). One that lies in the
/// past is now.
#[derive(Debug, Clone, PartialEq)]
pub struct Due(When);

#[derive(Debug, Clone, PartialEq)]
enum When {
    After(Duration),
    Period(Period),
    At(Timestamp),
}

/// A due time as a row is told it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Moment {
    /// So long after the commit.
    After(Duration),
    /// Then.
    At(Timestamp),
}

impl Due {
    /// From text: an ISO 8601 period (`P1M`, `P1D[Europe/Madrid]`) or a date with an offset or a zone
    /// (`2026-01-05T08:00:00[Europe/Madrid]`, `2026-01-05T07:00:00Z`).
    pub fn iso(text: &str) -> Result<Due, Error> {
        let when = if text.trim_start().starts_with(['P', 'p']) {
            When::Period(Period::iso(text)?)
        } else {
            When::At(zone::date(text).map_err(Error::invalid)?)
        };
        Ok(Due(when))
    }

    /// What it comes to for a step that began at `now`.
    pub(crate) fn moment(&self, now: Timestamp) -> Result<Moment, String> {
        match &self.0 {
            When::After(delay) => Ok(Moment::After(*delay)),
            When::At(at) => Ok(Moment::At(to_micros(*at))),
            When::Period(period) => period.after(now).map(Moment::At).ok_or_else(|| {
                format!("{period} from {now} is beyond the year 9999: say a shorter period")
            }),
        }
    }
}

impl From<Duration> for Due {
    fn from(delay: Duration) -> Due {
        Due(When::After(delay))
    }
}
impl From<Timestamp> for Due {
    fn from(at: Timestamp) -> Due {
        Due(When::At(at))
    }
}
impl From<Period> for Due {
    fn from(period: Period) -> Due {
        Due(When::Period(period))
    }
}
