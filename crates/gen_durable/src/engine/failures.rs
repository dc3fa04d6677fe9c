//! Reports instances that failed for good or were set aside as stuck, to `tracing` and to the
//! host's failure hook.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use crate::{id::Status, model::step_result::StepResult, store::row::Claimed};

/// How many failures of instances may wait for the failure hook. The engine drops further failures.
const NOTICES_MAX: usize = 1_000;

/// The host's failure hook, which the engine calls for each instance that failed or is stuck.
pub(super) type Hook = Arc<dyn Fn(&InstanceFailure) + Send + Sync>;

/// An instance that failed for good, or that was set aside as stuck.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InstanceFailure {
    /// The name of the machine or job, as stored in the row.
    pub machine: String,
    /// The id of the instance.
    pub id: i64,
    /// The step that failed.
    pub step: String,
    /// The number of earlier runs of this step that did not complete it: they failed, asked for a
    /// retry, or their worker crashed.
    pub attempt: u32,
    /// The error message of the failure.
    pub error: String,
    /// `Failed`, or `Stuck`: a build could not decode the instance, the database refused to claim
    /// it, or too many workers crashed while they ran it.
    pub status: Status,
}

/// Sends failures of instances to `tracing` and to the thread of the failure hook.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// The channel to the thread of the failure hook, while that thread runs. No code holds the
    /// mutex for long.
    hook: Mutex<Option<SyncSender<InstanceFailure>>>,
}

impl Failures {
    /// Opens the channel to the thread of the failure hook, and returns the receiver for that
    /// thread.
    pub(super) fn open(&self) -> Receiver<InstanceFailure> {
        let (sender, receiver) = sync_channel(NOTICES_MAX);
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Closes the channel to the thread of the failure hook. The thread ends after it has processed
    /// the failures that wait in the channel.
    pub(super) fn close(&self) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Reports a committed step result if the instance failed for good or was set aside as stuck.
    pub(super) fn settled(&self, row: &Claimed, result: &StepResult) {
        if matches!(result.status, Status::Failed | Status::Stuck) {
            self.report(InstanceFailure {
                machine: row.machine.clone(),
                id: row.id,
                step: row.step.clone(),
                attempt: row.attempt,
                error: result.error.clone().unwrap_or_default(),
                status: result.status,
            });
        }
    }

    /// Logs the failure of an instance and sends it to the thread of the failure hook, without
    /// waiting.
    pub(super) fn report(&self, failure: InstanceFailure) {
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

/// Calls the failure hook for one failure after the other, until the channel of failures is closed.
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
