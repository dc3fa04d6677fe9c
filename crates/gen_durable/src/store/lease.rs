//! Statements about workers: they renew the lease, reap the claims of expired workers, and release
//! claims.

use std::{collections::HashSet, sync::Arc};

use tokio_postgres::Row;

use super::{
    connection::Connection,
    fault::Fault,
    row::{Claim, named, only},
    sql,
};

sql!(prepared RENEW, "renew.sql", [TEXT, FLOAT8, TEXT, INT4, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, BOOL, TEXT, INT4, BOOL]);
sql!(RETIRE, "retire.sql", [TEXT]);
sql!(EXPIRED, "expired.sql", [FLOAT8, TEXT]);
sql!(GRANT_MISSING_LEASES, "grant_missing_leases.sql", [FLOAT8]);
sql!(REAP, "reap.sql", [TEXT, INT4, INT2]);
sql!(BEGIN_STEP, "begin_step.sql", [INT8, INT8, INT8]);
sql!(DELETE_EXPIRED_WORKER, "delete_expired_worker.sql", [TEXT]);
sql!(HELD, "held.sql", [TEXT, FLOAT8]);
sql!(RELEASE, "release.sql", [INT8_ARRAY, INT8_ARRAY]);
sql!(RELEASE_EXPIRED, "release_expired.sql", [TEXT, INT4]);
sql!(LOST, "lost.sql", [INT8_ARRAY, INT8_ARRAY]);
/// A worker: one process with an engine, as the worker's row in `workers` describes it.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) pid: i32,
    pub(crate) queues: Vec<String>,
    pub(crate) machines: Vec<String>,
    /// The steps that this worker knows, in the form that the SQL function `_knows_step` reads. The
    /// worker claims only instances at these steps.
    pub(crate) steps: Vec<String>,
    /// The schedules that this worker can fire.
    pub(crate) schedules: Vec<String>,
    /// The projections for which this worker can execute runs.
    pub(crate) projections: Vec<String>,
    /// The largest number of connections that this worker opens.
    pub(crate) connections_max: i32,
}

impl Worker {
    /// Returns the name of the worker in history rows: `host/pid`.
    pub(crate) fn label(&self) -> Arc<str> {
        format!("{}/{}", self.host, self.pid).into()
    }
}

/// Renews the lease of a worker: inserts the worker's row in `workers` or updates it, even if the
/// lease had expired. If the lease had expired, the statement sets `started_at` to now, because
/// that column says since when the lease has been valid without a gap. `polls`: whether the worker
/// has room for instances. `is_draining`: whether the worker stops.
pub(crate) async fn renew(
    connection: &Connection,
    worker: &Worker,
    lease_seconds: f64,
    polls: bool,
    is_draining: bool,
) -> Result<(), Fault> {
    let params: &[super::connection::Param<'_>] = &[
        &worker.id,
        &lease_seconds,
        &worker.host,
        &worker.pid,
        &worker.queues,
        &worker.machines,
        &worker.steps,
        &worker.schedules,
        &worker.projections,
        &polls,
        &env!("CARGO_PKG_VERSION"),
        &worker.connections_max,
        &is_draining,
    ];
    connection.query(&RENEW, params).await.map(drop)
}

/// Deletes the row of this worker in `workers` when its engine ends. A worker that still holds
/// claims keeps its row, because the reaper finds the claims by that row.
pub(crate) async fn retire(connection: &Connection, worker: &str) -> Result<(), Fault> {
    connection.query(&RETIRE, &[&worker]).await.map(drop)
}

/// Returns the workers with an expired lease. Leaves out workers that had no chance to renew their
/// lease since an outage of the database.
pub(crate) async fn expired(
    connection: &Connection,
    lease_seconds: f64,
    asker: &str,
) -> Result<Vec<String>, Fault> {
    let rows = connection
        .query(&EXPIRED, &[&lease_seconds, &asker])
        .await?;
    rows.iter().map(only).collect()
}

/// Inserts a row into `workers`, with a fresh lease, for each worker that holds claims and has no
/// row. Returns the ids of these workers.
pub(crate) async fn grant_missing_leases(
    connection: &Connection,
    lease_seconds: f64,
) -> Result<Vec<String>, Fault> {
    let rows = connection
        .query(&GRANT_MISSING_LEASES, &[&lease_seconds])
        .await?;
    rows.iter().map(only).collect()
}

/// An instance that the reaper took from an expired worker.
#[derive(Debug, Clone)]
pub(crate) struct Reaped {
    pub(crate) id: i64,
    pub(crate) machine: String,
    pub(crate) step: String,
    /// The attempt of the step during which the expired worker crashed.
    pub(crate) attempt: i32,
    /// Whether the reaper set the instance aside as stuck, because too many workers crashed while
    /// they ran it.
    pub(crate) is_stuck: bool,
    pub(crate) last_error: Option<String>,
    /// The limits that the claim counted in.
    pub(crate) limit_group: Option<String>,
}

