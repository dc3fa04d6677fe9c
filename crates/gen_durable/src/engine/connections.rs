//! The two connections that the picker, upkeep, the second committer and the calls of an engine
//! share on one thread. While the worker rests, the connection of the picker carries everything.

use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{commit, core::Core, pick, spawn, upkeep};
use crate::store::{calls::Call, connection::Connection};

/// The connections of the thread of an engine.
pub(crate) struct EngineConnections {
    core: Arc<Core>,
    /// Carries picks, and while the worker rests also everything else.
    pick: Rc<Connection>,
    /// Carries upkeep, the calls of the engine, and half of the commits that free lanes and
    /// partition keys. It is closed while the worker rests.
    side: Rc<Connection>,
}

impl EngineConnections {
    fn new(core: Arc<Core>) -> EngineConnections {
        EngineConnections {
            pick: Rc::new(Connection::for_loop(core.target.clone())),
            side: Rc::new(Connection::for_loop(core.target.clone())),
            core,
        }
    }

    /// Returns the connection for the next statement of upkeep, or the next call of the engine. A
    /// worker that rests has no pick that such a statement could delay for long. A task that has
    /// found work calls [`Core::record_work`] and then this function again, because the work may
    /// take long.
    pub(crate) fn side(&self) -> Rc<Connection> {
        if self.core.rests() {
            self.pick.clone()
        } else {
            self.side.clone()
        }
    }
}

/// Runs the picker, upkeep, the second committer and the calls of the engine until the engine has
/// stopped. Reports the end of the picker, which comes first, by dropping `picking`.
pub(crate) async fn run(
    core: Arc<Core>,
    mut calls: mpsc::UnboundedReceiver<Call>,
    picking: tokio::sync::oneshot::Sender<()>,
) {
    let connections = Rc::new(EngineConnections::new(core.clone()));
    let (pick, side) = (connections.pick.clone(), connections.side.clone());
    let picker = spawn::local({
        let core = core.clone();
        async move {
            let _picking = picking;
            pick::run(core, &pick).await;
        }
    });
    let upkeep = spawn::local(upkeep::run(core.clone(), connections.clone()));
    let committer = spawn::local(commit::run_second(core, side.clone()));
    let closing = async { side.close_when_idle().await };
    let calling = async {
        while let Some(call) = calls.recv().await {
            drop(spawn::local(call(connections.side())));
        }
    };
    // If a loop panics, its receiver resolves, and the engine ends. The other loops then end too.
    let loops = async { tokio::join!(picker, upkeep, committer) };
    tokio::select! {
        _ = loops => {}
        ((), ()) = async { tokio::join!(closing, calling) } => {}
    }
}

/// When a worker last had work: a pick claimed instances, a step result was committed, a timer
/// fired, or upkeep found rows to change.
#[derive(Debug)]
pub(crate) struct Activity {
    created_at: Instant,
    /// In milliseconds since `created_at`.
    worked_ms: AtomicU64,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity {
            created_at: Instant::now(),
            worked_ms: AtomicU64::new(0),
        }
    }
}

impl Activity {
    /// Records that the worker has work now. Returns how long it had none.
    pub(crate) fn record(&self) -> Duration {
        let now = u64::try_from(self.created_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let before = self.worked_ms.swap(now, Ordering::Relaxed);
        Duration::from_millis(now.saturating_sub(before))
    }

    /// Returns for how long the worker has had no work.
    pub(crate) fn idle_for(&self) -> Duration {
        let worked = Duration::from_millis(self.worked_ms.load(Ordering::Relaxed));
        self.created_at.elapsed().saturating_sub(worked)
    }
}
