//! A step's own transaction: what the step wrote and what it decided are one commit. And claims that are given up.

use std::{sync::Arc, time::Duration};

use super::{commit, core::Core, endings::Ended, local::Run};
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
        Ok(committed) => commit::answer(core, vec![ended], |_| committed.clone()),
        // Whatever was refused, the step's own statements share its transaction: its handler should know.
        Err(Fault::Refused { message, .. }) => commit::poisoned(core, ended, &message),
        Err(Fault::Busy(why) | Fault::Away(why)) => {
            give_up_claim(core, ended.queue, &ended.run, &format!("its transaction could not be committed: {why}"))
                .await;
        }
        Err(Fault::Lost(_)) => match resolve(core, claim).await {
            Some(Resolved::Committed) => commit::answer(core, vec![ended], |_| Some(Found::default())),
            Some(Resolved::Stale) => commit::answer(core, vec![ended], |_| None),
            Some(Resolved::Ours) => {
                give_up_claim(core, ended.queue, &ended.run, "its transaction was lost with its connection").await;
            }
            Some(Resolved::Held) | None => {}
        },
    }
}

/// The commit was sent and never answered: look, as soon as nobody holds the row (the lost backend may still be at it).
async fn resolve(core: &Arc<Core>, claim: Claim) -> Option<Resolved> {
    let mut pause = RETRY_FIRST;
    loop {
        let asked =
            core.pool.call(move |connection| async move { resolve::resolve(&connection, &[claim]).await }).await;
        match asked {
            Ok(Ok(fates)) if !matches!(fates.first(), Some(Resolved::Held)) => return fates.into_iter().next(),
            _ if core.phase.is_stopped() => return None,
            _ => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(RETRY_MAX);
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
pub(crate) async fn give_back_all(core: &Arc<Core>, mut claims: Vec<Claim>, ends: impl Fn() -> bool) -> usize {
    let mut pause = RETRY_FIRST;
    loop {
        let asked = claims.clone();
        let tried = core.pool.call(move |connection| async move {
            let given = give_back(&connection, &asked).await?;
            if given >= asked.len() {
                return Ok(Vec::new());
            }
            // The rest went to somebody else, or was locked.
            let fates = resolve::resolve(&connection, &asked).await?;
            let ours = |fate: &Resolved| matches!(fate, Resolved::Ours | Resolved::Held);
            Ok(asked.into_iter().zip(fates).filter(|(_, fate)| ours(fate)).map(|(claim, _)| claim).collect())
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
