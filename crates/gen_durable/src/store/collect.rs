//! Retention: deletes settled instances after the end of their retention, and consumed signals,
//! which the database keeps for a while only so that their dedup keys stay known.

use std::time::Duration;

use jiff::Timestamp;

use super::{connection::Connection, fault::Fault, row::named, sql};
use crate::{id::Queue, settings::Retention};

sql!(COLLECT, "collect.sql", [FLOAT8, FLOAT8, FLOAT8, INT4]);
sql!(
    DECLARE_RETENTION,
    "declare_retention.sql",
    [TEXT, FLOAT8, FLOAT8]
);
sql!(
    COLLECT_SIGNALS,
    "collect_signals.sql",
    [TIMESTAMPTZ, FLOAT8, INT4]
);

/// Deletes up to about `limit` settled instances that are past their retention. Returns how many
/// instances it deleted, and whether there may be more. If one pass over the settled instances
/// cannot delete an instance, a later pass reads that instance again, no sooner than
/// `pause_seconds` after the first pass began.
pub(crate) async fn collect(
    connection: &Connection,
    retention: Retention,
    pause_seconds: f64,
    limit: i32,
) -> Result<(i64, bool), Fault> {
    let Retention { done, failed } = retention;
    let (done, failed) = (
        done.map(|kept| kept.as_secs_f64()),
        failed.map(|kept| kept.as_secs_f64()),
    );
    let rows = connection
        .query(&COLLECT, &[&done, &failed, &pause_seconds, &limit])
        .await?;
    rows.first().map_or(Ok((0, false)), |row| {
        Ok((named(row, "deleted")?, named(row, "more")?))
    })
}

/// Stores the retention of these queues in the table `queues`, where the upkeep of every worker
/// reads it.
pub(crate) async fn declare_retentions(
    connection: &Connection,
    retentions: &[(Queue, Retention)],
) -> Result<(), Fault> {
    let seconds = |kept: Option<Duration>| kept.map_or(f64::INFINITY, |kept| kept.as_secs_f64());
    for (queue, Retention { done, failed }) in retentions {
        connection
            .query(
                &DECLARE_RETENTION,
                &[&queue.name(), &seconds(*done), &seconds(*failed)],
            )
            .await?;
    }
    Ok(())
}

/// Deletes up to `limit` signals that steps consumed more than `retention_seconds` ago. Returns how
/// many signals it deleted, and the consumption time at which the next call may begin to read: the
/// index entries before that time point only to deleted signals.
pub(crate) async fn collect_signals(
    connection: &Connection,
    from: Timestamp,
    retention_seconds: f64,
    limit: i32,
) -> Result<(i64, Option<Timestamp>), Fault> {
    let rows = connection
        .query(&COLLECT_SIGNALS, &[&from, &retention_seconds, &limit])
        .await?;
    match rows.first() {
        Some(row) => Ok((named(row, "count")?, named(row, "last_consumed_at")?)),
        None => Ok((0, None)),
    }
}
