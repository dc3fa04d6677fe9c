//! Cycles: repetition at a fixed interval, by a period on a calendar, or by a cron line.

use std::{fmt, str::FromStr, time::Duration};

use jiff::{Timestamp, civil::DateTime};

use super::{Period, cron::Cron, zone};
use crate::{error::Error, names::names};

/// How many occurrences around the estimated one a search checks: months differ in length by days,
/// and days by an hour.
const NEIGHBOURS_MAX: usize = 64;
/// The largest number of missed occurrences of a cron line that a search counts.
const MISSED_COUNTED_MAX: u32 = 10_000;

/// How a worker handles occurrences that no worker fired in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum MisfirePolicy {
    /// Each missed occurrence fires, late and in order.
    All,
    /// Only the latest missed occurrence fires, and carries the number of missed occurrences before
    /// it.
    #[default]
    Latest,
    /// An occurrence does not fire if it is more than a minute late, or if the next one is already
    /// due.
    Skip,
}

names!(MisfirePolicy, "misfire policy", {
    All => "all",
    Latest => "latest",
    Skip => "skip",
});

/// A rule for repetition: a fixed interval, a period on a calendar, or a cron line.
///
/// ```
/// use gen_durable::{DAY, schedule::{Cycle, MisfirePolicy}};
///
/// let reminders = Cycle::every(DAY).times(2);
/// let retries = Cycle::iso("R3/PT10M")?; // three times, ten minutes apart
/// // Mondays at eight, in Madrid
/// let weekly = Cycle::iso("R/2026-01-05T08:00:00[Europe/Madrid]/P1W")?;
/// let nightly = Cycle::cron("30 2 * * *", "America/New_York")?.misfire(MisfirePolicy::Skip);
/// assert!(Cycle::cron("61 * * * *", "UTC").is_err());
/// # Ok::<(), gen_durable::Error>(())
/// ```
#[must_use = "a cycle does nothing until it is passed to a schedule or a wait"]
#[derive(Clone, PartialEq)]
pub struct Cycle {
    /// The rule, or the error in it. The step or the engine builder that receives the cycle reports
    /// the error.
    rule: Result<Rule, String>,
    times: Option<u32>,
    missed: Option<MisfirePolicy>,
}

#[derive(Clone, PartialEq)]
enum Rule {
    Period {
        start: Option<DateTime>,
        period: Period,
    },
    Cron(Box<Cron>),
}

/// The first occurrence of a cycle that begins now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) due: Timestamp,
    /// How many occurrences remain after the first one; `None` if there is no limit.
    pub(crate) remaining: Option<u32>,
}

impl Cycle {
    /// Creates a cycle with a fixed interval; the first occurrence is one interval from the start:
    /// `Cycle::every(DAY)`.
    pub fn every(every: Duration) -> Cycle {
        Cycle::of(Period::every(every).map(|period| Rule::Period {
            start: None,
            period,
        }))
    }

    /// Parses an ISO 8601 cycle: `R3/PT10M`, `R/P1D[Europe/Madrid]`,
    /// `R/2026-01-05T08:00:00[Europe/Madrid]/P1W`. With a start, the first occurrence is at the
    /// start; without one, it is after one period. Without a zone, the calendar is that of UTC.
    ///
    /// # Errors
    /// The text is not a valid cycle.
    pub fn iso(text: &str) -> Result<Cycle, Error> {
        parse_iso(text.trim()).map_err(Error::invalid)
    }

    /// Parses a cron line, evaluated in the local time of a zone: `Cycle::cron("30 2 * * MON-FRI",
    /// "Europe/Madrid")`. It has five fields, or six with the seconds first.
    ///
    /// # Errors
    /// The line or the zone is invalid, or the line never occurs.
    pub fn cron(line: &str, time_zone: &str) -> Result<Cycle, Error> {
        let zone = zone::zone(time_zone).map_err(Error::invalid)?;
        Ok(Cycle::of(Ok(Rule::Cron(Box::new(
            Cron::parse(line, zone).map_err(Error::invalid)?,
        )))))
    }

