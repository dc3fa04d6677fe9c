//! Looking at timers and schedules: page by page, each look with a bound.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{Forecast, ScheduleInfo, TimerInfo, check};
use crate::{
    calendar::Cycle,
    error::Error,
    store::{fault::Fault, inspect::Inspect, row::column, schedule, timer},
};

/// Occurrences and runs that are shown of a schedule.
const SHOWN: usize = 5;
/// The most that one page holds.
const PAGE_MAX: usize = 1_000;
/// A forecast counts so many in all its parts together, and in each of them no more than its share; but at least so many.
const FORECAST_MAX: usize = 60_000;
const FORECAST_PART_MIN: usize = 100;
/// A forecast looks at most this far ahead: a hundred years.
const FORECAST_AHEAD_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
/// What is late by less than this may be about to fire.
const LATE_SECONDS: f64 = 5.0;

/// Which of those that fall due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhichTimers {
    /// All, overdue ones first.
    #[default]
    All,
    /// Those whose time has passed.
    Overdue,
    /// Those whose time is still to come.
    Ahead,
}

/// Which timers to list, page by page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimerFilter {
    /// Which of them.
    pub which: WhichTimers,
    /// Only those after this place: the `next` of the page before.
    pub after: Option<TimerMark>,
    /// At most this many (1,000 at the most; 0 is 50).
    pub limit: usize,
}

/// A place in the order in which things fall due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerMark {
    /// When.
    pub due_at: Timestamp,
    /// What tells it from others at that time.
    pub number: i64,
}

/// A page of timers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimerPage {
    /// The next first.
    pub timers: Vec<TimerInfo>,
    /// Where to go on. `None`: that was all.
    pub next: Option<TimerMark>,
}

/// What a person should see to, each counted up to 10,001.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Attention {
    /// Lanes that stand still, since their head failed for good.
    pub lanes_blocked: i64,
    /// Timers and deadlines that should have fired more than a few seconds ago.
    pub overdue: i64,
    /// Schedules that are paused.
    pub schedules_paused: i64,
    /// Schedules that no live worker registers, or whose last occurrence could not be started.
    pub schedules_in_trouble: i64,
}

impl Inspect {
    /// What falls due, of all kinds. What waits for its turn under a partition key is left out: it waits for more than time.
    pub async fn timers(&self, filter: TimerFilter) -> Result<TimerPage, Error> {
        let limit = if filter.limit == 0 {
            50
        } else {
            filter.limit.min(PAGE_MAX)
        };
        self.read("list the timers", move |connection| async move {
            let which = (
                filter.which == WhichTimers::Overdue,
                filter.which == WhichTimers::Ahead,
            );
            let after = filter.after.map(|mark| (mark.due_at, mark.number));
            let rows = timer::list(
                &connection,
                i32::try_from(limit).unwrap_or(50),
                which,
                after,
            )
            .await?;
            let timers = rows.iter().map(timer_info).collect::<Result<Vec<_>, _>>()?;
            let mark = |row: &Row| {
                Ok::<_, Fault>(TimerMark {
                    due_at: column(row, 2)?,
                    number: column(row, 11)?,
                })
            };
            let next = rows
                .last()
                .filter(|_| rows.len() == limit)
                .map(mark)
                .transpose()?;
            Ok(TimerPage { timers, next })
        })
        .await
    }

    /// What falls due for one instance: its sleep, its deadline, what repeats beside its wait (up to 200).
    pub async fn timers_of(&self, instance: i64) -> Result<Vec<TimerInfo>, Error> {
        self.read(
            "list the timers of an instance",
            move |connection| async move {
                timer::of(&connection, instance)
                    .await?
                    .iter()
                    .map(timer_info)
                    .collect()
            },
        )
        .await
    }

    /// How many fall due in each of so many parts (1 to 1,000) of the time ahead (a hundred years at the most); parts in which
    /// nothing does are left out. Of each kind it is counted up to [`forecast_max`](Self::forecast_max) in each part.
    pub async fn forecast(&self, ahead: Duration, parts: usize) -> Result<Vec<Forecast>, Error> {
        let (seconds, most) = (
            ahead.min(FORECAST_AHEAD_MAX).as_secs_f64().max(1.0),
            Inspect::forecast_max(parts),
        );
        let counted_max = i32::try_from(most).unwrap_or(i32::MAX);
        let parts = i32::try_from(parts.clamp(1, 1_000)).unwrap_or(1);
        let part = |(part, kind, count)| Forecast {
            part: usize::try_from(part).unwrap_or_default(),
            kind,
            count,
        };
        self.read("forecast the timers", move |connection| async move {
            let found = timer::forecast(&connection, seconds, parts, counted_max).await?;
            Ok(found.into_iter().map(part).collect())
        })
        .await
    }

