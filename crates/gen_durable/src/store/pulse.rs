//! Reads numbers about throughput and backlog: how many instances settle, arrive and wait, and
//! which errors occur. Every query reads a bounded number of rows.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::Connection,
    fault::Fault,
    inspect,
    row::{named, parsed},
    sql,
};
use crate::{
    id::Status,
    model::{
        instance::Count,
        queue::Backlog,
        throughput::{Arrived, Estimate, FailureGroup, SettledCount},
    },
};

sql!(SETTLED, "settled_counts.sql", [TIMESTAMPTZ, INT4]);
sql!(ARRIVED, "arrived.sql", [INT8, INT4]);
sql!(COUNTS, "status_counts.sql", [INT4]);
sql!(QUEUED, "queued_counts.sql", [INT4]);
sql!(BACKLOG, "backlog.sql", [INT4]);
sql!(ERRORS, "failure_groups.sql", [INT4, INT4]);
sql!(ESTIMATE, "estimate.sql", []);

/// The largest number to which the queries of this module count instances.
pub(crate) const COUNTED_MAX: i32 = 10_001;
/// The largest number of settled or newly enqueued instances that one query reads.
const SAMPLED_MAX: i32 = 20_000;
/// The largest number of failed instances that one query reads to group their errors.
const ERRORS_MAX: i32 = 5_000;
/// The largest number of groups of errors that one query returns.
const GROUPS_MAX: i32 = 2_000;

/// Counts the instances that settled since this time, grouped by second.
pub(crate) async fn settled(
    connection: &Connection,
    since: Timestamp,
) -> Result<Vec<SettledCount>, Fault> {
    let read = |row: &Row| {
        Ok(SettledCount {
            second: named(row, "second")?,
            machine: named(row, "machine")?,
            status: parsed(row, "status")?,
            class: named(row, "class")?,
            count: named(row, "count")?,
        })
    };
    let rows = connection.query(&SETTLED, &[&since, &SAMPLED_MAX]).await?;
    rows.iter().map(read).collect()
}

/// Counts the instances that were enqueued after the instance with the id `after`, grouped by
/// second.
pub(crate) async fn arrived(connection: &Connection, after: i64) -> Result<Vec<Arrived>, Fault> {
    let read = |row: &Row| {
        Ok(Arrived {
            second: named(row, "second")?,
            count: named(row, "count")?,
            newest_id: named(row, "newest")?,
        })
    };
    let rows = connection.query(&ARRIVED, &[&after, &SAMPLED_MAX]).await?;
    rows.iter().map(read).collect()
}

/// Counts the instances by machine, step and status, at most 10,001 of each status. Leaves out
/// instances with the status `done` or `queued`.
pub(crate) async fn status_counts(connection: &Connection) -> Result<Vec<Count>, Fault> {
    let rows = connection.query(&COUNTS, &[&COUNTED_MAX]).await?;
    rows.iter().map(inspect::count).collect()
}

/// Counts the queued instances by machine and step. Returns whether the counts are complete: the
/// query reads at most 10,001 instances in lanes, and as many that are not in their lane yet.
pub(crate) async fn queued_counts(connection: &Connection) -> Result<(Vec<Count>, bool), Fault> {
    let mut queued = Vec::new();
    let (mut in_lanes, mut arrived) = (0, 0);
    for row in &connection.query(&QUEUED, &[&COUNTED_MAX]).await? {
        let count = inspect::count(row)?;
        let (has_arrived, in_lane): (bool, bool) =
            (named(row, "has_arrived")?, named(row, "in_lane")?);
        *if has_arrived {
            &mut arrived
        } else {
            &mut in_lanes
        } += count.count;
        if count.status == Status::Queued && has_arrived != in_lane {
            queued.push(count);
        }
    }
    let most = i64::from(COUNTED_MAX);
    Ok((queued, in_lanes < most && arrived < most))
}

/// Returns the queues that workers serve, the queues with waiting instances, and the paused queues.
pub(crate) async fn backlog(connection: &Connection) -> Result<Vec<Backlog>, Fault> {
    let read = |row: &Row| {
        Ok(Backlog {
            name: named(row, "name")?,
            paused_at: named(row, "paused_at")?,
            paused_by: named(row, "paused_by")?,
            due: named(row, "due")?,
            oldest_due_at: named(row, "oldest_due_at")?,
            scheduled: named(row, "scheduled")?,
            next_due_at: named(row, "next_due_at")?,
            executing: named(row, "executing")?,
            workers: named(row, "workers")?,
            is_fair: named(row, "is_fair")?,
        })
    };
    let rows = connection.query(&BACKLOG, &[&COUNTED_MAX]).await?;
    rows.iter().map(read).collect()
}

/// Returns the errors of failed and stuck instances, grouped, the latest first.
pub(crate) async fn failure_groups(connection: &Connection) -> Result<Vec<FailureGroup>, Fault> {
    let read = |row: &Row| {
        Ok(FailureGroup {
            machine: named(row, "machine")?,
            step: named(row, "step")?,
            status: parsed(row, "status")?,
            fingerprint: named(row, "fingerprint")?,
            error: named(row, "error")?,
            count: named(row, "count")?,
            first_at: named(row, "first_at")?,
            last_at: named(row, "last_at")?,
            newest_id: named(row, "newest")?,
        })
    };
    let rows = connection
        .query(&ERRORS, &[&ERRORS_MAX, &GROUPS_MAX])
        .await?;
    rows.iter().map(read).collect()
}

/// Returns the time of the schema's clock, and an estimate of the number of instances.
pub(crate) async fn estimate(connection: &Connection) -> Result<Estimate, Fault> {
    let rows = connection.query(&ESTIMATE, &[]).await?;
    let row = rows
        .first()
        .ok_or_else(|| Fault::unexpected("the table of instances is not in the catalog"))?;
    Ok(Estimate {
        now: named(row, "now")?,
        instances: named(row, "instances")?,
        bytes: named(row, "bytes")?,
        workers: named(row, "workers")?,
    })
}
