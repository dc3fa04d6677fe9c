//! Reads timers and schedules page by page. Each statement reads a bounded number of rows.

use std::time::Duration;

use super::{
    check,
    rates::{self, RateBacklog},
};
use crate::{
    error::Error,
    inspect::Inspect,
    model::{
        findings::Findings,
        page_size,
        schedule::{Forecast, ScheduleInfo, TimerFilter, TimerInfo, TimerPage},
    },
    store::{connection::Connection, fault::Fault, limit, schedule, timer},
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

/// Returns the rates for which instances wait: of whole limits, or of keys if the whole limit has
/// no rate. Limits that are paused or closed let no step begin.
async fn waiting(connection: &Connection) -> Result<Vec<RateBacklog>, Fault> {
    let mut rates = Vec::new();
    for limit in limit::list(connection, None).await? {
        if limit.waiting == 0 || limit.paused_at.is_some() || limit.closed_until.is_some() {
            continue;
        }
        let held = |(rate, waiting, tokens): (Option<_>, i64, Option<f64>)| {
            rate.map(|rate| RateBacklog {
                rate,
                waiting,
                tokens: tokens.unwrap_or_default(),
            })
        };
        if limit.rate.is_some() {
            rates.extend(held((limit.rate, limit.waiting, limit.tokens)));
            continue;
        }
        let keys = limit::keys(connection, &limit.name).await?;
        rates.extend(
            keys.into_iter()
                .filter_map(|key| held((key.rate, key.waiting, key.tokens))),
        );
    }
    Ok(rates)
}

impl Inspect {
    /// Returns a page of timers of all kinds. The page leaves out instances that wait for their
    /// partition, because their due time alone does not let them run.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn timers(&self, filter: TimerFilter) -> Result<TimerPage, Error> {
        let limit = usize::try_from(page_size(filter.limit, PAGE_MAX)).unwrap_or(PAGE_MAX);
        self.read("list the timers", move |connection| async move {
            timer::list(&connection, limit, filter.which, filter.after).await
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
            move |connection| async move { timer::of(&connection, instance).await },
        )
        .await
    }

    /// Divides the time ahead (at most a hundred years) into `parts` (1 to 1,000) and returns the
    /// number of timers that become due in each; the list leaves out parts without timers. The
    /// statement counts at most [`forecast_max`](Self::forecast_max) timers of each kind per part.
    /// The kind [`Rate`](crate::schedule::TimerKind::Rate) counts the instances that a rate lets
    /// begin of those that wait for it now, as if each weighed 1. It leaves out limits that are
    /// paused or closed.
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
        self.read("forecast the timers", move |connection| async move {
            let mut due = timer::forecast(&connection, seconds, parts, counted_max).await?;
            let waiting = waiting(&connection).await?;
            due.extend(rates::forecast(&waiting, seconds, parts));
            due.sort_by_key(|part| (part.part, part.kind));
            Ok(due)
        })
        .await
    }

    /// Returns the upper bound of the counts of a forecast with this many parts: 5,000 with twelve
    /// parts.
    pub fn forecast_max(parts: usize) -> i64 {
        let share = (FORECAST_MAX / parts.clamp(1, 1_000)).max(FORECAST_PART_MIN);
        i64::try_from(share).unwrap_or(i64::MAX)
    }

    /// Returns a page of schedules by name, after the name `after`: at most `limit`, up to 1,000; 0
    /// means 50.
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
        let limit = page_size(limit, PAGE_MAX);
        self.read("list the schedules", move |connection| async move {
            schedule::list(&connection, name.as_deref(), SHOWN, after.as_deref(), limit).await
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
            |connection| async move { timer::findings(&connection, LATE_SECONDS).await },
        )
        .await
    }
}
