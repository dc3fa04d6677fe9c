//! Timers: what falls due, firing, cancelling, retention; and waits whose time has come.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::column,
    sql,
};
use crate::birth::New;

sql!(prepared EXPIRE, "expire.sql", [INT4, FLOAT8, FLOAT8, TIMESTAMPTZ]);
sql!(prepared UPCOMING, "upcoming.sql", [FLOAT8, FLOAT8, INT4]);
sql!(prepared DUE, "due_timers.sql", [INT4, FLOAT8, FLOAT8, TIMESTAMPTZ, TEXT_ARRAY, INT8_ARRAY]);
sql!(prepared FIRE, "fire.sql", [TEXT, TEXT]);
sql!(CANCEL, "cancel_timer.sql", [INT8]);
sql!(COLLECT, "collect_timers.sql", [TIMESTAMPTZ, FLOAT8, INT4]);
sql!(OVERDUE, "overdue_timers.sql", [FLOAT8]);
sql!(
    LIST,
    "list_timers.sql",
    [INT4, BOOL, TIMESTAMPTZ, INT8, BOOL]
);
sql!(OF, "timers_of.sql", [INT8]);
sql!(FORECAST, "forecast_timers.sql", [FLOAT8, INT4, INT4]);
sql!(ATTENTION, "attention.sql", [FLOAT8]);

/// A batch of timers waits no longer than this for a key that somebody is about to take.
const FIRE_LOCK_TIMEOUT: &str = "100ms";

/// Which due times are looked at, counted back from now by the database's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// From so many seconds before now…
    pub(crate) since: f64,
    /// …up to so many.
    pub(crate) until: f64,
    /// And not before this.
    pub(crate) from: Timestamp,
}

#[cfg(feature = "testing")]
impl Range {
    /// All that is due.
    pub(crate) const ALL: Range = Range {
        since: f64::INFINITY,
        until: 0.0,
        from: Timestamp::MIN,
    };
}

/// A wait that gave up: where to look for its instance, and when it was due.
#[derive(Debug, Clone)]
pub(crate) struct Expired {
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) due: Timestamp,
}

/// Waits and joins whose time has come. Answers which, and what time it is.
pub(crate) async fn expire(
    connection: &Connection,
    limit: i32,
    range: Range,
) -> Result<(Vec<Expired>, Timestamp), Fault> {
    let params: &[Param<'_>] = &[&limit, &range.since, &range.until, &beginning(range.from)];
    let rows = connection.query(&EXPIRE, params).await?;
    let (last, rows) = rows.split_last().ok_or_else(silent)?;
    let read = |row: &Row| {
        Ok(Expired {
            queue: column(row, 1)?,
            priority: column(row, 2)?,
            due: column(row, 3)?,
        })
    };
    Ok((
        rows.iter().map(read).collect::<Result<_, Fault>>()?,
        column(last, 4)?,
    ))
}

/// When timers (`true`) and deadlines fall due, around now. And what time it is.
pub(crate) async fn upcoming(
    connection: &Connection,
    since: f64,
    horizon: f64,
    limit: i32,
) -> Result<(Vec<(Timestamp, bool)>, Timestamp), Fault> {
    let rows = connection
        .query(&UPCOMING, &[&since, &horizon, &limit])
        .await?;
    let (mut due, mut now) = (Vec::with_capacity(rows.len()), None);
    for row in &rows {
        match column(row, 0)? {
            Some(at) => due.push((at, column(row, 1)?)),
            None => now = column(row, 2)?,
        }
    }
    Ok((due, now.ok_or_else(silent)?))
}

/// A timer that is due.
#[derive(Debug, Clone)]
pub(crate) struct DueTimer {
    pub(crate) id: i64,
    pub(crate) due: Timestamp,
    pub(crate) anchor: Timestamp,
    pub(crate) remaining: Option<u32>,
    pub(crate) missed_count: u32,
    pub(crate) by_hand: bool,
    pub(crate) cycle: String,
    pub(crate) missed: String,
    pub(crate) schedule: Option<String>,
}

/// Timers that are due, but for `except`; of schedules only those that are named. And what time it is.
pub(crate) async fn due(
    connection: &Connection,
    limit: i32,
    range: Range,
    schedules: &[String],
    except: &[i64],
) -> Result<(Vec<DueTimer>, Timestamp), Fault> {
    let params: &[Param<'_>] = &[
        &limit,
        &range.since,
        &range.until,
        &beginning(range.from),
        &schedules,
        &except,
    ];
    let rows = connection.query(&DUE, params).await?;
    let (last, rows) = rows.split_last().ok_or_else(silent)?;
    let read = |row: &Row| {
        let count = |index| -> Result<Option<u32>, Fault> {
            Ok(column::<Option<i32>>(row, index)?.and_then(|count| u32::try_from(count).ok()))
        };
        Ok(DueTimer {
            id: column(row, 0)?,
            due: column(row, 1)?,
            anchor: column(row, 2)?,
            remaining: count(3)?,
            missed_count: count(4)?.unwrap_or_default(),
            by_hand: column(row, 5)?,
            cycle: column(row, 6)?,
            missed: column(row, 7)?,
            schedule: column(row, 8)?,
        })
    };
    Ok((
        rows.iter().map(read).collect::<Result<_, Fault>>()?,
        column(last, 9)?,
    ))
}

/// What is to become of a timer, in the words of `gen_durable.fire`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    pub(crate) id: i64,
    pub(crate) due: Timestamp,
    /// Whether it starts something; otherwise it was missed.
    pub(crate) happens: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining: Option<u32>,
    /// How many missed ones stand behind the next.
    pub(crate) missed: u32,
    /// What a schedule starts. What stands beside a wait has it in its row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) birth: Option<New>,
}

