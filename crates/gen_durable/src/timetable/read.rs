//! Reads timers and schedules page by page. Each statement reads a bounded number of rows.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{Forecast, ScheduleInfo, TimerInfo, check};
use crate::{
    calendar::Cycle,
    error::Error,
    store::{fault::Fault, inspect::Inspect, row::column, schedule, timer},
};

/// The number of occurrences and runs shown per schedule.
const SHOWN: usize = 5;
/// The largest number of timers or schedules of a page.
const PAGE_MAX: usize = 1_000;
/// The number of timers that a forecast counts in all of its parts together; each part counts at
/// most its share, but at least `FORECAST_PART_MIN`.
const FORECAST_MAX: usize = 60_000;
const FORECAST_PART_MIN: usize = 100;
/// The furthest time of a forecast: a hundred years ahead.
const FORECAST_AHEAD_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
/// A timer that is late by less than this may be about to fire, and does not count as overdue.
const LATE_SECONDS: f64 = 5.0;

/// A selection of timers by their due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimerSelection {
    /// Selects all timers, overdue timers first.
    #[default]
    All,
    /// Selects timers with a due time in the past.
    Overdue,
    /// Selects timers with a due time in the future.
    Ahead,
}

/// A filter for a page of timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimerFilter {
    /// The selection of timers by their due time.
    pub which: TimerSelection,
    /// The end of the previous page (its `next`): the page begins after this position.
    pub after: Option<TimerCursor>,
    /// The size of the page (at most 1,000; 0 means 50).
    pub limit: usize,
}

/// A position in the list of timers, ordered by due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerCursor {
    /// The due time of the last timer of the page.
    pub due_at: Timestamp,
    /// A number that distinguishes timers with the same due time.
    pub number: i64,
}

/// A page of timers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimerPage {
    /// The timers of the page, in the order of their due times.
    pub timers: Vec<TimerInfo>,
    /// The position of the next page; `None` if this is the last page.
    pub next: Option<TimerCursor>,
}

/// Counts of the conditions that need an operator. Each count has a bound: 10,001 lanes, 10,001
/// timers plus 10,001 deadlines, and the first 1,000 schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Findings {
    /// The number of lanes that a failed head blocks.
    pub lanes_blocked: i64,
    /// The number of timers and deadlines that are overdue by more than a few seconds.
    pub overdue: i64,
    /// The number of schedules that an operator has paused.
    pub schedules_paused: i64,
    /// The number of schedules that no live worker has registered, or with a failed last
    /// occurrence.
    pub schedules_failing: i64,
}

impl Inspect {
    /// Returns a page of timers of all kinds. The page leaves out instances that wait for their
    /// partition, because their due time alone does not let them run.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn timers(&self, filter: TimerFilter) -> Result<TimerPage, Error> {
        let limit = if filter.limit == 0 {
            50
        } else {
            filter.limit.min(PAGE_MAX)
        };
        self.read("list the timers", move |connection| async move {
            let which = (
                filter.which == TimerSelection::Overdue,
                filter.which == TimerSelection::Ahead,
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
                Ok::<_, Fault>(TimerCursor {
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

    /// Returns the timers of one instance: its sleep, its deadline, and the repeating timers of its
    /// wait (up to 200).
    ///
    /// # Errors
    /// The database is unreachable.
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

    /// Divides the time ahead (at most a hundred years) into `parts` (1 to 1,000) and returns the
    /// number of timers that become due in each; the list leaves out parts without timers. The
    /// statement counts at most [`forecast_max`](Self::forecast_max) timers of each kind per part.
    ///
    /// # Errors
    /// The database is unreachable.
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

    /// Returns the upper bound of the counts of a forecast with this many parts: 5,000 with twelve
    /// parts.
    pub fn forecast_max(parts: usize) -> i64 {
        let share = (FORECAST_MAX / parts.clamp(1, 1_000)).max(FORECAST_PART_MIN);
        i64::try_from(share).unwrap_or(i64::MAX)
    }

    /// Returns a page of at most 1,000 schedules by name, after the name `after`.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn schedules(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ScheduleInfo>, Error> {
        self.read_schedules(None, after.map(str::to_owned), limit)
            .await
    }

    /// Returns one schedule, or `None` if it does not exist.
    ///
    /// # Errors
    /// The name of the schedule is invalid, or the database is unreachable.
    pub async fn schedule(&self, name: &str) -> Result<Option<ScheduleInfo>, Error> {
        check(name)?;
        Ok(self
            .read_schedules(Some(name.to_owned()), None, 1)
            .await?
            .pop())
    }

    async fn read_schedules(
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

    /// Counts lanes, timers and schedules that need an operator, for the header of a page.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn findings(&self) -> Result<Findings, Error> {
        self.read(
            "count lanes, timers and schedules that need an operator",
            |connection| async move {
                let [lanes_blocked, overdue, schedules_paused, schedules_failing] =
                    timer::findings(&connection, LATE_SECONDS).await?;
                Ok(Findings {
                    lanes_blocked,
                    overdue,
                    schedules_paused,
                    schedules_failing,
                })
            },
        )
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
            message: format!("the runs of a schedule cannot be decoded: {error}"),
        })?;
    let (cycle, anchor): (String, Timestamp) = (column(row, 1)?, column(row, 4)?);
    // This build may be unable to parse a cycle that a newer build registered. It then shows only
    // the next occurrence, which is in the row.
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