    /// How far a forecast of so many parts counts in each of them: 5,000 of twelve.
    pub fn forecast_max(parts: usize) -> i64 {
        let share = (FORECAST_MAX / parts.clamp(1, 1_000)).max(FORECAST_PART_MIN);
        i64::try_from(share).unwrap_or(i64::MAX)
    }

    /// A page of the schedules by name, after this one (1,000 at the most).
    pub async fn schedules(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ScheduleInfo>, Error> {
        self.look_at_schedules(None, after.map(str::to_owned), limit)
            .await
    }

    /// One schedule.
    pub async fn schedule(&self, name: &str) -> Result<Option<ScheduleInfo>, Error> {
        check(name)?;
        Ok(self
            .look_at_schedules(Some(name.to_owned()), None, 1)
            .await?
            .pop())
    }

    async fn look_at_schedules(
        &self,
        name: Option<String>,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<ScheduleInfo>, Error> {
        let limit = i32::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(50);
        let runs = i32::try_from(SHOWN).unwrap_or_default();
        self.read("list the schedules", move |connection| async move {
            let rows =
                schedule::list(&connection, name.as_deref(), runs, after.as_deref(), limit).await?;
            rows.iter().map(schedule_info).collect()
        })
        .await
    }

    /// What a person should see to, of lanes, timers and schedules: numbers for the edge of a screen.
    pub async fn attention(&self) -> Result<Attention, Error> {
        self.read("count what needs attention", |connection| async move {
            let [
                lanes_blocked,
                overdue,
                schedules_paused,
                schedules_in_trouble,
            ] = timer::attention(&connection, LATE_SECONDS).await?;
            Ok(Attention {
                lanes_blocked,
                overdue,
                schedules_paused,
                schedules_in_trouble,
            })
        })
        .await
    }
}

fn timer_info(row: &Row) -> Result<TimerInfo, Fault> {
    Ok(TimerInfo {
        kind: column(row, 0)?,
        id: column(row, 1)?,
        due_at: column(row, 2)?,
        instance: column(row, 3)?,
        machine: column(row, 4)?,
        schedule: column(row, 5)?,
        cycle: column(row, 6)?,
        step: column(row, 7)?,
        overdue: column(row, 8)?,
        served: column(row, 9)?,
        now: column(row, 10)?,
    })
}

fn schedule_info(row: &Row) -> Result<ScheduleInfo, Fault> {
    let runs: Option<String> = column(row, 15)?;
    let runs = runs
        .map(|runs| serde_json::from_str(&runs))
        .transpose()
        .map_err(|error| Fault::Refused {
            code: None,
            message: format!("runs of another shape: {error}"),
        })?;
    let (cycle, anchor): (String, Timestamp) = (column(row, 1)?, column(row, 4)?);
    // A cycle of a newer build may not be readable here; its next occurrence stands in the row in any case.
    let parsed = cycle.parse::<Cycle>().ok();
    let ahead: Option<Timestamp> = column(row, 11)?;
    let remaining: Option<i32> = column(row, 12)?;
    let mut next: Vec<Timestamp> = ahead.into_iter().collect();
    if let (Some(due), Some(parsed)) = (ahead, &parsed) {
        let remaining = remaining.map(|remaining| u32::try_from(remaining).unwrap_or_default());
        let more = if remaining == Some(0) {
            Vec::new()
        } else {
            parsed.following(anchor, due, remaining, SHOWN - 1)
        };
        next.extend(more);
    }
    let hosts: Option<Vec<String>> = column(row, 16)?;
    let pids: Option<Vec<i32>> = column(row, 17)?;
    Ok(ScheduleInfo {
        name: column(row, 0)?,
        zone: parsed.as_ref().map(Cycle::time_zone),
        cycle,
        missed: column(row, 2)?,
        code_cycle: column(row, 3)?,
        set_at: column(row, 5)?,
        set_by: column(row, 6)?,
        paused_at: column(row, 7)?,
        paused_by: column(row, 8)?,
        ended_at: column(row, 9)?,
        last_error: column(row, 10)?,
        served: column(row, 13)?,
        registered_by: hosts
            .unwrap_or_default()
            .into_iter()
            .zip(pids.unwrap_or_default())
            .collect(),
        next,
        runs: runs.unwrap_or_default(),
        now: column(row, 14)?,
    })
}
