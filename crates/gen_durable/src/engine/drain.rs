//! The end of an engine: drain, stop, leave. It takes at most `Settings::drain_timeout` and [`SHUTDOWN_GRACE`].

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{core::Core, lease, within};
use crate::store::row::Claim;

/// How long a drain tries to give claims back while another transaction holds a row, or while the database is away.
const GIVE_BACK_PATIENCE: Duration = Duration::from_secs(1);
/// How long the loops may take to end after the drain, with the last commits.
const LOOPS_PATIENCE: Duration = Duration::from_secs(2);
/// How long a shutdown may take beyond `drain_timeout`: to give claims back, to end the loops, and to take the worker's row away.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
const _: () = assert!(
    GIVE_BACK_PATIENCE.as_secs() + LOOPS_PATIENCE.as_secs() + lease::GOODBYE_TIMEOUT.as_secs()
        <= SHUTDOWN_GRACE.as_secs()
);
/// How often a drain looks whether everything has left.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// What a shutdown waits for.
pub(super) struct Loops {
    pub(super) pick: oneshot::Receiver<()>,
    pub(super) project: JoinHandle<()>,
    /// The loops that end when the engine has stopped: commit, clockwork, upkeep, lease, and the failure hook's.
    pub(super) others: Vec<oneshot::Receiver<()>>,
}

/// Claims nothing more, gives back what has not begun, lets running steps end until the deadline, commits, gives back the rest, and takes the
/// worker's row away. Returns how many claims were given back.
pub(super) async fn shut_down(core: &Arc<Core>, loops: Loops) -> usize {
    let Loops {
        pick,
        mut project,
        others,
    } = loops;
    let deadline = Instant::now() + core.settings.drain_timeout;
    core.phase.drain();
    let given_back = drain(core, pick, deadline).await;
    if timeout_at(deadline, &mut project).await.is_err() {
        project.abort();
    }
    // A batch of a projection that would not end: its transaction is rolled back.
    core.workers.abort();
    core.phase.stop();
    core.blocked.ring();
    core.failures.close();
    let ended = async {
        for ended in others {
            let _ = ended.await;
        }
    };
    // What is left of the drain belongs to the last commits as well.
    if timeout_at(deadline.max(Instant::now()) + LOOPS_PATIENCE, ended)
        .await
        .is_err()
    {
        tracing::warn!(
            "the engine stops while a statement is unanswered: what it did not commit returns when the lease runs out"
        );
    }
    lease::leave(core).await;
    given_back
}

/// Waits for what is held to leave. What did not begin is given back at once, and at the deadline also what did.
async fn drain(core: &Arc<Core>, mut pick: oneshot::Receiver<()>, deadline: Instant) -> usize {
    let mut given_back = 0;
    let mut claiming = true;
    loop {
        let overdue = Instant::now() >= deadline;
        if overdue {
            core.workers.abort();
        }
        given_back += give_back(core, overdue).await;
        if overdue {
            return given_back;
        }
        // What a pick or a sweep has claimed is in its queue before either ends.
        let picking = matches!(pick.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let was_claiming =
            std::mem::replace(&mut claiming, picking || core.claiming.try_lock().is_err());
        if !was_claiming && core.queues.iter().all(|queue| queue.is_empty()) {
            return given_back;
        }
        let _ = timeout(DRAIN_LOOK, core.wake.rung()).await;
    }
}

/// Gives back what is ready and has not begun; if the drain is overdue, also what still runs. Returns how many.
async fn give_back(core: &Arc<Core>, overdue: bool) -> usize {
    let mut claims: Vec<Claim> = Vec::new();
    for queue in &core.queues {
        claims.extend(queue.close().iter().map(|run| run.row.claim()));
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
        GIVE_BACK_PATIENCE,
        within::give_back_all(core, claims, || false),
    )
    .await
    {
        Ok(_) => {}
        Err(_) => tracing::warn!(
            count,
            "could not give all of {count} claims back: they return when this worker leaves, or when its lease runs out"
        ),
    }
    core.queues
        .iter()
        .for_each(|queue| queue.let_go(gone.iter().copied()));
    count
}
