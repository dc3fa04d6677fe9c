//! Reports to the health probes of a host whether an engine is alive and whether it can work.

use std::{
    fmt,
    sync::{Arc, OnceLock, PoisonError, atomic::Ordering},
    time::Duration,
};

use super::core::Core;

/// The picker completes a round at least this often, because each of its waits is at most as long
/// as the interval of its idle poll.
const PICKER_ROUND: Duration = Duration::from_secs(60);

/// Reports an engine's health. The handle is cheap to clone, and its methods send no statement.
#[derive(Clone)]
pub struct Health {
    core: Arc<OnceLock<Arc<Core>>>,
}

impl Health {
    pub(super) fn new(core: Arc<OnceLock<Arc<Core>>>) -> Health {
        Health { core }
    }

    /// Returns whether the engine's loops are running: false before its start and after its end.
    /// Restart the process if this stays false.
    pub fn is_live(&self) -> bool {
        self.core.get().is_some_and(|core| {
            let picked_at = *core
                .picked_at
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let turns = core.phase.is_draining()
                || picked_at.elapsed() < PICKER_ROUND + core.settings.lease;
            turns && !core.phase.is_stopped()
        })
    }

    /// Returns whether the engine has a valid lease and claims instances. Returns false before the
    /// engine has started and during its shutdown. Returns false as soon as a pick finds the
    /// database unreachable (an idle engine polls every `idle_poll`), or a renewal of the lease is
    /// overdue by half a `heartbeat`.
    pub fn is_ready(&self) -> bool {
        self.core.get().is_some_and(|core| {
            let reaches = !core.unreachable.load(Ordering::Relaxed) && core.renews();
            reaches && !core.phase.is_draining()
        })
    }

    /// Returns the id of this worker's row, once the engine runs.
    pub fn worker_id(&self) -> Option<String> {
        self.core.get().map(|core| core.worker.id.clone())
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("live", &self.is_live())
            .field("ready", &self.is_ready())
            .finish()
    }
}