    /// Limits the number of occurrences of the cycle.
    pub fn times(mut self, times: u32) -> Cycle {
        if times == 0 && self.rule.is_ok() {
            self.rule = Err("a cycle with 0 occurrences is invalid: use at least 1".into());
        }
        self.times = Some(times);
        self
    }

    /// Sets how engines handle missed occurrences; by default only the latest missed occurrence
    /// fires. In [`Schedules::set`](crate::schedule::Schedules::set), a cycle without a policy
    /// keeps the current policy of the schedule.
    pub fn misfire(mut self, missed: MisfirePolicy) -> Cycle {
        self.missed = Some(missed);
        self
    }

    /// Returns the next `count` occurrences of a cycle that begins now. Occurrences that have
    /// already passed since an explicit start count toward the limit of [`times`](Cycle::times).
    pub fn upcoming(&self, now: Timestamp, count: usize) -> Vec<Timestamp> {
        let Some(first) = self.first_later(now).filter(|_| count > 0) else {
            return Vec::new();
        };
        let mut found = vec![first.due];
        if first.remaining != Some(0) {
            found.extend(self.following(now, first.due, first.remaining, count - 1));
        }
        found
    }

    /// Returns the time zone of the cycle's calendar: `Europe/Madrid`, `UTC`, `+02:00`.
    pub fn time_zone(&self) -> String {
        match &self.rule {
            Ok(Rule::Period { period, .. }) => zone::name_of(period.zone()),
            Ok(Rule::Cron(cron)) => zone::name_of(&cron.zone),
            Err(_) => zone::name_of(&jiff::tz::TimeZone::UTC),
        }
    }

    fn of(rule: Result<Rule, String>) -> Cycle {
        Cycle {
            rule,
            times: None,
            missed: None,
        }
    }

    /// Returns the error in the rule of the cycle, if there is one.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.rule.as_ref().map(drop).map_err(Clone::clone)
    }

    pub(crate) fn missed_policy(&self) -> MisfirePolicy {
        self.missed.unwrap_or_default()
    }

    /// Returns the policy that [`misfire`](Cycle::misfire) has set.
    pub(crate) fn explicit_missed_policy(&self) -> Option<MisfirePolicy> {
        self.missed
    }

    /// Returns the first occurrence of a cycle that begins now. `None` if all of its occurrences
    /// have passed.
    pub(crate) fn first(&self, now: Timestamp) -> Option<First> {
        let rest = |used: i64| match self.times {
            None => Some(None),
            Some(times) => i64::from(times)
                .checked_sub(used)
                .and_then(|rest| u32::try_from(rest).ok())
                .map(Some),
        };
        match self.rule.as_ref().ok()? {
            Rule::Cron(cron) => Some(First {
                due: cron.after(now)?,
                remaining: rest(1)?,
            }),
            rule @ Rule::Period { start, .. } => {
                let just_before =
                    Timestamp::from_nanosecond(now.as_nanosecond() - 1).unwrap_or(now);
                let (number, due) = rule.numbered_after(now, just_before)?;
                let used = if start.is_some() { number + 1 } else { number };
                Some(First {
                    due,
                    remaining: rest(used)?,
                })
            }
        }
    }

    /// Returns the first occurrence after `now`, excluding `now` itself: a schedule that an
    /// operator sets at the exact time of an occurrence begins with the occurrence after it.
    pub(crate) fn first_later(&self, now: Timestamp) -> Option<First> {
        let later =
            Timestamp::from_microsecond(now.as_microsecond().saturating_add(1)).unwrap_or(now);
        self.first(now)
            .filter(|first| first.due > now)
            .or_else(|| self.first(later))
    }

    /// Returns the first occurrence after `after` of a cycle that began at `anchor`, without regard
    /// to its limit.
    pub(crate) fn after(&self, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match self.rule.as_ref().ok()? {
            Rule::Cron(cron) => cron.after(after),
            rule @ Rule::Period { .. } => rule.numbered_after(anchor, after).map(|(_, due)| due),
        }
    }

    /// Returns the last occurrence between `due` and `until`, and the number of occurrences after
    /// `due` up to it: `(due, 0)` if no occurrence is later than `due`.
    pub(crate) fn latest(
        &self,
        anchor: Timestamp,
        due: Timestamp,
        until: Timestamp,
    ) -> (Timestamp, u32) {
        match &self.rule {
            Ok(Rule::Cron(cron)) => {
                let Some(latest) = cron.until(until).filter(|latest| *latest > due) else {
                    return (due, 0);
                };
                let mut count = 0;
                let mut at = due;
                while at < latest && count < MISSED_COUNTED_MAX {
                    let Some(next) = cron.after(at) else { break };
                    (at, count) = (next, count + 1);
                }
                (latest, count)
            }
            Ok(rule @ Rule::Period { .. }) => {
                let (Some((first, _)), Some((next, _))) = (
                    rule.numbered_after(anchor, due),
                    rule.numbered_after(anchor, until),
                ) else {
                    return (due, 0);
                };
                let count = u32::try_from(next - first).unwrap_or_default();
                match rule.numbered(anchor, next - 1) {
                    Some(latest) if count > 0 && latest > due => (latest, count),
                    _ => (due, 0),
                }
            }
            Err(_) => (due, 0),
        }
    }

    /// Returns the next `count` occurrences of the cycle after a time, within the limit of the
    /// cycle.
    pub(crate) fn following(
        &self,
        anchor: Timestamp,
        after: Timestamp,
        remaining: Option<u32>,
        count: usize,
    ) -> Vec<Timestamp> {
        let most = remaining.or(self.times).map_or(count, |times| {
            count.min(usize::try_from(times).unwrap_or(count))
        });
        let mut at = after;
        let mut found = Vec::new();
        while found.len() < most {
            let Some(next) = self.after(anchor, at) else {
                break;
            };
            found.push(next);
            at = next;
        }
        found
    }
}

