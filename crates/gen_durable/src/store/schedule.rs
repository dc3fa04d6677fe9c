//! Statements about schedules: they store the cycle that the code declares, the cycle that an
//! operator sets, and the cycle in force.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::column,
    sql,
};
use crate::calendar::First;

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
    let row = rows.first().ok_or_else(no_row)?;
    let known = match (column(row, 1)?, column(row, 2)?) {
        (Some(cycle), Some(anchor)) => {
            let remaining =
                column::<Option<i32>>(row, 3)?.and_then(|remaining| u32::try_from(remaining).ok());
            Some(Known {
                cycle,
                anchor,
                remaining,
            })
        }
        _ => None,
    };
    Ok((column(row, 0)?, known))
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
    column(rows.first().ok_or_else(no_row)?, 0)
}

/// Records, for people, why an occurrence of a schedule could not start an instance.
pub(crate) async fn failed(connection: &Connection, name: &str, why: &str) -> Result<(), Fault> {
    connection.query(&FAILED, &[&name, &why]).await.map(drop)
}

/// Returns the schedules with a name after `after`, or the schedule with the name `name`, each with
/// its last occurrences.
pub(crate) async fn list(
    connection: &Connection,
    name: Option<&str>,
    runs: i32,
    after: Option<&str>,
    limit: i32,
) -> Result<Vec<Row>, Fault> {
    connection
        .query(&LIST, &[&name, &runs, &after, &limit])
        .await
}

fn parts(first: Option<First>) -> (Option<Timestamp>, Option<i32>) {
    let remaining = first.and_then(|first| first.remaining);
    (
        first.map(|first| first.due),
        remaining.map(|remaining| i32::try_from(remaining).unwrap_or(i32::MAX)),
    )
}

fn text(rows: &[Row]) -> Result<String, Fault> {
    column(rows.first().ok_or_else(no_row)?, 0)
}

fn no_row() -> Fault {
    Fault::Refused {
        code: None,
        message: "the database returned no row".into(),
    }
}
