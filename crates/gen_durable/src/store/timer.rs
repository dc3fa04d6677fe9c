//! Statements about timers and about the deadlines of waits: they read due times, fire, cancel and
//! delete timers, and end waits at their deadline.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{column, columns, named, only, parsed},
    sql,
};
use crate::{
    model::{
        findings::Findings,
        schedule::{Forecast, TimerCursor, TimerInfo, TimerPage, TimerSelection},
    },
    new_instance::New,
};

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
sql!(FINDINGS, "findings.sql", [FLOAT8]);

columns!(
    /// The columns of the statement that returns due timers.
    DueColumns {
        id, due_at, anchor_at, remaining, missed_count, manual, cycle, missed, schedule, now,
    }
);
columns!(
    /// The columns of the statement that fires timers.
    FiredColumns { id, answer, late, queue, priority, eligible_at, next_due }
);

/// The longest time that the statement which fires a batch of timers waits for a key that another
/// transaction has inserted and not committed yet.
const FIRE_LOCK_TIMEOUT: &str = "100ms";

/// A range of due times of timers or deadlines, relative to the time of the database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// The range of due times begins this many seconds before now.
    pub(crate) since: f64,
    /// The range of due times ends this many seconds before now.
    pub(crate) until: f64,
    /// The earliest due time in the range: the statement reads no due time before it.
    pub(crate) from: Timestamp,
}

#[cfg(feature = "testing")]
impl Range {
    /// The range of all due times up to now.
    pub(crate) const ALL: Range = Range {
        since: f64::INFINITY,
        until: 0.0,
        from: Timestamp::MIN,
    };
}

/// A wait that has reached its deadline: the queue and priority of its instance, and the time of
/// the deadline.
#[derive(Debug, Clone)]
pub(crate) struct Expired {
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) due: Timestamp,
}

/// Ends the waits and joins that have passed their deadline. Returns these waits and joins, and the
/// time of the database.
pub(crate) async fn expire(
    connection: &Connection,
    limit: i32,
    range: Range,
) -> Result<(Vec<Expired>, Timestamp), Fault> {
    let params: &[Param<'_>] = &[
        &limit,
        &range.since,
        &range.until,
        &not_before_epoch(range.from),
    ];
    let rows = connection.query(&EXPIRE, params).await?;
    let (last, rows) = rows.split_last().ok_or_else(Fault::no_row)?;
    let read = |row: &Row| {
        Ok(Expired {
            queue: named(row, "queue")?,
            priority: named(row, "priority")?,
            due: named(row, "due_at")?,
        })
    };
    Ok((
        rows.iter().map(read).collect::<Result<_, Fault>>()?,
        named(last, "now")?,
    ))
}

/// Returns the times around now at which timers (`true`) and deadlines (`false`) are due, and the
/// time of the database.
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
        match named(row, "due_at")? {
            Some(at) => due.push((at, named(row, "is_timer")?)),
            None => now = named(row, "now")?,
        }
    }
    Ok((due, now.ok_or_else(Fault::no_row)?))
}

/// A timer with a due time that is not after now.
#[derive(Debug, Clone)]
pub(crate) struct DueTimer {
    pub(crate) id: i64,
    pub(crate) due: Timestamp,
    pub(crate) anchor: Timestamp,
    pub(crate) remaining: Option<u32>,
    pub(crate) missed_count: u32,
    pub(crate) manual: bool,
    pub(crate) cycle: String,
    pub(crate) missed: String,
    pub(crate) schedule: Option<String>,
}

