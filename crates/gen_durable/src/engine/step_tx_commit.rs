//! Commits a step's own transaction, which contains the step's writes and the step result. The
//! functions that release claims are in this module too.

use std::{sync::Arc, time::Duration};

use super::{
    commit::refused, core::Core, local::HeldInstance, outcome::answer, results::FinishedStep,
    work::staff,
};
use crate::{
    error::chain,
    store::{
        commit::NextInputs,
        fault::Fault,
        pick::release_claims,
        resolve::{self, Resolved},
        row::Claim,
    },
    transaction::StepTx,
};

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Writes the step result into the step's transaction and commits the transaction. If the claim is
/// lost, rolls the transaction back.
pub(crate) async fn commit(core: &Arc<Core>, ended: FinishedStep, tx: StepTx) {
    core.lease.good().await;
    let claim = ended.result.claim;
    match tx.write_and_commit(&core.target, &ended.result).await {
        Ok(committed) => {
            core.outages.over(claim.id);
            answer(core, vec![ended], |_| committed.clone());
        }
        // The step's own statements share this transaction, so the step's handler receives the
        // refused commit as a failure.
        Err(fault @ Fault::Refused { .. }) => refused(core, ended, &fault),
        Err(Fault::Busy(why) | Fault::Away(why) | Fault::TimedOut(why)) => {
            give_up(
                core,
                ended,
                &format!("the step's transaction could not be committed: {why}"),
            )
            .await;
        }
        Err(Fault::Lost(_)) => {
            metrics::counter!("durable_commits_resolved_total").increment(1);
            match resolve(core, claim).await {
                Some((Resolved::Committed, found)) => {
                    // The next step begins only if this worker still has the claim.
                    let ahead = ended.ahead.filter(|_| found.is_some());
                    answer(core, vec![FinishedStep { ahead, ..ended }], |_| {
                        Some(found.clone().unwrap_or_default())
                    });
                }
                Some((Resolved::Stale, _)) => answer(core, vec![ended], |_| None),
                Some((Resolved::Ours, _)) => {
                    give_up(
                        core,
                        ended,
                        "the connection of the step's transaction was lost before the commit",
                    )
                    .await;
                }
                Some((Resolved::Held, _)) | None => {}
            }
        }
    }
}

/// Resolves an unknown commit outcome: reads the row of the instance as soon as the row is not
/// locked. The backend of the lost connection may still be working and hold the lock. Returns also
/// the inputs of the next step, if the result was committed and this worker still has the claim.
async fn resolve(core: &Arc<Core>, claim: Claim) -> Option<(Resolved, Option<NextInputs>)> {
    let mut pause = RETRY_FIRST;
    loop {
        let asked = core.calls.call(move |connection| async move {
            let fate = resolve::resolve(&connection, &[claim])
                .await?
                .pop()
                .unwrap_or(Resolved::Stale);
            let committed = if fate == Resolved::Committed {
                vec![claim]
            } else {
                Vec::new()
            };
            Ok::<_, Fault>((
                fate,
                resolve::inputs(&connection, &committed)
                    .await?
                    .remove(&claim.id),
            ))
        });
        match asked.await {
            Ok(Ok((fate, found))) if fate != Resolved::Held => return Some((fate, found)),
            _ if core.phase.is_stopped() => return None,
            _ => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// Handles a step's transaction that could not commit because of an outage or a lock: releases the
/// claim. If outages repeat while the worker renews its lease, they count as a failure of the step.
async fn give_up(core: &Arc<Core>, ended: FinishedStep, why: &str) {
    let FinishedStep { mut run, queue, .. } = ended;
    match core.outages.met(&run.row, core.lease.renewals(), why) {
        Some(failure) => {
            run.poison = Some(failure);
            staff(core, queue, vec![run]);
        }
        None => release_claim(core, queue, &run, why).await,
    }
}

/// Releases a claim without a step result. The release counts no attempt, because an outage is not
/// a failure of the step.
pub(crate) async fn release_claim(core: &Arc<Core>, queue: usize, run: &HeldInstance, why: &str) {
    let claim = run.row.claim();
    tracing::info!(instance.id = claim.id, "releasing a claim: {why}");
    release_all(core, vec![claim], || core.phase.is_stopped()).await;
    core.release_suspect(&run.row);
    if let Some(local) = core.queue(queue) {
        local.let_go([claim]);
    }
    core.wake.wake();
}

/// Releases claims until this worker has none of them, or until `ends` returns true. Skips an
/// instance row that another transaction has locked, and retries it. Returns how many claims are
/// left.
pub(crate) async fn release_all(
    core: &Arc<Core>,
    mut claims: Vec<Claim>,
    ends: impl Fn() -> bool,
) -> usize {
    let mut pause = RETRY_FIRST;
    loop {
        let asked = claims.clone();
        let tried = core.calls.call(move |connection| async move {
            let released = release_claims(&connection, &asked).await?;
            if released >= asked.len() {
                return Ok(Vec::new());
            }
            // If a claim was not released, another worker has claimed the instance row since,
            // or another transaction has locked the row.
            let fates = resolve::resolve(&connection, &asked).await?;
            let ours = |fate: &Resolved| matches!(fate, Resolved::Ours | Resolved::Held);
            Ok(asked
                .into_iter()
                .zip(fates)
                .filter(|(_, fate)| ours(fate))
                .map(|(claim, _)| claim)
                .collect())
        });
        match tried.await {
            Ok(Ok(left)) => claims = left,
            Ok(Err(fault)) => {
                let fault: Fault = fault;
                tracing::warn!(error = fault.message(), "could not release claims");
            }
            Err(error) => tracing::warn!(error = chain(&error), "could not release claims"),
        }
        if claims.is_empty() || ends() {
            return claims.len();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}
