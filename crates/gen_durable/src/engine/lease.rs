//! Renews the lease in the worker's row. The loop that renews the lease has a thread and a
//! connection of its own, so that neither a blocked runtime nor an exhausted pool can delay a
//! renewal.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::core::Core;
use crate::{
    error::chain,
    store::{connection::Connection, lease, pick::release_claims},
};

/// Delay before a worker repeats a failed renewal of its lease. Most of the lease time is left
/// then.
const RETRY: Duration = Duration::from_millis(200);
/// How often a worker checks whether it has become full or free since it last wrote its row.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long the deletion of the worker's row may last. The deletion releases claims, and another
/// transaction may have locked an instance that the worker claimed.
pub(super) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum age in seconds of the claims to read. A negative age selects all claims.
const ANY_AGE: f64 = -60.0;

/// Renews the lease until the engine has stopped.
pub(crate) async fn run(core: Arc<Core>) {
    let connection = Connection::for_lease(core.target.clone(), core.settings.heartbeat);
    tokio::select! {
        () = renew(&core, &connection) => {}
        () = watch(&core) => {}
    }
}

/// Deletes the worker's row after all its loops have ended. It first releases the claims that the
/// worker still has in the database (for example because the reply to a pick was lost), so that the
/// instances do not have to wait until the lease expires.
pub(crate) async fn leave(core: &Core) {
    let worker = core.worker.id.clone();
    let goodbye = core.pool.connections.call(move |connection| async move {
        let held = lease::held(&connection, &worker, ANY_AGE).await?;
        let count = if held.is_empty() {
            0
        } else {
            release_claims(&connection, &held).await?
        };
        lease::retire(&connection, &worker).await.map(|()| count)
    });
    let why = match tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await {
        Ok(Ok(Ok(0))) => return,
        Ok(Ok(Ok(count))) => {
            tracing::info!(
                count,
                "released claims that this process did not know of: their answer was lost"
            );
            return;
        }
        Ok(Ok(Err(fault))) => fault.message().to_owned(),
        Ok(Err(error)) => chain(&error),
        Err(_) => format!("no answer within {GOODBYE_TIMEOUT:?}"),
    };
    tracing::warn!(
        error = why,
        "could not remove this worker's row: it stays until the reaper finds it"
    );
}

async fn renew(core: &Core, connection: &Connection) {
    loop {
        let sent = Instant::now();
        let is_draining = core.phase.is_draining();
        let polls = core.fleet.polls(is_draining);
        let lease_seconds = core.lease_seconds();
        let renewal = lease::renew(connection, &core.worker, lease_seconds, polls, is_draining);
        let pause = match renewal.await {
            Ok(()) => {
                core.lease.renewed(sent);
                core.fleet.wrote(polls);
                metrics::gauge!("durable_heartbeat_lag_seconds").set(sent.elapsed().as_secs_f64());
                core.settings.heartbeat
            }
            Err(fault) => {
                tracing::warn!(error = fault.message(), left = ?core.lease.left(), "could not renew the lease");
                RETRY.min(core.settings.heartbeat)
            }
        };
        // Renews early if the worker has become full or free, so that the others poll more or less.
        let next = Instant::now() + pause;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            tokio::select! {
                () = core.phase.stopped() => return,
                () = tokio::time::sleep(left.min(CHECK_EVERY)) => {}
            }
            let polls = core.fleet.polls(core.phase.is_draining());
            if left <= CHECK_EVERY || core.fleet.is_outdated(polls) {
                break;
            }
        }
    }
}

/// Watches the lease by the local clock and not by the replies to renewals, because a renewal that
/// gets no reply must not hide that the lease has expired.
async fn watch(core: &Core) {
    loop {
        core.lease.good().await;
        loop {
            let left = core.lease.left();
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left).await;
        }
        // Another worker's reaper may consider this worker expired by now. This worker stops its
        // steps in lanes and under partition keys, which rely on mutual exclusion. All other steps
        // run to their end, and the committer commits their results if no other worker has claimed
        // the rows since.
        tracing::warn!(
            "the lease has expired by the local clock: steps in lanes and under partition keys are stopped"
        );
        core.queues.iter().for_each(super::local::LocalQueue::fence);
        core.lease.good().await;
        tracing::info!("the lease is valid again");
    }
}