impl Rule {
    /// Returns occurrence `number`. Number 0 is the anchor itself, which is an occurrence only if
    /// it is an explicit start.
    fn numbered(&self, anchor: Timestamp, number: i64) -> Option<Timestamp> {
        match self {
            Rule::Period {
                start: Some(start),
                period,
            } => period.after_civil(*start, number),
            Rule::Period {
                start: None,
                period,
            } => period.after_moment(anchor, number),
            Rule::Cron(_) => None,
        }
    }

    /// Returns the first occurrence after `after`, and its number. It estimates the number and then
    /// searches around it: short months and changes of summer time put the estimate wrong by a few
    /// occurrences.
    fn numbered_after(&self, anchor: Timestamp, after: Timestamp) -> Option<(i64, Timestamp)> {
        let Rule::Period { start, period } = self else {
            return None;
        };
        let smallest = i64::from(start.is_none());
        let origin = self.numbered(anchor, 0)?;
        let apart = after.duration_since(origin).as_secs_f64();
        let mut number = ((apart / period.about_seconds()) as i64).max(smallest);
        let mut checked = 0;
        while number > smallest && checked < NEIGHBOURS_MAX {
            match self.numbered(anchor, number - 1) {
                Some(before) if before <= after => break,
                _ => number -= 1,
            }
            checked += 1;
        }
        for _ in 0..NEIGHBOURS_MAX {
            let at = self.numbered(anchor, number)?;
            if at > after {
                return Some((number, at));
            }
            number += 1;
        }
        None
    }
}

