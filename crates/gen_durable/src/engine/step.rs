//! One step of one instance, from the row to what is handed to the committer.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::sync::Notify;
use tracing::Instrument;

use super::{core::Core, execute::Decision, local::Run, registry::Kind, within};
use crate::{
    error::Failure,
    id::Status,
    store::{
        lease::{self, Begun},
        row::{Claim, Claimed},
    },
};

/// How long a step waits before it looks again at a row that another transaction holds and that must record its beginning.
const BEGIN_RETRY: Duration = Duration::from_millis(50);

/// Runs one step of a claimed row.
pub(super) async fn run(core: &Arc<Core>, queue: usize, mut run: Run, fence: Option<Arc<Notify>>) {
    let row = run.row.clone();
    let Some(kind) = core.registry.find(&row.fsm, row.fsm_version).cloned() else {
        // It was claimed by its name, so this cannot be; if it is, nothing is lost.
        within::give_up_claim(core, queue, &run, "claimed and not registered").await;
        return;
    };
    // It is in the books already: either we see here that the lease has run out, or the fence finds it there.
    if fence.is_some() && core.lease.left().is_zero() {
        within::give_up_claim(
            core,
            queue,
            &run,
            "our lease ran out before it began, and it promised exclusion",
        )
        .await;
        return;
    }
    if row.crash_count > 0 && run.poison.is_none() && !record_begin(core, row.claim()).await {
        within::give_up_claim(core, queue, &run, "its beginning could not be recorded").await;
        return;
    }
    let machine = kind.name();
    let begun = Instant::now();
    let running = decide(core, &kind, &row, run.poison.clone());
    let decision = match fence {
        None => running.await,
        Some(fence) => tokio::select! {
            decision = running => decision,
            () = fence.notified() => {
                within::give_up_claim(core, queue, &run, "our lease ran out, and it promised exclusion").await;
                return;
            }
        },
    };
    metrics::histogram!("durable_step_seconds", "machine" => machine).record(begun.elapsed());
    let mut decision = decision;
    if decision.status == Status::Stuck {
        core.undecodable.add(row.id);
    }
    let tx = decision.within.take();
    if run.poison.is_some() && tx.is_none() {
        run.since = Instant::now();
    }
    let ended = core.ended(run, queue, decision);
    match tx {
        None => core.to_commit(ended),
        Some(tx) => within::conclude(core, ended, tx).await,
    }
}

/// Runs the step, or its handler. One that meets an outage again and again while the lease is renewed has failed: its handler runs.
async fn decide(
    core: &Core,
    kind: &Arc<dyn Kind>,
    row: &Arc<Claimed>,
    known: Option<Failure>,
) -> Decision {
    let decision = caught(core, kind, row, known).await;
    if decision.outcome != "outage" {
        if decision.within.is_none() {
            core.outages.over(row.id);
        }
        return decision;
    }
    let error = decision.error.as_deref().unwrap_or_default();
    let Some(failure) = core.outages.met(row, core.lease.renewals(), error) else {
        return decision;
    };
    let message = failure.message.clone();
    let handled = caught(core, kind, row, Some(failure)).await;
    if handled.outcome == "outage" {
        let error = handled.error.unwrap_or_default();
        return Decision::failed(&format!("{message}; and its handler met one too: {error}"));
    }
    handled
}

/// What a step does is caught where it runs. This is for the rest that is the user's: how an error is shown, say.
async fn caught(
    core: &Core,
    kind: &Arc<dyn Kind>,
    row: &Arc<Claimed>,
    known: Option<Failure>,
) -> Decision {
    let span = tracing::info_span!("step", machine = kind.name(), step = %row.step, id = row.id, attempt = row.attempt, traceparent = row.traceparent.as_deref());
    let running = kind
        .clone()
        .run(row.clone(), known, core.environment.clone())
        .instrument(span);
    let ran = AssertUnwindSafe(running).catch_unwind().await;
    ran.unwrap_or_else(|_| Decision::failed("the step panicked while it was being cleared away"))
}

/// Records that a step begins that a worker has died with before: if this worker dies too, only rows that had begun are blamed.
/// Returns false if the claim is lost or the database is away.
async fn record_begin(core: &Core, claim: Claim) -> bool {
    loop {
        let recorded = core
            .pool
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
