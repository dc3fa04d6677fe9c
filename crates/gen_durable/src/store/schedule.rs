//! Statements about schedules: they store the cycle that the code declares, the cycle that an
//! operator sets, and the cycle in force.

use std::fmt::Display;

use jiff::Timestamp;
use serde::Deserialize;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{named, only, parsed},
    sql,
};
use crate::{
    calendar::{Cycle, First},
    id::Status,
    model::schedule::{OccurrenceState, ScheduleInfo, ScheduleRun, WorkerProcess},
};

sql!(
    REGISTER,
    "register_schedule.sql",
    [TEXT, TEXT, TEXT, TIMESTAMPTZ, TIMESTAMPTZ, INT4]
);
sql!(
    SET,
    "set_schedule.sql",
    [TEXT, TEXT, TEXT, TIMESTAMPTZ, TIMESTAMPTZ, INT4, TEXT]
);
sql!(PAUSE, "pause_schedule.sql", [TEXT, TEXT]);
sql!(
    RESUME,
    "resume_schedule.sql",
    [TEXT, TEXT, TIMESTAMPTZ, TIMESTAMPTZ, INT4]
);
sql!(RUN, "run_schedule.sql", [TEXT]);
sql!(FAILED, "schedule_failed.sql", [TEXT, TEXT]);
sql!(KNOWN, "known_schedule.sql", [TEXT]);
sql!(LIST, "schedules.sql", [TEXT, INT4, TEXT, INT4]);

/// A schedule with the cycle that is in force.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) cycle: String,
    pub(crate) anchor: Timestamp,
    pub(crate) remaining: Option<u32>,
}

/// Returns the time of the schema's clock, and the schedule with this name, if there is one.
pub(crate) async fn known(
    connection: &Connection,
    name: &str,
) -> Result<(Timestamp, Option<Known>), Fault> {
    let rows = connection.query(&KNOWN, &[&name]).await?;
    let row = rows.first().ok_or_else(Fault::no_row)?;
    let known = match (named(row, "cycle")?, named(row, "anchor_at")?) {
        (Some(cycle), Some(anchor)) => {
            let remaining: Option<i32> = named(row, "remaining")?;
            let remaining = remaining.and_then(|remaining| u32::try_from(remaining).ok());
            Some(Known {
                cycle,
                anchor,
                remaining,
            })
        }
        _ => None,
    };
    Ok((named(row, "now")?, known))
}

