//! Whether an engine lives, and whether it can work: for a host's probes.

use std::{
    fmt,
    sync::{Arc, OnceLock, PoisonError, atomic::Ordering},
    time::Duration,
};

use super::core::Core;

/// The picker comes round at least this often, whatever happens: waits are bounded by the idle poll.
const PICKER_ROUND: Duration = Duration::from_secs(60);

/// Ask after an engine's health. Cheap to clone; asking costs no statement.
#[derive(Clone)]
pub struct Health {
    core: Arc<OnceLock<Arc<Core>>>,
}

impl Health {
    pub(super) fn new(core: Arc<OnceLock<Arc<Core>>>) -> Health {
        Health { core }
    }

    /// Returns whether the engine's loops turn: false before its start and after its end. A process of which this stays
    /// false should be restarted.
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

    /// Returns whether the engine holds a good lease and claims work. False before its start and while it drains; false as soon
    /// as a pick finds that the database is gone (an idle engine looks every `idle_poll`), or a renewal of the lease is
    /// overdue by half a `heartbeat`.
    pub fn is_ready(&self) -> bool {
        self.core.get().is_some_and(|core| {
            let reaches = !core.unreachable.load(Ordering::Relaxed) && core.renews();
            reaches && !core.phase.is_draining()
        })
    }

    /// The id of this worker's row, once it runs.
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
