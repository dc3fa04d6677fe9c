//! Retention: settled instances are deleted after a while.

use std::time::Duration;

use super::{connection::Connection, fault::Fault, row::column, sql};
use crate::{id::Queue, settings::Retention};

sql!(COLLECT, "collect.sql", [FLOAT8, FLOAT8, FLOAT8, INT4]);
sql!(DECLARE_RETENTION, "declare_retention.sql", [TEXT, FLOAT8, FLOAT8]);

/// Deletes up to about `limit` settled instances that are past their retention. Returns how many, and whether there may be more. What
/// it had to keep it reads again `pause_seconds` after the beginning of the last pass, at the earliest.
pub(crate) async fn collect(
    connection: &Connection,
    retention: Retention,
    pause_seconds: f64,
    limit: i32,
) -> Result<(i64, bool), Fault> {
    let Retention { done, failed } = retention;
    let (done, failed) = (done.map(|kept| kept.as_secs_f64()), failed.map(|kept| kept.as_secs_f64()));
    let rows = connection.query(&COLLECT, &[&done, &failed, &pause_seconds, &limit]).await?;
    rows.first().map_or(Ok((0, false)), |row| Ok((column(row, 0)?, column(row, 1)?)))
}

/// Sets the retention of these queues for the collectors of all engines.
pub(crate) async fn declare_retentions(
    connection: &Connection,
    retentions: &[(Queue, Retention)],
) -> Result<(), Fault> {
    let seconds = |kept: Option<Duration>| kept.map_or(f64::INFINITY, |kept| kept.as_secs_f64());
    for (queue, Retention { done, failed }) in retentions {
        connection.query(&DECLARE_RETENTION, &[&queue.name(), &seconds(*done), &seconds(*failed)]).await?;
    }
    Ok(())
}
