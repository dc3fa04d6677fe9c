//! A step's own transaction: what the step wrote and what it decided are one commit. And claims that are given up.

use std::{sync::Arc, time::Duration};

use super::{answer::answer, commit, core::Core, endings::Ended, local::Run, staff};
use crate::store::{
    fault::Fault,
    pick::give_back,
    resolve::{self, Resolved},
    row::Claim,
    settle::Found,
    step_tx::StepTx,
};

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Write the ending into the step's transaction and commit it. If the claim is lost, nothing of it happens.
pub(crate) async fn conclude(core: &Arc<Core>, ended: Ended, tx: StepTx) {
    core.lease.good().await;
    let claim = ended.ending.claim;
    match tx.conclude(&core.target, &ended.ending).await {
        Ok(committed) => {
            core.outages.over(claim.id);
            answer(core, vec![ended], |_| committed.clone());
        }
        // Whatever was refused, the step's own statements share its transaction: its handler should know.
        Err(fault @ Fault::Refused { .. }) => commit::poisoned(core, ended, &fault),
        Err(Fault::Busy(why) | Fault::Away(why) | Fault::TimedOut(why)) => {
            give_up(
                core,
                ended,
                &format!("its transaction could not be committed: {why}"),
            )
            .await;
        }
        Err(Fault::Lost(_)) => {
            metrics::counter!("durable_commits_resolved_total").increment(1);
            match resolve(core, claim).await {
                Some((Resolved::Committed, found)) => {
                    // The next step begins only if the claim is still ours.
                    let ahead = ended.ahead.filter(|_| found.is_some());
                    answer(core, vec![Ended { ahead, ..ended }], |_| {
                        Some(found.clone().unwrap_or_default())
                    });
                }
                Some((Resolved::Stale, _)) => answer(core, vec![ended], |_| None),
                Some((Resolved::Ours, _)) => {
                    give_up(core, ended, "its transaction was lost with its connection").await;
                }
                Some((Resolved::Held, _)) | None => {}
            }
        }
    }
}

/// The commit was sent and never answered: asks what became of it as soon as the row is not locked (the lost backend may still be at
/// it), and what the next step sees if it was committed and the claim is still ours.
async fn resolve(core: &Arc<Core>, claim: Claim) -> Option<(Resolved, Option<Found>)> {
    let mut pause = RETRY_FIRST;
    loop {
        let asked = core.pool.call_for_engine(move |connection| async move {
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

/// The step's transaction was not committed, and the database says neither that it was refused. An outage gives the claim back; if
/// it happens again and again while the lease is renewed, it is the step's failure.
async fn give_up(core: &Arc<Core>, ended: Ended, why: &str) {
    let Ended { mut run, queue, .. } = ended;
    match core.outages.met(&run.row, core.lease.renewals(), why) {
        Some(failure) => {
            run.poison = Some(failure);
            staff(core, queue, vec![run]);
        }
        None => give_up_claim(core, queue, &run, why).await,
    }
}

/// Put a claim back as it was: an outage is not the step's failure, so no attempt is burned.
pub(crate) async fn give_up_claim(core: &Arc<Core>, queue: usize, run: &Run, why: &str) {
    let claim = run.row.claim();
    tracing::info!(instance.id = claim.id, "giving a claim back: {why}");
    give_back_all(core, vec![claim], || core.phase.is_stopped()).await;
    core.let_go_of_suspect(&run.row);
    if let Some(local) = core.queue(queue) {
        local.let_go([claim]);
    }
    core.wake.ring();
}

/// Give claims back until none is ours any more, or patience ends. A row that somebody holds is skipped, and tried again.
/// Answers how many are left.
pub(crate) async fn give_back_all(
    core: &Arc<Core>,
    mut claims: Vec<Claim>,
    ends: impl Fn() -> bool,
) -> usize {
    let mut pause = RETRY_FIRST;
    loop {
        let asked = claims.clone();
        let tried = core.pool.call_for_engine(move |connection| async move {
            let given = give_back(&connection, &asked).await?;
            if given >= asked.len() {
                return Ok(Vec::new());
            }
            // The rest went to somebody else, or was locked.
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
                tracing::warn!(error = fault.message(), "could not give claims back");
            }
            Err(error) => tracing::warn!(%error, "could not give claims back"),
        }
        if claims.is_empty() || ends() {
            return claims.len();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}