/// Registers the cycle that the code declares for a schedule. A new declaration comes into force.
/// The declaration of an older build changes nothing, unless no newer build has registered the
/// schedule for a while.
pub(crate) async fn register(
    connection: &Connection,
    name: &str,
    (cycle, missed): (&str, &str),
    anchor: Timestamp,
    first: Option<First>,
) -> Result<String, Fault> {
    let (due, remaining) = parts(first);
    let params: &[Param<'_>] = &[&name, &cycle, &missed, &anchor, &due, &remaining];
    text(&connection.query(&REGISTER, params).await?)
}

/// Sets the cycle of a schedule that an operator chose. That cycle is in force until the code
/// declares a new cycle.
pub(crate) async fn set(
    connection: &Connection,
    name: &str,
    (cycle, missed): (&str, Option<&str>),
    anchor: Timestamp,
    first: Option<First>,
    by: &str,
) -> Result<String, Fault> {
    let (due, remaining) = parts(first);
    let params: &[Param<'_>] = &[&name, &cycle, &missed, &anchor, &due, &remaining, &by];
    text(&connection.act_alone(&SET, params).await?)
}

pub(crate) async fn pause(connection: &Connection, name: &str, by: &str) -> Result<String, Fault> {
    text(&connection.act_alone(&PAUSE, &[&name, &by]).await?)
}

/// Resumes a schedule with its next occurrence. `known` is the state of the schedule from which the
/// caller computed that occurrence.
pub(crate) async fn resume(
    connection: &Connection,
    name: &str,
    known: &Known,
    next: Option<First>,
) -> Result<String, Fault> {
    let (due, remaining) = parts(next);
    let params: &[Param<'_>] = &[&name, &known.cycle, &known.anchor, &due, &remaining];
    text(&connection.act_alone(&RESUME, params).await?)
}

/// Adds one occurrence to a schedule, due now. Returns the id of the timer of the occurrence, or
/// `None` if there is no such schedule.
pub(crate) async fn run(connection: &Connection, name: &str) -> Result<Option<i64>, Fault> {
    let rows = connection.act_alone(&RUN, &[&name]).await?;
    only(rows.first().ok_or_else(Fault::no_row)?)
}

/// Records, for people, why an occurrence of a schedule could not start an instance.
pub(crate) async fn failed(connection: &Connection, name: &str, why: &str) -> Result<(), Fault> {
    connection.query(&FAILED, &[&name, &why]).await.map(drop)
}

/// Returns the schedules with a name after `after`, or the schedule with the name `name`. Each
/// schedule has its last occurrences and its next occurrences, up to `shown` of each.
pub(crate) async fn list(
    connection: &Connection,
    name: Option<&str>,
    shown: usize,
    after: Option<&str>,
    limit: i32,
) -> Result<Vec<ScheduleInfo>, Fault> {
    let runs = i32::try_from(shown).unwrap_or(i32::MAX);
    let rows = connection
        .query(&LIST, &[&name, &runs, &after, &limit])
        .await?;
    rows.iter().map(|row| read_schedule(row, shown)).collect()
}

fn read_schedule(row: &Row, shown: usize) -> Result<ScheduleInfo, Fault> {
    let cycle: String = named(row, "cycle")?;
    // This build may be unable to parse a cycle that a newer build registered. It then shows only
    // the next occurrence, which is in the row.
    let parsed_cycle = cycle.parse::<Cycle>().ok();
    let ahead: Option<Timestamp> = named(row, "next_at")?;
    let remaining: Option<i32> = named(row, "remaining")?;
    let mut next_due_at: Vec<Timestamp> = ahead.into_iter().collect();
    if let (Some(due), Some(parsed_cycle)) = (ahead, &parsed_cycle)
        && remaining != Some(0)
    {
        let remaining = remaining.map(|remaining| u32::try_from(remaining).unwrap_or_default());
        let anchor = named(row, "anchor_at")?;
        next_due_at.extend(parsed_cycle.following(anchor, due, remaining, shown.saturating_sub(1)));
    }
    let hosts: Option<Vec<String>> = named(row, "hosts")?;
    let pids: Option<Vec<i32>> = named(row, "pids")?;
    let processes = hosts
        .unwrap_or_default()
        .into_iter()
        .zip(pids.unwrap_or_default());
    Ok(ScheduleInfo {
        name: named(row, "name")?,
        zone: parsed_cycle.as_ref().map(Cycle::time_zone),
        cycle,
        missed: parsed(row, "missed")?,
        code_cycle: named(row, "code_cycle")?,
        set_at: named(row, "set_at")?,
        set_by: named(row, "set_by")?,
        paused_at: named(row, "paused_at")?,
        paused_by: named(row, "paused_by")?,
        ended_at: named(row, "ended_at")?,
        last_error: named(row, "last_error")?,
        served: named(row, "served")?,
        registered_by: processes
            .map(|(host, pid)| WorkerProcess { host, pid })
            .collect(),
        next_due_at,
        runs: read_runs(named(row, "runs")?)?,
        now: named(row, "now")?,
    })
}

/// Reads the past occurrences of a schedule, which the statement returns as a JSON array.
fn read_runs(runs: Option<&str>) -> Result<Vec<ScheduleRun>, Fault> {
    #[derive(Deserialize)]
    struct OccurrenceRow<'a> {
        due: Timestamp,
        state: OccurrenceState,
        ended: Timestamp,
        instance: Option<i64>,
        status: Option<&'a str>,
        missed: u32,
        manual: bool,
    }
    let undecodable = |error: &dyn Display| {
        Fault::unexpected(format!("the runs of a schedule cannot be decoded: {error}"))
    };
    let runs: Vec<OccurrenceRow<'_>> =
        serde_json::from_str(runs.unwrap_or("[]")).map_err(|error| undecodable(&error))?;
    let status = |name: &str| {
        let known = Status::ALL.into_iter().find(|status| status.name() == name);
        known.ok_or_else(|| undecodable(&format!("unknown status {name:?}")))
    };
    let read = |run: OccurrenceRow<'_>| {
        Ok(ScheduleRun {
            due_at: run.due,
            state: run.state,
            ended_at: run.ended,
            instance_id: run.instance,
            status: run.status.map(status).transpose()?,
            missed: run.missed,
            manual: run.manual,
        })
    };
    runs.into_iter().map(read).collect()
}

fn parts(first: Option<First>) -> (Option<Timestamp>, Option<i32>) {
    let remaining = first.and_then(|first| first.remaining);
    (
        first.map(|first| first.due),
        remaining.map(|remaining| i32::try_from(remaining).unwrap_or(i32::MAX)),
    )
}

fn text(rows: &[Row]) -> Result<String, Fault> {
    only(rows.first().ok_or_else(Fault::no_row)?)
}
