//! An ISO 8601 period, with the time zone of its calendar.

use std::{fmt, time::Duration};

use jiff::{Span, Timestamp, Zoned, civil::DateTime, fmt::temporal::SpanParser, tz::TimeZone};

use super::zone;
use crate::error::Error;

/// The shortest period that a cycle may have.
const PERIOD_MIN: Duration = Duration::from_millis(1);
const NANOS_PER_SECOND: i128 = 1_000_000_000;
/// The approximate lengths of the calendar units, used only to estimate where a search begins.
const YEAR_SECONDS: f64 = 365.2425 * 86_400.0;
const MONTH_SECONDS: f64 = YEAR_SECONDS / 12.0;

/// A period on the calendar of a time zone: `Period::iso("P1M")?`, or
/// `Period::iso("P1M[Europe/Madrid]")?`. Without a zone, the calendar is that of UTC. Years,
/// months, weeks and days are counted on the calendar; hours, minutes and seconds are elapsed time.
#[must_use = "a period does nothing until it is passed to a sleep, a deadline or a cycle"]
#[derive(Clone)]
pub struct Period {
    /// The years, months, weeks and days of the period.
    calendar: Span,
    /// The hours, minutes and seconds of the period, in nanoseconds.
    time: i128,
    zone: TimeZone,
    text: String,
}

impl Period {
    /// Parses the ISO 8601 form: `PT10M`, `P1DT12H`, `P1M`, `P1Y2M3DT4H5M6.5S`; with a zone,
    /// `P1M[Europe/Madrid]`.
    ///
    /// # Errors
    /// The text is not a valid period, or the period is negative or too short.
    pub fn iso(text: &str) -> Result<Period, Error> {
        Period::parse(text).map_err(Error::invalid)
    }

    /// Sets the time zone of the period's calendar.
    ///
    /// # Errors
    /// There is no time zone with this name.
    pub fn time_zone(mut self, name: &str) -> Result<Period, Error> {
        self.zone = zone::zone(name).map_err(Error::invalid)?;
        Ok(self)
    }

    pub(super) fn parse(text: &str) -> Result<Period, String> {
        let (text, zone) = zone::bracketed(text)?;
        let example =
            "write it like `PT10M` (ten minutes), `P1DT12H` (a day and a half) or `P1M` (a month)";
        let span = SpanParser::new()
            .parse_span(text)
            .map_err(|error| format!("{text:?} is not an ISO 8601 period ({error}): {example}"))?;
        if span.is_negative() {
            return Err(format!("the period {text:?} is negative: {example}"));
        }
        let calendar = Span::new()
            .years(span.get_years())
            .months(span.get_months())
            .weeks(span.get_weeks())
            .days(span.get_days());
        let seconds = i128::from(span.get_hours()) * 3600
            + i128::from(span.get_minutes()) * 60
            + i128::from(span.get_seconds());
        let fraction = i128::from(span.get_milliseconds()) * 1_000_000
            + i128::from(span.get_microseconds()) * 1_000
            + i128::from(span.get_nanoseconds());
        let time = seconds * NANOS_PER_SECOND + fraction;
        Period {
            calendar,
            time,
            zone: zone.unwrap_or(TimeZone::UTC),
            text: text.to_uppercase(),
        }
        .checked()
    }

    pub(super) fn every(every: Duration) -> Result<Period, String> {
        let time = i128::try_from(every.as_nanos()).unwrap_or(i128::MAX);
        let seconds = every.as_secs();
        let text = match every.subsec_nanos() {
            0 => format!("PT{seconds}S"),
            nanos => format!("PT{seconds}.{nanos:09}S"),
        };
        Period {
            calendar: Span::new(),
            time,
            zone: TimeZone::UTC,
            text,
        }
        .checked()
    }

    fn checked(self) -> Result<Period, String> {
        if self.calendar.is_zero()
            && self.time < i128::try_from(PERIOD_MIN.as_nanos()).unwrap_or_default()
        {
            return Err(format!(
                "the period {} is too short: use at least a millisecond, like `PT0.001S`",
                self.text
            ));
        }
        Ok(self)
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
    pub(super) fn zone(&self) -> &TimeZone {
        &self.zone
    }
    pub(super) fn set_zone(&mut self, zone: TimeZone) {
        self.zone = zone;
    }

    /// Returns the time `count` periods after an anchor in the local time of the zone.
    pub(super) fn after_civil(&self, anchor: DateTime, count: i64) -> Option<Timestamp> {
        let civil = anchor
            .checked_add(self.calendar.checked_mul(count).ok()?)
            .ok()?;
        self.passed(&zone::moment(civil, &self.zone)?, count)
    }

    /// Returns the time `count` periods after a time.
    pub(super) fn after_moment(&self, anchor: Timestamp, count: i64) -> Option<Timestamp> {
        let anchor = anchor.to_zoned(self.zone.clone());
        if self.calendar.is_zero() {
            return self.passed(&anchor, count);
        }
        self.after_civil(anchor.datetime(), count)
    }

    fn passed(&self, from: &Zoned, count: i64) -> Option<Timestamp> {
        let nanos = self.time.checked_mul(i128::from(count))?;
        let at = from.timestamp().as_nanosecond().checked_add(nanos)?;
        Some(super::rounded_up(Timestamp::from_nanosecond(at).ok()?))
    }

    /// Returns the time one period after `now`.
    pub(super) fn after(&self, now: Timestamp) -> Option<Timestamp> {
        self.after_moment(now, 1)
    }

    /// Returns the approximate length of the period in seconds.
    pub(super) fn about_seconds(&self) -> f64 {
        let days = f64::from(self.calendar.get_weeks()) * 7.0 + f64::from(self.calendar.get_days());
        f64::from(self.calendar.get_years()) * YEAR_SECONDS
            + f64::from(self.calendar.get_months()) * MONTH_SECONDS
            + days * 86_400.0
            + self.time as f64 / NANOS_PER_SECOND as f64
    }
}

impl PartialEq for Period {
    fn eq(&self, other: &Period) -> bool {
        (self.calendar.fieldwise(), self.time, &self.zone)
            == (other.calendar.fieldwise(), other.time, &other.zone)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.zone == TimeZone::UTC {
            return f.write_str(&self.text);
        }
        write!(f, "{}[{}]", self.text, zone::name_of(&self.zone))
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Period({self})")
    }
}