/// Returns the timers that are due, except the timers in `except`, and the time of the database.
/// Includes a timer of a schedule only if the caller names the schedule.
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
        &not_before_epoch(range.from),
        &schedules,
        &except,
    ];
    let rows = connection.query(&DUE, params).await?;
    let at = DueColumns::of(&rows)?;
    let (last, rows) = rows.split_last().ok_or_else(Fault::no_row)?;
    let read = |row: &Row| {
        let count = |index| -> Result<Option<u32>, Fault> {
            Ok(column::<Option<i32>>(row, index)?.and_then(|count| u32::try_from(count).ok()))
        };
        Ok(DueTimer {
            id: column(row, at.id)?,
            due: column(row, at.due_at)?,
            anchor: column(row, at.anchor_at)?,
            remaining: count(at.remaining)?,
            missed_count: count(at.missed_count)?.unwrap_or_default(),
            manual: column(row, at.manual)?,
            cycle: column(row, at.cycle)?,
            missed: column(row, at.missed)?,
            schedule: column(row, at.schedule)?,
        })
    };
    Ok((
        rows.iter().map(read).collect::<Result<_, Fault>>()?,
        column(last, at.now)?,
    ))
}

/// The parameters with which a worker fires a due timer, serialized as `gen_durable._fire` expects
/// them.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Firing {
    pub(crate) id: i64,
    pub(crate) due: Timestamp,
    /// Whether the timer starts an instance. If not, the statement records its occurrence as
    /// missed.
    pub(crate) happens: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining: Option<u32>,
    /// The number of missed occurrences of the schedule for which the next occurrence stands.
    pub(crate) missed: u32,
    /// The new instance that an occurrence of a schedule enqueues. `None` for a repeating timer of
    /// a wait, because the row of such a timer already contains the instance to enqueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) new_instance: Option<New>,
}

/// The outcome of firing one timer.
#[derive(Debug, Clone)]
pub(crate) struct Fired {
    pub(crate) id: i64,
    /// The outcome in one word: `fired`, `missed`, `cancelled`, or `held`, if another transaction
    /// has locked a row that the statement needs.
    pub(crate) answer: String,
    pub(crate) late_seconds: Option<f64>,
    /// The queue, priority and due time of the instance that the timer started. The worker wakes
    /// its pickers for this instance.
    pub(crate) started: Option<(String, i16, Timestamp)>,
    pub(crate) next: Option<Timestamp>,
}