fn parse_iso(text: &str) -> Result<Cycle, String> {
    let example = "write it like `R3/PT10M`, `R/P1D[Europe/Madrid]` or `R/2026-01-05T08:00:00[Europe/Madrid]/P1W`";
    let wrong = |why: &str| format!("{text:?} is not a cycle: {why}; {example}");
    let (times, rest) =
        repeats(text).ok_or_else(|| wrong("it does not begin with R and a slash"))?;
    let times = times.map_err(|why| wrong(&why))?;
    // The period is the part after the last slash outside brackets, since the name of a zone
    // contains a slash too.
    let split = rest.char_indices().rev().scan(0_i32, |depth, (at, c)| {
        *depth += i32::from(c == ']') - i32::from(c == '[');
        Some((at, c, *depth))
    });
    let slash = split
        .filter(|(_, c, depth)| *c == '/' && *depth == 0)
        .map(|(at, ..)| at)
        .next();
    let (start, period) = match slash.and_then(|at| rest.split_at_checked(at)) {
        Some((start, period)) => (Some(start), period.trim_start_matches('/')),
        None => (None, rest),
    };
    if start.is_some_and(|start| start.trim_start().starts_with(['P', 'p'])) {
        return Err(wrong("the start must be before the period"));
    }
    if !period.trim_start().starts_with(['P', 'p']) {
        return Err(wrong(
            "its last part must be the period, which begins with P",
        ));
    }
    let mut period = Period::parse(period)?;
    let start = match start {
        None => None,
        Some(start) => {
            let (civil, zone) = zone::dated(start)?;
            if *period.zone() != jiff::tz::TimeZone::UTC && *period.zone() != zone {
                return Err(wrong("its start and its period are in different zones"));
            }
            period.set_zone(zone);
            Some(civil)
        }
    };
    Ok(Cycle {
        times,
        ..Cycle::of(Ok(Rule::Period { start, period }))
    })
}

/// Splits `R5/rest` or `R/rest` into the number of times and the rest. Returns `None` if the text
/// does not begin with `R` and a slash.
#[allow(clippy::type_complexity)] // The number of times or its error, and the rest.
fn repeats(text: &str) -> Option<(Result<Option<u32>, String>, &str)> {
    let (head, rest) = text.split_once('/')?;
    let count = head.strip_prefix(['R', 'r'])?;
    let times = match count {
        "" | "-1" => Ok(None),
        count => match count.parse::<u32>() {
            Ok(0) => Err("it has 0 occurrences; use at least R1".into()),
            Ok(times) => Ok(Some(times)),
            Err(_) => Err(format!("{count:?} is not a number of times")),
        },
    };
    Some((times, rest))
}

/// Parses the form that a row stores: an ISO 8601 cycle, or a cron line with its zone in brackets.
impl FromStr for Cycle {
    type Err = Error;
    fn from_str(text: &str) -> Result<Cycle, Error> {
        let text = text.trim();
        let (times, line) = match repeats(text) {
            Some((times, line)) if !line.contains(' ') && !line.starts_with('@') => {
                drop(times);
                return Cycle::iso(text);
            }
            Some((times, line)) => (times.map_err(Error::invalid)?, line),
            None => (None, text),
        };
        let (line, zone) = zone::bracketed(line).map_err(Error::invalid)?;
        let zone = zone.unwrap_or(jiff::tz::TimeZone::UTC);
        let cron = Cron::parse(line, zone).map_err(|why| {
            Error::invalid(format!(
                "{why}; or an ISO 8601 cycle like `R/2026-01-05T08:00:00[Europe/Madrid]/P1W`"
            ))
        })?;
        Ok(Cycle {
            times,
            ..Cycle::of(Ok(Rule::Cron(Box::new(cron))))
        })
    }
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = self
            .times
            .map(|times| times.to_string())
            .unwrap_or_default();
        match &self.rule {
            Err(why) => write!(f, "({why})"),
            Ok(Rule::Period {
                start: None,
                period,
            }) => write!(f, "R{times}/{period}"),
            Ok(Rule::Period {
                start: Some(start),
                period,
            }) => {
                write!(
                    f,
                    "R{times}/{start}[{}]/{}",
                    zone::name_of(period.zone()),
                    period.text()
                )
            }
            Ok(Rule::Cron(cron)) if self.times.is_some() => write!(f, "R{times}/{cron}"),
            Ok(Rule::Cron(cron)) => cron.fmt(f),
        }
    }
}

impl fmt::Debug for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cycle({self})")
    }
}