/// What became of it.
#[derive(Debug, Clone)]
pub(crate) struct Fired {
    pub(crate) id: i64,
    /// `fired`, `missed`, `cancelled`, or `held`: somebody is at it.
    pub(crate) answer: String,
    pub(crate) late_seconds: Option<f64>,
    /// Where to look for what it started.
    pub(crate) started: Option<(String, i16, Timestamp)>,
    pub(crate) next: Option<Timestamp>,
}

impl Fired {
    /// Somebody is at it.
    pub(crate) fn held(id: i64) -> Fired {
        Fired {
            id,
            answer: "held".into(),
            late_seconds: None,
            started: None,
            next: None,
        }
    }
}

/// Fire timers: all in one transaction.
pub(crate) async fn fire(
    connection: &Connection,
    verdicts: &[Verdict],
) -> Result<Vec<Fired>, Fault> {
    let document = serde_json::to_string(verdicts).map_err(|error| Fault::Refused {
        code: None,
        message: format!("timers cannot be encoded: {error}"),
    })?;
    let rows = connection
        .query(&FIRE, &[&document, &FIRE_LOCK_TIMEOUT])
        .await?;
    let read = |row: &Row| {
        let (queue, priority, from) = (column(row, 4)?, column(row, 5)?, column(row, 6)?);
        Ok(Fired {
            id: column(row, 0)?,
            answer: column(row, 1)?,
            late_seconds: column(row, 2)?,
            started: match (queue, priority, from) {
                (Some(queue), Some(priority), Some(from)) => Some((queue, priority, from)),
                _ => None,
            },
            next: column(row, 7)?,
        })
    };
    rows.iter().map(read).collect()
}

/// Cancel one. Answers 'cancelled', 'too_late', 'no_target' or 'schedule'.
pub(crate) async fn cancel(connection: &Connection, id: i64) -> Result<String, Fault> {
    let rows = connection.act_alone(&CANCEL, &[&id]).await?;
    column(rows.first().ok_or_else(silent)?, 0)
}

/// Delete up to `limit` timers that ended more than `retention_seconds` ago, from a remembered start on. Answers how many,
/// and where the next batch may begin.
pub(crate) async fn collect(
    connection: &Connection,
    from: Timestamp,
    retention_seconds: f64,
    limit: i32,
) -> Result<(i64, Option<Timestamp>), Fault> {
    let rows = connection
        .query(&COLLECT, &[&from, &retention_seconds, &limit])
        .await?;
    let row = rows.first().ok_or_else(silent)?;
    Ok((column(row, 0)?, column(row, 1)?))
}

/// How many timers and deadlines are overdue by more than this, counted up to 10,001 of each.
pub(crate) async fn overdue(connection: &Connection, by_seconds: f64) -> Result<i64, Fault> {
    let rows = connection.query(&OVERDUE, &[&by_seconds]).await?;
    column(rows.first().ok_or_else(silent)?, 0)
}

/// What falls due, of all kinds, after a place: only what is overdue, or only what is to come, if it says so.
pub(crate) async fn list(
    connection: &Connection,
    limit: i32,
    (only_overdue, only_ahead): (bool, bool),
    after: Option<(Timestamp, i64)>,
) -> Result<Vec<Row>, Fault> {
    let (at, number) = (after.map(|(at, _)| at), after.map(|(_, number)| number));
    connection
        .query(&LIST, &[&limit, &only_overdue, &at, &number, &only_ahead])
        .await
}

/// What falls due for one instance.
pub(crate) async fn of(connection: &Connection, instance: i64) -> Result<Vec<Row>, Fault> {
    connection.query(&OF, &[&instance]).await
}

/// How many fall due in each of so many parts of the next seconds, by kind; each counted up to a bound.
pub(crate) async fn forecast(
    connection: &Connection,
    seconds: f64,
    parts: i32,
    counted_max: i32,
) -> Result<Vec<(i32, String, i64)>, Fault> {
    let rows = connection
        .query(&FORECAST, &[&seconds, &parts, &counted_max])
        .await?;
    rows.iter()
        .map(|row| Ok((column(row, 0)?, column(row, 1)?, column(row, 2)?)))
        .collect()
}

/// Lanes that stand still, what is overdue by more than this, schedules that are paused, and those with a trouble.
pub(crate) async fn attention(connection: &Connection, by_seconds: f64) -> Result<[i64; 4], Fault> {
    let rows = connection.query(&ATTENTION, &[&by_seconds]).await?;
    let row = rows.first().ok_or_else(silent)?;
    Ok([
        column(row, 0)?,
        column(row, 1)?,
        column(row, 2)?,
        column(row, 3)?,
    ])
}

/// Postgres has no year -9999: its beginning is another.
fn beginning(from: Timestamp) -> Timestamp {
    from.max(Timestamp::UNIX_EPOCH)
}

fn silent() -> Fault {
    Fault::Refused {
        code: None,
        message: "an answer without a row".into(),
    }
}
