//! Limits: their bounds, and how much of them is in use.

use serde_json::Value;
use tokio_postgres::Row;

use super::{
    connection::Connection,
    fault::Fault,
    row::{named, only},
    sql,
};
use crate::{
    limit::Limit,
    model::limit::{LimitInfo, LimitKeyInfo, LimitUse, Rate},
};

sql!(DECLARE_LIMITS, "declare_limits.sql", [TEXT]);
sql!(LIMITS, "limits.sql", [TEXT]);
sql!(LIMIT_COUNTS, "limit_counts.sql", [INT4, INT8]);
sql!(LIMIT_KEYS, "limit_keys.sql", [TEXT, INT4]);
sql!(LIMIT_USE, "limit_use.sql", [INT8]);
sql!(SET_LIMIT, "set_limit.sql", [TEXT, TEXT]);
sql!(SET_LIMIT_KEY, "set_limit_key.sql", [TEXT, TEXT, TEXT]);
sql!(RESET_LIMIT, "reset_limit.sql", [TEXT]);
sql!(PAUSE_LIMIT, "pause_limit.sql", [TEXT]);
sql!(RESUME_LIMIT, "resume_limit.sql", [TEXT]);
sql!(WAKE_FREED, "wake_freed.sql", [TEXT_ARRAY]);
sql!(COLLECT_RATES, "collect_rates.sql", [INT4, TEXT, TEXT]);
sql!(CLOSE_LIMIT, "close_limit.sql", [TEXT, FLOAT8]);
sql!(TAKE_RATE, "take_rate.sql", [TEXT, TEXT, FLOAT8]);
sql!(ADJUST_RATE, "adjust_rate.sql", [TEXT, TEXT, FLOAT8]);

/// How many keys of a limit one call returns.
pub(crate) const KEYS_MAX: i32 = 200;
/// How many limits one call of [`counts`] returns.
const COUNTS_MAX: i32 = 100;
/// How many claims, and how many waiting instances, one call of [`counts`] reads.
const COUNTED_ROWS_MAX: i64 = 50_000;

/// Stores the bounds of limits that the code of this worker declares.
pub(crate) async fn declare(connection: &Connection, limits: &[Limit]) -> Result<(), Fault> {
    if limits.is_empty() {
        return Ok(());
    }
    let limits = serde_json::to_string(limits)
        .map_err(|error| Fault::unsendable(format!("limits cannot be encoded: {error}")))?;
    connection
        .query(&DECLARE_LIMITS, &[&limits])
        .await
        .map(drop)
}

/// Returns the limits, or one of them, with their bounds and their use.
pub(crate) async fn list(
    connection: &Connection,
    name: Option<&str>,
) -> Result<Vec<LimitInfo>, Fault> {
    let rows = connection.query(&LIMITS, &[&name]).await?;
    rows.iter().map(info).collect()
}

/// Counts the claims and the waiting instances of the first limits by name. Reads no tokens.
pub(crate) async fn counts(connection: &Connection) -> Result<Vec<LimitInfo>, Fault> {
    let rows = connection
        .query(&LIMIT_COUNTS, &[&COUNTS_MAX, &COUNTED_ROWS_MAX])
        .await?;
    rows.iter().map(info).collect()
}

fn info(row: &Row) -> Result<LimitInfo, Fault> {
    let declared: &str = named(row, "declared")?;
    Ok(LimitInfo {
        name: named(row, "name")?,
        at_once: named(row, "at_once")?,
        per_key: named(row, "per_key")?,
        rate: Rate::of(
            named(row, "rate")?,
            named(row, "period")?,
            named(row, "burst")?,
        ),
        key_rate: Rate::of(
            named(row, "key_rate")?,
            named(row, "key_period")?,
            named(row, "key_burst")?,
        ),
        declared: serde_json::from_str(declared).unwrap_or(Value::Null),
        changed_at: named(row, "changed_at")?,
        paused_at: named(row, "paused_at")?,
        closed_until: named(row, "closed_until")?,
        running: named(row, "running")?,
        waiting: named(row, "waiting")?,
        is_lower_bound: named(row, "is_lower_bound")?,
        tokens: named(row, "tokens")?,
    })
}

/// Returns the keys of a limit that instances wait for or that have bounds of their own.
pub(crate) async fn keys(connection: &Connection, name: &str) -> Result<Vec<LimitKeyInfo>, Fault> {
    let rows = connection.query(&LIMIT_KEYS, &[&name, &KEYS_MAX]).await?;
    rows.iter()
        .map(|row| {
            Ok(LimitKeyInfo {
                key: named(row, "key")?,
                at_once: named(row, "at_once")?,
                rate: Rate::of(
                    named(row, "rate")?,
                    named(row, "period")?,
                    named(row, "burst")?,
                ),
                is_own: named(row, "is_own")?,
                running: named(row, "running")?,
                waiting: named(row, "waiting")?,
                tokens: named(row, "tokens")?,
                ready_at: named(row, "ready_at")?,
            })
        })
        .collect()
}

