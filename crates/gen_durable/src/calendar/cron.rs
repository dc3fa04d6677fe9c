//! Finds the occurrences of a cron line in the local time of a time zone.

use std::{fmt, str::FromStr};

use jiff::{Timestamp, tz::TimeZone};

use super::zone;

/// The start of the search that validates a line: a line without an occurrence after this time has
/// none at all.
const SEARCHED_FROM: Timestamp = Timestamp::UNIX_EPOCH;

/// How often the search for an occurrence restarts at most. The search fails at a day that the time
/// zone skipped, and then restarts at the next change of the zone.
const SKIPS_MAX: usize = 8;

/// A cron line: five fields, or six with seconds, or one of `@hourly @daily @weekly @monthly
/// @yearly`.
#[derive(Clone, PartialEq)]
pub(super) struct Cron {
    line: String,
    cron: croner::Cron,
    pub(super) zone: TimeZone,
}

impl Cron {
    pub(super) fn parse(line: &str, zone: TimeZone) -> Result<Cron, String> {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let example =
            "write it like `30 2 * * MON-FRI` (minute, hour, day of month, month, day of week)";
        let cron = croner::Cron::from_str(&line)
            .map_err(|error| format!("{line:?} is not a cron line ({error}): {example}"))?;
        let cron = Cron { line, cron, zone };
        if cron.after(SEARCHED_FROM).is_none() {
            return Err(format!(
                "the cron line {:?} never occurs: {example}",
                cron.line
            ));
        }
        Ok(cron)
    }

    /// Returns the first occurrence after this time. If the search ends at a day that the zone
    /// skipped, it restarts after the skip.
    pub(super) fn after(&self, after: Timestamp) -> Option<Timestamp> {
        let from = |start: Timestamp, inclusive: bool| {
            let found = self
                .cron
                .find_next_occurrence(&start.to_zoned(self.zone.clone()), inclusive)
                .ok()?;
            // Guard against a wrong result of the cron library: an occurrence in the past would
            // fire without end.
            Some(found.timestamp()).filter(|found| *found > after)
        };
        from(after, false).or_else(|| {
            let skips = self.zone.following(after).take(SKIPS_MAX);
            skips
                .map(|skip| skip.timestamp())
                .filter_map(|skip| from(skip, true))
                .next()
        })
    }

    /// Returns the last occurrence up to this time, among the occurrences that
    /// [`after`](Cron::after) finds: the backward search of the library also returns times of a day
    /// that the zone skipped.
    pub(super) fn until(&self, until: Timestamp) -> Option<Timestamp> {
        let mut end = until;
        for _ in 0..SKIPS_MAX {
            let found = self.last_up_to(end)?;
            let before = Timestamp::from_second(found.as_second() - 1).ok()?;
            if self.after(before) == Some(found) {
                return Some(found);
            }
            end = before;
        }
        None
    }

    fn last_up_to(&self, until: Timestamp) -> Option<Timestamp> {
        let from = |end: Timestamp| {
            let found = self
                .cron
                .find_previous_occurrence(&end.to_zoned(self.zone.clone()), true)
                .ok()?;
            Some(found.timestamp()).filter(|found| *found <= until)
        };
        from(until).or_else(|| {
            let skips = self.zone.preceding(until).take(SKIPS_MAX);
            let before = skips
                .filter_map(|skip| Timestamp::from_second(skip.timestamp().as_second() - 1).ok());
            before.filter_map(from).next()
        })
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.zone == TimeZone::UTC {
            return f.write_str(&self.line);
        }
        write!(f, "{} [{}]", self.line, zone::name_of(&self.zone))
    }
}