impl Fired {
    /// Creates the outcome `held` for a timer, if another transaction has locked a row that the
    /// statement needs.
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

/// Fires a batch of due timers, all in one transaction.
pub(crate) async fn fire(
    connection: &Connection,
    verdicts: &[Firing],
) -> Result<Vec<Fired>, Fault> {
    let document = serde_json::to_string(verdicts)
        .map_err(|error| Fault::unexpected(format!("timers cannot be encoded: {error}")))?;
    let rows = connection
        .query(&FIRE, &[&document, &FIRE_LOCK_TIMEOUT])
        .await?;
    let at = FiredColumns::of(&rows)?;
    let read = |row: &Row| {
        let started = (
            column(row, at.queue)?,
            column(row, at.priority)?,
            column(row, at.eligible_at)?,
        );
        Ok(Fired {
            id: column(row, at.id)?,
            answer: column(row, at.answer)?,
            late_seconds: column(row, at.late)?,
            started: match started {
                (Some(queue), Some(priority), Some(from)) => Some((queue, priority, from)),
                _ => None,
            },
            next: column(row, at.next_due)?,
        })
    };
    rows.iter().map(read).collect()
}

/// Cancels a timer. Returns 'cancelled', 'too_late', 'no_target' (there is no such timer) or
/// 'schedule' (the timer is the next occurrence of a schedule).
pub(crate) async fn cancel(connection: &Connection, id: i64) -> Result<String, Fault> {
    let rows = connection.act_alone(&CANCEL, &[&id]).await?;
    only(rows.first().ok_or_else(Fault::no_row)?)
}

/// Deletes up to `limit` timers that ended more than `retention_seconds` ago, beginning at the time
/// `from`. Returns how many timers it deleted, and the time at which the next batch may begin.
pub(crate) async fn collect(
    connection: &Connection,
    from: Timestamp,
    retention_seconds: f64,
    limit: i32,
) -> Result<(i64, Option<Timestamp>), Fault> {
    let rows = connection
        .query(&COLLECT, &[&from, &retention_seconds, &limit])
        .await?;
    let row = rows.first().ok_or_else(Fault::no_row)?;
    Ok((named(row, "count")?, named(row, "last_ended_at")?))
}

/// Returns how many timers and deadlines are overdue by more than `by_seconds`, each counted up to
/// 10,001.
pub(crate) async fn overdue(connection: &Connection, by_seconds: f64) -> Result<i64, Fault> {
    let rows = connection.query(&OVERDUE, &[&by_seconds]).await?;
    only(rows.first().ok_or_else(Fault::no_row)?)
}

/// Returns a page of due times of all kinds (timers, deadlines, delayed instances), in order, after
/// the position `after`.
pub(crate) async fn list(
    connection: &Connection,
    limit: usize,
    which: TimerSelection,
    after: Option<TimerCursor>,
) -> Result<TimerPage, Fault> {
    let (at, number) = (
        after.map(|after| after.due_at),
        after.map(|after| after.number),
    );
    let params: &[Param<'_>] = &[
        &i32::try_from(limit).unwrap_or(i32::MAX),
        &(which == TimerSelection::Overdue),
        &at,
        &number,
        &(which == TimerSelection::Ahead),
    ];
    let rows = connection.query(&LIST, params).await?;
    let cursor = |row: &Row| {
        Ok::<_, Fault>(TimerCursor {
            due_at: named(row, "due_at")?,
            number: named(row, "number")?,
        })
    };
    let last = rows.last().filter(|_| rows.len() == limit);
    Ok(TimerPage {
        timers: rows.iter().map(read_timer).collect::<Result<_, _>>()?,
        next: last.map(cursor).transpose()?,
    })
}

/// Returns the due times of all kinds of one instance: its delay, its deadline and its repeating
/// timers.
pub(crate) async fn of(connection: &Connection, instance: i64) -> Result<Vec<TimerInfo>, Fault> {
    let rows = connection.query(&OF, &[&instance]).await?;
    rows.iter().map(read_timer).collect()
}

/// Reads a timer from a row of one of the queries that list timers.
fn read_timer(row: &Row) -> Result<TimerInfo, Fault> {
    Ok(TimerInfo {
        kind: parsed(row, "kind")?,
        id: named(row, "id")?,
        due_at: named(row, "due_at")?,
        instance_id: named(row, "instance_id")?,
        machine: named(row, "machine")?,
        schedule: named(row, "schedule")?,
        cycle: named(row, "cycle")?,
        step: named(row, "step")?,
        overdue: named(row, "overdue")?,
        served: named(row, "served")?,
        now: named(row, "now")?,
    })
}

/// Splits the next `seconds` into `parts` equal parts, and returns how many due times of timers,
/// deadlines and delayed instances are in each part, by kind. Each number is counted up to
/// `counted_max`.
pub(crate) async fn forecast(
    connection: &Connection,
    seconds: f64,
    parts: i32,
    counted_max: i32,
) -> Result<Vec<Forecast>, Fault> {
    let rows = connection
        .query(&FORECAST, &[&seconds, &parts, &counted_max])
        .await?;
    let read = |row: &Row| {
        Ok(Forecast {
            part: usize::try_from(named::<i32>(row, "part")?).unwrap_or_default(),
            kind: parsed(row, "kind")?,
            count: named(row, "count")?,
        })
    };
    rows.iter().map(read).collect()
}

/// Counts blocked lanes, timers and deadlines that are overdue by more than `by_seconds`, paused
/// schedules, and schedules that fail or that no live worker registers.
pub(crate) async fn findings(connection: &Connection, by_seconds: f64) -> Result<Findings, Fault> {
    let rows = connection.query(&FINDINGS, &[&by_seconds]).await?;
    let row = rows.first().ok_or_else(Fault::no_row)?;
    Ok(Findings {
        lanes_blocked: named(row, "lanes_blocked")?,
        overdue: named(row, "overdue")?,
        schedules_paused: named(row, "schedules_paused")?,
        schedules_failing: named(row, "schedules_failing")?,
    })
}

/// Returns `from`, but no time before 1970: Postgres cannot represent the year -9999, with which
/// the unbounded range begins.
fn not_before_epoch(from: Timestamp) -> Timestamp {
    from.max(Timestamp::UNIX_EPOCH)
}
