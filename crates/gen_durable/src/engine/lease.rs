//! The lease: one row a worker, renewed on a thread and a connection of its own, so that neither a blocked runtime nor
//! an exhausted pool can starve it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::core::Core;
use crate::store::{connection::Connection, lease, pick::give_back};

/// After a lost beat, try again this soon: most of a lease is left.
const RETRY: Duration = Duration::from_millis(200);
/// How long a goodbye may take: another transaction may hold a row of ours.
pub(super) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
/// Seconds since a row was claimed, before any.
const ANY_AGE: f64 = -60.0;

/// Say that we live, until the engine has stopped.
pub(crate) async fn run(core: Arc<Core>) {
    let connection = Connection::for_lease(core.target.clone(), core.settings.heartbeat);
    tokio::select! {
        () = renew(&core, &connection) => {}
        () = watch(&core) => {}
    }
}

/// Nothing of this engine runs any more. What the database still thinks ours (a claim whose answer came too late to be
/// handed out) goes back, and the worker goes home: no lease has to run out.
pub(crate) async fn leave(core: &Core) {
    let worker = core.worker.id.clone();
    let goodbye = core.pool.call_for_engine(move |connection| async move {
        let mut held = lease::held(&connection, &worker, ANY_AGE).await?;
        held.extend(lease::led(&connection, &worker).await?);
        let count = if held.is_empty() {
            0
        } else {
            give_back(&connection, &held).await?
        };
        lease::retire(&connection, &worker).await.map(|()| count)
    });
    let why = match tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await {
        Ok(Ok(Ok(0))) => return,
        Ok(Ok(Ok(count))) => {
            tracing::info!(count, "gave back what was claimed too late");
            return;
        }
        Ok(Ok(Err(fault))) => fault.message().to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {GOODBYE_TIMEOUT:?}"),
    };
    tracing::warn!(
        error = why,
        "could not say goodbye: this worker's row stays until the reaper finds it"
    );
}

async fn renew(core: &Core, connection: &Connection) {
    loop {
        let sent = Instant::now();
        let pause = match lease::renew(connection, &core.worker, core.lease_seconds()).await {
            Ok(()) => {
                core.lease.renewed(sent);
                metrics::gauge!("durable_heartbeat_lag_seconds").set(sent.elapsed().as_secs_f64());
                core.settings.heartbeat
            }
            Err(fault) => {
                tracing::warn!(error = fault.message(), left = ?core.lease.left(), "could not renew the lease");
                RETRY.min(core.settings.heartbeat)
            }
        };
        tokio::select! {
            () = core.phase.stopped() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// By the clock, and not by the answer to a renewal: one that hangs must not hide that the lease has run out.
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
        // Somebody else may think us dead by now. What promised exclusion ends; everything else runs on, and its
        // outcome is committed if nobody took it meanwhile.
        tracing::warn!("the lease ran out by our own clock: steps under a key are stopped");
        core.queues.iter().for_each(super::local::LocalQueue::fence);
        core.lease.good().await;
        tracing::info!("the lease is renewed");
    }
}