/// Returns the use of the limits that the step of an instance takes: of each limit, and of its key.
pub(crate) async fn use_of(connection: &Connection, id: i64) -> Result<Vec<LimitUse>, Fault> {
    let rows = connection.query(&LIMIT_USE, &[&id]).await?;
    rows.iter()
        .map(|row| {
            Ok(LimitUse {
                limit: named(row, "name")?,
                key: named(row, "key")?,
                at_once: named(row, "at_once")?,
                running: named(row, "claims")?,
                rate: Rate::of(
                    named(row, "rate")?,
                    named(row, "period")?,
                    named(row, "burst")?,
                ),
                tokens: named(row, "tokens")?,
                paused: named(row, "paused")?,
                free_at: named(row, "free_at")?,
            })
        })
        .collect()
}

/// Changes bounds of a limit. Returns whether the limit exists, as the functions below do.
pub(crate) async fn set(connection: &Connection, name: &str, bounds: &str) -> Result<bool, Fault> {
    let rows = connection.act_alone(&SET_LIMIT, &[&name, &bounds]).await?;
    rows.first().map_or(Ok(false), only)
}

/// Sets the bounds of one key, or removes them.
pub(crate) async fn set_key(
    connection: &Connection,
    name: &str,
    key: &str,
    bounds: Option<&str>,
) -> Result<bool, Fault> {
    let rows = connection
        .act_alone(&SET_LIMIT_KEY, &[&name, &key, &bounds])
        .await?;
    rows.first().map_or(Ok(false), only)
}

pub(crate) async fn reset(connection: &Connection, name: &str) -> Result<bool, Fault> {
    let rows = connection.act_alone(&RESET_LIMIT, &[&name]).await?;
    rows.first().map_or(Ok(false), only)
}

pub(crate) async fn pause(connection: &Connection, name: &str) -> Result<bool, Fault> {
    let rows = connection.act_alone(&PAUSE_LIMIT, &[&name]).await?;
    rows.first().map_or(Ok(false), only)
}

pub(crate) async fn resume(connection: &Connection, name: &str) -> Result<bool, Fault> {
    let rows = connection.act_alone(&RESUME_LIMIT, &[&name]).await?;
    rows.first().map_or(Ok(false), only)
}

pub(crate) async fn close(
    connection: &Connection,
    name: &str,
    seconds: f64,
) -> Result<bool, Fault> {
    let rows = connection.act(&CLOSE_LIMIT, &[&name, &seconds]).await?;
    rows.first().map_or(Ok(false), only)
}

/// Takes from the rates of a limit. Returns after how many seconds to try again, 0 if it took, or
/// `None` if the limit does not exist.
pub(crate) async fn take(
    connection: &Connection,
    name: &str,
    key: &str,
    weight: f64,
) -> Result<Option<f64>, Fault> {
    let rows = connection.act(&TAKE_RATE, &[&name, &key, &weight]).await?;
    rows.first().map_or(Ok(None), only)
}

pub(crate) async fn adjust(
    connection: &Connection,
    name: &str,
    key: &str,
    more: f64,
) -> Result<bool, Fault> {
    let rows = connection.act(&ADJUST_RATE, &[&name, &key, &more]).await?;
    rows.first().map_or(Ok(false), only)
}

/// Lets the next picks try the instances that wait for limits in which claims have ended.
pub(crate) async fn wake_freed(connection: &Connection, freed: &[String]) -> Result<(), Fault> {
    connection.query(&WAKE_FREED, &[&freed]).await.map(drop)
}

/// Deletes rows of rates that are full again: reads up to `limit` rows after the name and key
/// `from`. Returns how many rows it deleted, and the name and key after which the next call begins,
/// if it did not reach the end of the table.
pub(crate) async fn collect(
    connection: &Connection,
    from: &(String, String),
    limit: i32,
) -> Result<(i64, Option<(String, String)>), Fault> {
    let (name, key) = from;
    let rows = connection
        .query(&COLLECT_RATES, &[&limit, name, key])
        .await?;
    let row = rows.first().ok_or_else(Fault::no_row)?;
    let next: (Option<String>, Option<String>) = (named(row, "name")?, named(row, "key")?);
    Ok((named(row, "deleted")?, next.0.zip(next.1)))
}
