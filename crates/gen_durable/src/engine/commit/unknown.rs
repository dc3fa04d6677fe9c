//! Resolves unknown commit outcomes: the committer sent a commit and got no reply.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{Try, Wait, Work};
use crate::{
    engine::{core::Core, outcome::answer, results::FinishedStep},
    store::{
        commit::NextInputs,
        connection::Connection,
        fault::Fault,
        resolve::{self, Resolved},
        row::Claim,
    },
};

/// After this many attempts to resolve an unknown commit outcome while another transaction locks
/// the instance's row, the committer sets the step result aside. Together the attempts need about
/// 300 ms.
const HELD_MAX: u32 = 5;

/// Resolves an unknown commit outcome: reads from the instance row of each result whether the
/// result was committed, this worker still has the claim, or the claim is lost. If the worker still
/// has the claim, the committer sends the result a second time. If another transaction keeps the
/// row locked, the committer sets the result aside, so that no other result waits for it.
pub(super) async fn resolve_outcome(
    core: &Arc<Core>,
    connection: &Connection,
    batch: Vec<FinishedStep>,
    held: u32,
    work: &mut Work,
) -> Result<(), Wait> {
    let (fates, inputs) = match resolved(connection, &batch).await {
        Ok(resolved) => resolved,
        Err(fault) => {
            work.push((batch, Try::Ask(held)));
            return Err(Wait::Away(fault.message().to_owned()));
        }
    };
    let (mut known, mut committed, mut open, mut again) =
        (Vec::new(), HashSet::new(), Vec::new(), Vec::new());
    for (ended, fate) in batch.into_iter().zip(fates) {
        match fate {
            // The backend of the lost connection may not have started the commit. If the backend
            // commits after this read, the row looks as if another worker had written it.
            Resolved::Ours => again.push(FinishedStep {
                unsure: true,
                ..ended
            }),
            Resolved::Held => open.push(FinishedStep {
                unsure: true,
                ..ended
            }),
            Resolved::Stale => known.push(ended),
            Resolved::Committed => {
                committed.insert(ended.result.claim);
                // The next step begins only if this worker still has the claim. If the worker has
                // lost the claim, another transaction may have cancelled the instance since the
                // commit.
                if ended.result.is_exclusive()
                    && ended
                        .ahead
                        .as_ref()
                        .is_some_and(|row| !inputs.contains_key(&row.id))
                {
                    core.releases
                        .push(ended.result.claim, ended.result.limit_group.clone());
                }
                let ahead = ended.ahead.filter(|row| inputs.contains_key(&row.id));
                known.push(FinishedStep { ahead, ..ended });
            }
        }
    }
    answer(core, known, |claim| {
        committed
            .contains(claim)
            .then(|| inputs.get(&claim.id).cloned().unwrap_or_default())
    });
    let is_locked = !open.is_empty() && held + 1 < HELD_MAX;
    if is_locked {
        work.push((open, Try::Ask(held + 1)));
    } else {
        open.into_iter().for_each(|ended| core.blocked.push(ended));
    }
    if !again.is_empty() {
        work.push((again, Try::Plain));
    }
    if is_locked { Err(Wait::Locked) } else { Ok(()) }
}

/// Returns the outcome of each commit with an unknown outcome, and the inputs of the next steps of
/// the instances that were committed and run ahead.
async fn resolved(
    connection: &Connection,
    batch: &[FinishedStep],
) -> Result<(Vec<Resolved>, HashMap<i64, NextInputs>), Fault> {
    let claims: Vec<Claim> = batch.iter().map(|ended| ended.result.claim).collect();
    let fates = resolve::resolve(connection, &claims).await?;
    let runs_ahead = |(ended, fate): &(&FinishedStep, &Resolved)| {
        ended.ahead.is_some() && **fate == Resolved::Committed
    };
    let ahead = batch
        .iter()
        .zip(&fates)
        .filter(runs_ahead)
        .map(|(ended, _)| ended.result.claim);
    let inputs = resolve::inputs(connection, &ahead.collect::<Vec<_>>()).await?;
    Ok((fates, inputs))
}
