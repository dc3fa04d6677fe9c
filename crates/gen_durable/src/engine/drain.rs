//! Shuts an engine down: lets running steps end, stops the engine's loops, and deletes the worker's
//! row. The shutdown needs at most `Settings::drain_timeout` plus [`SHUTDOWN_GRACE`].

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{core::Core, lease, rollup, step_tx_commit};
use crate::store::{limit, row::Claim};

/// How long the shutdown of the engine tries to release claims while another transaction has locked
/// an instance row, or while the database cannot be reached.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the statement may last that wakes instances that wait for limits.
const WAKE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the loops of the engine may need to end after the last step, including the last
/// commits.
const LOOPS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a shutdown may take beyond `drain_timeout`: to release claims, to end the loops, and to
/// delete the worker's row.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(5_500);
const _: () = assert!(
    RELEASE_TIMEOUT.as_millis()
        + WAKE_TIMEOUT.as_millis()
        + LOOPS_TIMEOUT.as_millis()
        + lease::GOODBYE_TIMEOUT.as_millis()
        <= SHUTDOWN_GRACE.as_millis()
);
/// How often the shutdown of the engine checks whether this process still holds instances.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// The loops of the engine, for which the shutdown waits.
pub(super) struct Loops {
    pub(super) pick: oneshot::Receiver<()>,
    pub(super) project: JoinHandle<()>,
    /// The loops that end when the engine has stopped: committer, timer loop, upkeep, lease, and
    /// the thread of the failure hook.
    pub(super) others: Vec<oneshot::Receiver<()>>,
}

/// Shuts the engine down: claims no more instances, releases the claims of steps that have not
/// begun, lets running steps end until the deadline, commits their results, releases the remaining
/// claims, and deletes the worker's row. Returns how many claims it released.
pub(super) async fn shut_down(core: &Arc<Core>, loops: Loops) -> usize {
    let Loops {
        pick,
        mut project,
        others,
    } = loops;
    let deadline = Instant::now() + core.settings.drain_timeout;
    core.phase.drain();
    let released = drain(core, pick, deadline).await;
    wake_limits(core).await;
    if timeout_at(deadline, &mut project).await.is_err() {
        project.abort();
    }
    // If a projection batch does not end in time, the shutdown aborts it, and the server rolls back
    // its transaction.
    core.workers.abort();
    core.phase.stop();
    core.blocked.wake();
    core.failures.close();
    let ended = async {
        for ended in others {
            let _ = ended.await;
        }
    };
    // The loops of the engine may use the rest of `drain_timeout` for the last commits.
    if timeout_at(deadline.max(Instant::now()) + LOOPS_TIMEOUT, ended)
        .await
        .is_err()
    {
        tracing::warn!(
            "the engine stops while a statement is unanswered: instances without a committed result run again when the lease expires"
        );
    }
    rollup::stop(core).await;
    lease::leave(core).await;
    released
}

/// Lets the pickers of other workers try the instances that wait for limits in which this worker
/// has ended claims since its last pick. Without this they try them within a second or more.
async fn wake_limits(core: &Core) {
    let freed = core.take_freed_limits();
    if freed.is_empty() {
        return;
    }
    let wake = core
        .calls
        .call(move |connection| async move { limit::wake_freed(&connection, &freed).await });
    if !matches!(timeout(WAKE_TIMEOUT, wake).await, Ok(Ok(Ok(())))) {
        tracing::debug!("could not wake the instances that wait for limits");
    }
}

/// Waits until this process holds no instances. It releases claims of steps that have not begun at
/// once, and claims of running steps at the deadline. Returns how many claims it released.
async fn drain(core: &Arc<Core>, mut pick: oneshot::Receiver<()>, deadline: Instant) -> usize {
    let mut released = 0;
    let mut claiming = true;
    loop {
        let overdue = Instant::now() >= deadline;
        if overdue {
            core.workers.abort();
        }
        released += release_claims(core, overdue).await;
        if overdue {
            return released;
        }
        // A pick or a sweep adds the rows that it claimed to the in-memory queues before it ends.
        // So while a pick or a sweep runs, empty in-memory queues do not show that this process
        // holds no instance.
        let picking = matches!(pick.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let was_claiming =
            std::mem::replace(&mut claiming, picking || core.claiming.try_lock().is_err());
        if !was_claiming && core.queues.iter().all(|queue| queue.is_empty()) {
            return released;
        }
        let _ = timeout(DRAIN_POLL, core.wake.woken()).await;
    }
}

/// Releases the claims of steps that have not begun and, after the deadline of the shutdown, of
/// running steps too. Returns how many claims it tried to release.
async fn release_claims(core: &Arc<Core>, overdue: bool) -> usize {
    let mut claims: Vec<Claim> = Vec::new();
    for queue in &core.queues {
        let closed = queue.close();
        claims.extend(closed.iter().map(|run| run.row.claim()));
        let groups = closed
            .iter()
            .filter_map(|run| run.row.limit_group.as_deref());
        core.free_limits(groups.map(str::to_owned));
        if overdue {
            claims.extend(queue.running());
        }
    }
    if claims.is_empty() {
        return 0;
    }
    let count = claims.len();
    let gone = claims.clone();
    match timeout(
        RELEASE_TIMEOUT,
        step_tx_commit::release_all(core, claims, || false),
    )
    .await
    {
        Ok(_) => {}
        Err(_) => tracing::warn!(
            count,
            "could not release all of {count} claims: they are released when this worker removes its row, or when its lease expires"
        ),
    }
    core.queues
        .iter()
        .for_each(|queue| queue.let_go(gone.iter().copied()));
    count
}
