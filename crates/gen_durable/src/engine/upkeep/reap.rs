//! The reaper of upkeep: takes claims from expired workers, and releases claims of this worker that
//! no task of it runs.

use std::sync::Arc;

use crate::{
    engine::{connections::EngineConnections, core::Core, failures::InstanceFailure},
    id::Status,
    store::{connection::Connection, fault::Fault, lease, pick::release_claims},
};

/// Maximum number of instances of an expired worker that the reaper processes in one statement.
const REAP_BATCH: i32 = 500;

/// Makes the instances of expired workers runnable. The reaper does nothing for the time of one
/// lease after this process lost contact with the database, because every worker must have had the
/// chance to renew its lease.
pub(super) async fn reap(core: &Arc<Core>, connections: &EngineConnections) -> Result<(), Fault> {
    let connection = &connections.side();
    // Only a loss of the lease connection counts as a loss of contact, because the engine closes
    // other connections after a slow statement too.
    let lost_contact = || !core.renews() || core.target.lost_contact_within(core.settings.lease);
    if lost_contact() {
        return Ok(());
    }
    for worker in lease::grant_missing_leases(connection, core.lease_seconds()).await? {
        tracing::warn!(
            worker,
            "worker {worker} holds claims but has no lease row; granting it one lease period"
        );
    }
    let expired = lease::expired(connection, core.lease_seconds(), &core.worker.id).await?;
    // The query for expired workers may have been sent before an outage and answered after it, so
    // the reaper checks a second time whether this process has lost contact with the database.
    if lost_contact() {
        return Ok(());
    }
    let mut refused = Ok(());
    for worker in expired {
        // The claims of an expired worker may be many.
        core.record_work();
        match reap_one(core, &connections.side(), &worker).await {
            // An error for one expired worker must not keep the reaper from the instances of other
            // expired workers.
            Err(fault @ (Fault::Refused { .. } | Fault::Busy(_))) => refused = Err(fault),
            outcome => outcome?,
        }
    }
    refused
}

async fn reap_one(core: &Core, connection: &Connection, worker: &str) -> Result<(), Fault> {
    let crashes_max = i16::try_from(core.settings.crashes_max).unwrap_or(i16::MAX);
    loop {
        let reaped = lease::reap(connection, worker, REAP_BATCH, crashes_max).await?;
        let count = reaped.len();
        metrics::counter!("durable_reaped_total").increment(count.try_into().unwrap_or_default());
        if count > 0 {
            tracing::warn!(
                worker,
                count,
                "reaped {count} rows of expired worker {worker}"
            );
            core.free_limits(reaped.iter().filter_map(|row| row.limit_group.clone()));
            core.wake.wake();
        }
        for row in reaped.into_iter().filter(|row| row.is_stuck) {
            core.failures.report(InstanceFailure {
                machine: row.machine,
                id: row.id,
                step: row.step,
                attempt: u32::try_from(row.attempt).unwrap_or_default(),
                error: row.last_error.unwrap_or_default(),
                status: Status::Stuck,
            });
        }
        if count < usize::try_from(REAP_BATCH).unwrap_or_default() {
            break;
        }
    }
    while lease::release_expired(connection, worker, REAP_BATCH).await? > 0 {
        core.wake.wake();
    }
    lease::delete_expired_worker(connection, worker).await
}

/// Releases claimed instances that have waited too long for a worker task. The picker claims as
/// many instances as the recent rate of steps can start soon. If steps suddenly last longer, those
/// instances would wait in this process while other processes are idle.
pub(super) async fn release_overdue(
    core: &Arc<Core>,
    connection: &Connection,
) -> Result<(), Fault> {
    for queue in &core.queues {
        let overdue = queue.overdue();
        if overdue.is_empty() {
            continue;
        }
        let claims: Vec<_> = overdue.iter().map(|run| run.row.claim()).collect();
        // This process forgets the overdue instances in any case. If the release fails,
        // `release_lost_claims` finds their claims later.
        queue.let_go(claims.iter().copied());
        overdue
            .iter()
            .for_each(|run| core.release_suspect(&run.row));
        release_claims(connection, &claims).await?;
        tracing::debug!(
            count = claims.len(),
            "released claims of rows that could not begin in time"
        );
    }
    Ok(())
}

/// Releases the rows that a pick of this worker claimed, or a commit as successors, if the reply to
/// the statement was lost. This process does not know that it holds these rows, and its lease keeps
/// all other workers from them.
pub(super) async fn release_lost_claims(
    core: &Arc<Core>,
    connection: &Connection,
) -> Result<(), Fault> {
    let held = lease::held(
        connection,
        &core.worker.id,
        core.settings.orphan_after().as_secs_f64(),
    )
    .await?;
    let lost: Vec<_> = held
        .into_iter()
        .filter(|claim| !core.holds(claim))
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    let count = release_claims(connection, &lost).await?;
    tracing::warn!(
        count,
        "released {count} rows that a pick or a commit had claimed: its answer was lost"
    );
    core.wake.wake();
    Ok(())
}
