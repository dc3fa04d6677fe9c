//! Runs one step of one instance, from the claimed row to the result for the committer.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::sync::Notify;
use tracing::Instrument;

use super::{core::Core, execute::StepRun, local::HeldInstance, registry::Kind, step_tx_commit};
use crate::{
    failure::Failure,
    id::Status,
    model::history::HistoryOutcome,
    store::{
        lease::{self, Begun},
        row::{Claim, Claimed},
    },
};

/// Delay before the worker tries a second time to record the start of a step, if another
/// transaction has locked the instance's row.
const BEGIN_RETRY: Duration = Duration::from_millis(50);

/// Runs one step of a claimed instance, and adds its result to the committer's in-memory queue.
pub(super) async fn run(
    core: &Arc<Core>,
    queue: usize,
    mut run: HeldInstance,
    fence: Option<Arc<Notify>>,
) {
    let row = run.row.clone();
    let Some(kind) = core
        .registry
        .find(&row.machine, row.machine_version)
        .cloned()
    else {
        // A worker claims only instances of machines that it has registered. If the machine is
        // nevertheless missing, the worker releases the claim, and no work is lost.
        step_tx_commit::release_claim(
            core,
            queue,
            &run,
            "its machine is not registered in this engine",
        )
        .await;
        return;
    };
    // The step is already registered as running, so an expired lease stops it in any case: by this
    // check, or by the notification that stops running steps in lanes and partitions.
    if fence.is_some() && core.lease.left().is_zero() {
        step_tx_commit::release_claim(
            core,
            queue,
            &run,
            "the lease expired before the step began, and the step needs mutual exclusion",
        )
        .await;
        return;
    }
    if row.crash_count > 0 && run.poison.is_none() && !record_begin(core, row.claim()).await {
        step_tx_commit::release_claim(
            core,
            queue,
            &run,
            "the start of the step could not be recorded",
        )
        .await;
        return;
    }
    let machine = kind.name();
    let begun = Instant::now();
    if run.poison.is_none() {
        let ready = begun.saturating_duration_since(run.ready_at);
        run.waited = run.waited.map(|waited| waited + ready);
    }
    let running = decide(core, &kind, &row, run.poison.clone());
    let ran = match fence {
        None => running.await,
        Some(fence) => tokio::select! {
            ran = running => ran,
            () = fence.notified() => {
                step_tx_commit::release_claim(core, queue, &run, "the lease expired, and the step needs mutual exclusion").await;
                return;
            }
        },
    };
    metrics::histogram!("durable_step_seconds", "machine" => machine).record(begun.elapsed());
    let mut ran = ran;
    if ran.result.status == Status::Stuck {
        core.undecodable.add(row.id);
    }
    let tx = ran.within.take();
    if run.poison.is_some() && tx.is_none() {
        run.since = Instant::now();
    }
    let ended = core.ended(run, queue, ran);
    match tx {
        None => core.to_commit(ended),
        Some(tx) => step_tx_commit::commit(core, ended, tx).await,
    }
}

/// Runs the step, or its handler. If the step repeatedly meets an outage while the worker renews
/// its lease, the step counts as failed, and its handler runs.
async fn decide(
    core: &Core,
    kind: &Arc<dyn Kind>,
    row: &Arc<Claimed>,
    known: Option<Failure>,
) -> StepRun {
    let ran = caught(core, kind, row, known).await;
    if ran.outcome != HistoryOutcome::Outage {
        if ran.within.is_none() {
            core.outages.over(row.id);
        }
        return ran;
    }
    let error = ran.result.error.as_deref().unwrap_or_default();
    let Some(failure) = core.outages.met(row, core.lease.renewals(), error) else {
        return ran;
    };
    let message = failure.message.clone();
    let handled = caught(core, kind, row, Some(failure)).await;
    if handled.outcome == HistoryOutcome::Outage {
        let error = handled.result.error.unwrap_or_default();
        return StepRun::failed(
            row,
            &format!("{message}; and its handler met an outage too: {error}"),
        );
    }
    handled
}

/// Catches panics of user code outside the step itself, for example in the `Display` of an error.
/// `execute` catches panics of the step.
async fn caught(
    core: &Core,
    kind: &Arc<dyn Kind>,
    row: &Arc<Claimed>,
    known: Option<Failure>,
) -> StepRun {
    let span = tracing::info_span!("step", machine = kind.name(), step = %row.step, id = row.id, attempt = row.attempt, traceparent = row.traceparent.as_deref());
    let running = kind
        .clone()
        .run(row.clone(), known, core.environment.clone())
        .instrument(span);
    let ran = AssertUnwindSafe(running).catch_unwind().await;
    ran.unwrap_or_else(|_| StepRun::failed(row, "the step panicked while its values were dropped"))
}

/// Records that a step begins, for a row that a crashed worker held before. If this worker crashes
/// too, the crash counts only for steps that had begun. Returns false if the claim is lost or the
/// database cannot be reached.
async fn record_begin(core: &Core, claim: Claim) -> bool {
    loop {
        let recorded = core
            .calls
            .call(move |connection| async move { lease::begin_step(&connection, claim).await });
        match recorded.await {
            Ok(Ok(Begun::Recorded)) => return true,
            Ok(Ok(Begun::Locked)) if !core.phase.is_stopped() => {
                tokio::time::sleep(BEGIN_RETRY).await
            }
            _ => return false,
        }
    }
}