/// Takes up to `limit` claimed instances from an expired worker, unless that worker has renewed its
/// lease since the caller found it expired.
pub(crate) async fn reap(
    connection: &Connection,
    worker: &str,
    limit: i32,
    crashes_max: i16,
) -> Result<Vec<Reaped>, Fault> {
    let rows = connection
        .query(&REAP, &[&worker, &limit, &crashes_max])
        .await?;
    rows.iter().map(reaped).collect()
}

/// The outcome of `begin_step`, which records in an instance's row that the step of a claim begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The transaction that records the begin of the step has committed, so the worker may run the
    /// step.
    Recorded,
    /// Another transaction holds a lock on the row of the instance, so the begin of the step is not
    /// recorded.
    Locked,
    /// The worker has lost the claim of the instance, so it must not run the step.
    Stale,
}

/// Records in the instance's row that the worker begins the step of this claim.
pub(crate) async fn begin_step(connection: &Connection, claim: Claim) -> Result<Begun, Fault> {
    let rows = connection
        .query(&BEGIN_STEP, &[&claim.id, &claim.epoch, &claim.seq])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(Begun::Stale);
    };
    Ok(match (named(row, "recorded")?, named(row, "valid")?) {
        (true, _) => Begun::Recorded,
        (false, true) => Begun::Locked,
        (false, false) => Begun::Stale,
    })
}

/// Releases the lanes and partition keys of instances that a caller cancelled while a step ran,
/// after the step has ended. The argument is the claims of these steps. Returns the ids of the
/// instances that another transaction has locked, and how many instances released their lane or
/// key.
pub(crate) async fn release(
    connection: &Connection,
    claims: &[Claim],
) -> Result<(HashSet<i64>, usize), Fault> {
    let (ids, epochs): (Vec<i64>, Vec<i64>) =
        claims.iter().map(|claim| (claim.id, claim.epoch)).unzip();
    let rows = connection.query(&RELEASE, &[&ids, &epochs]).await?;
    let Some(row) = rows.first() else {
        return Ok((HashSet::new(), 0));
    };
    let (locked, released): (Vec<i64>, Vec<i64>) = (named(row, "locked")?, named(row, "released")?);
    Ok((locked.into_iter().collect(), released.len()))
}

/// Releases the lanes and partition keys of up to `limit` cancelled instances that an expired
/// worker was running. Returns how many instances released their lane or key.
pub(crate) async fn release_expired(
    connection: &Connection,
    worker: &str,
    limit: i32,
) -> Result<usize, Fault> {
    Ok(connection
        .query(&RELEASE_EXPIRED, &[&worker, &limit])
        .await?
        .len())
}

/// Deletes the row of an expired worker that holds no claims any more.
pub(crate) async fn delete_expired_worker(
    connection: &Connection,
    worker: &str,
) -> Result<(), Fault> {
    connection
        .query(&DELETE_EXPIRED_WORKER, &[&worker])
        .await
        .map(drop)
}

/// Returns the claims that this worker has held for longer than `seconds`, according to the
/// database. If the reply to a pick was lost, only this query finds the instances that the pick
/// claimed: this live worker holds their claims and does not know about them.
pub(crate) async fn held(
    connection: &Connection,
    worker: &str,
    seconds: f64,
) -> Result<Vec<Claim>, Fault> {
    let rows = connection.query(&HELD, &[&worker, &seconds]).await?;
    rows.iter()
        .map(|row| {
            Ok(Claim {
                id: named(row, "id")?,
                epoch: named(row, "epoch")?,
                seq: named(row, "step_seq")?,
            })
        })
        .collect()
}

/// Returns which of the given claims of this worker are no longer valid, as (id, epoch).
pub(crate) async fn lost(
    connection: &Connection,
    claims: &[Claim],
) -> Result<HashSet<(i64, i64)>, Fault> {
    let ids: Vec<i64> = claims.iter().map(|claim| claim.id).collect();
    let epochs: Vec<i64> = claims.iter().map(|claim| claim.epoch).collect();
    let rows = connection.query(&LOST, &[&ids, &epochs]).await?;
    rows.iter()
        .map(|row| Ok((named(row, "id")?, named(row, "epoch")?)))
        .collect()
}

fn reaped(row: &Row) -> Result<Reaped, Fault> {
    Ok(Reaped {
        id: named(row, "id")?,
        machine: named(row, "machine")?,
        step: named(row, "step")?,
        attempt: named(row, "attempt")?,
        is_stuck: named(row, "is_stuck")?,
        last_error: named(row, "last_error")?,
        limit_group: named(row, "limit_group")?,
    })
}
