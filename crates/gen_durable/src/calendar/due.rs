//! Due times of sleeps and deadlines: after a duration, after a period on a calendar, or at a date.

use std::time::Duration;

use jiff::Timestamp;

use super::{Period, to_micros, zone};
use crate::error::Error;

/// A due time: a duration (`3 * DAY`), a [`Period`] on a calendar, or a date (a [`Timestamp`]). A
/// date in the past is due at once.
#[must_use = "a due time does nothing until it is passed to a sleep, a deadline or an enqueue"]
#[derive(Debug, Clone, PartialEq)]
pub struct Due(When);

#[derive(Debug, Clone, PartialEq)]
enum When {
    After(Duration),
    Period(Period),
    At(Timestamp),
}

/// A due time in the form that the store writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Moment {
    /// The sleep or deadline is due this duration after the commit of the step.
    After(Duration),
    /// The sleep or deadline is due at this time.
    At(Timestamp),
}

impl Due {
    /// Parses an ISO 8601 period (`P1M`, `P1D[Europe/Madrid]`) or a date with an offset or a zone
    /// (`2026-01-05T08:00:00[Europe/Madrid]`, `2026-01-05T07:00:00Z`).
    ///
    /// # Errors
    /// The text is neither a valid period nor a valid date.
    pub fn iso(text: &str) -> Result<Due, Error> {
        let when = if text.trim_start().starts_with(['P', 'p']) {
            When::Period(Period::iso(text)?)
        } else {
            When::At(zone::date(text).map_err(Error::invalid)?)
        };
        Ok(Due(when))
    }

    /// Returns the period if the due time is one, and otherwise the moment, which depends on no
    /// clock.
    pub(crate) fn into_period(self) -> Result<Period, Moment> {
        match self.0 {
            When::Period(period) => Ok(period),
            When::After(delay) => Err(Moment::After(delay)),
            When::At(at) => Err(Moment::At(to_micros(at))),
        }
    }

    /// Computes the due time for a step that began at `now`.
    pub(crate) fn moment(&self, now: Timestamp) -> Result<Moment, String> {
        match &self.0 {
            When::After(delay) => Ok(Moment::After(*delay)),
            When::At(at) => Ok(Moment::At(to_micros(*at))),
            When::Period(period) => period.after(now).map(Moment::At).ok_or_else(|| {
                format!("{period} from {now} is beyond the year 9999: use a shorter period")
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
