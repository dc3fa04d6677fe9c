//! The lease: one row a worker, renewed on a thread and a connection of its own, so that neither a blocked runtime nor
//! an exhausted pool can starve it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::core::Core;
use crate::store::{connection::Connection, lease};

/// After a lost beat, try again this soon: most of a lease is left.
const RETRY: Duration = Duration::from_millis(200);

/// Say that we live, until the engine has stopped; then go home.
pub(crate) async fn run(core: Arc<Core>) {
    let connection = Connection::new(core.target.clone());
    connection.set_deadline(core.settings.heartbeat);
    tokio::select! {
        () = renew(&core, &connection) => {}
        () = watch(&core) => {}
    }
    if let Err(fault) = lease::retire(&connection, &core.worker.id).await {
        tracing::warn!(
            error = fault.message(),
            "could not say goodbye: this worker's row stays until the reaper finds it"
        );
    }
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
