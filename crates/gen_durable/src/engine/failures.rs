//! Instances that failed for good or were set aside: each is logged, and told to the host's failure hook.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use crate::{
    id::Status,
    store::{row::Claimed, settle::Ending},
};

/// How many failures may wait for the hook: what comes while so many wait is dropped.
const NOTICES_MAX: usize = 1_000;

/// The host's hook.
pub(super) type Hook = Arc<dyn Fn(&InstanceFailure) + Send + Sync>;

/// An instance that failed for good, or that was set aside as stuck.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InstanceFailure {
    /// The machine or job, as its row names it.
    pub machine: String,
    /// The instance.
    pub id: i64,
    /// The step that failed.
    pub step: String,
    /// How many runs of this step had failed before.
    pub attempt: u32,
    /// What went wrong.
    pub error: String,
    /// `Failed`, or `Stuck`: a build could not decode it, the database refused to claim it, or too many workers died while it ran.
    pub status: Status,
}

/// Where failures are reported.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// To the hook's thread, while there is one. Guarded for a moment.
    hook: Mutex<Option<SyncSender<InstanceFailure>>>,
}

impl Failures {
    /// Returns what the hook's thread reads from.
    pub(super) fn open(&self) -> Receiver<InstanceFailure> {
        let (sender, receiver) = sync_channel(NOTICES_MAX);
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Tells nothing more: the hook's thread ends when it has told what waits.
    pub(super) fn close(&self) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A step's result was committed: reports it if the instance failed for good or was set aside.
    pub(super) fn settled(&self, row: &Claimed, ending: &Ending) {
        if matches!(ending.status, Status::Failed | Status::Stuck) {
            self.tell(InstanceFailure {
                machine: row.fsm.clone(),
                id: row.id,
                step: row.step.clone(),
                attempt: row.attempt,
                error: ending.error.clone().unwrap_or_default(),
                status: ending.status,
            });
        }
    }

    /// Logs a failure and hands it to the hook's thread, without waiting.
    pub(super) fn tell(&self, failure: InstanceFailure) {
        let InstanceFailure {
            machine,
            id,
            step,
            attempt,
            error,
            status,
        } = &failure;
        let what = if *status == Status::Stuck {
            "was set aside as stuck"
        } else {
            "failed for good"
        };
        tracing::warn!(
            machine,
            id,
            step,
            attempt,
            error,
            "instance {id} of {machine} {what} at step {step}: {error}"
        );
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = hook.as_ref()
            && sender.try_send(failure).is_err()
        {
            metrics::counter!("durable_failure_notices_dropped_total").increment(1);
        }
    }
}

/// Calls the hook for one failure after the other, until there will be none any more.
pub(super) async fn run(hook: Hook, failures: Receiver<InstanceFailure>) {
    for failure in failures {
        if std::panic::catch_unwind(AssertUnwindSafe(|| hook(&failure))).is_err() {
            tracing::warn!(
                machine = failure.machine,
                id = failure.id,
                "the failure hook panicked"
            );
        }
    }
}
