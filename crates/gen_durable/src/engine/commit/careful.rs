//! Writes step results although other transactions hold locks: finds the locked rows first, divides
//! batches, and sets aside the results that have to wait.

use std::collections::HashSet;

use super::{Try, Work};
use crate::{
    engine::{core::Core, results::FinishedStep},
    store::{
        commit::{self, Written},
        connection::Connection,
        fault::Fault,
    },
};

/// Writes the step results of a batch that touch no locked instance row. A first statement finds
/// the rows that another transaction has locked, without waiting, and a second one writes the other
/// results. Returns also the ids of the results that it has not written.
///
/// The two statements are two transactions, because other loops send statements on the same
/// connection between them. If another transaction locks a row in the meantime, the second
/// statement fails as `Busy`, and the caller divides the batch.
pub(super) async fn carefully(
    connection: &Connection,
    batch: &[FinishedStep],
    lock_timeout: &'static str,
) -> Result<(Written, HashSet<i64>), Fault> {
    let ids: Vec<i64> = batch.iter().flat_map(touched).collect();
    // The first statement writes nothing, so its outcome is never unknown.
    let held = commit::locked(connection, &ids)
        .await
        .map_err(Fault::before_any_write)?;
    let locked = batch
        .iter()
        .filter(|ended| touched(ended).any(|id| held.contains(&id)));
    let locked: HashSet<i64> = locked.map(|ended| ended.result.claim.id).collect();
    let mut free = batch
        .iter()
        .map(|ended| &ended.result)
        .filter(|result| !locked.contains(&result.claim.id))
        .peekable();
    let written = match free.peek() {
        Some(_) => commit::write(connection, free, None, lock_timeout).await?,
        None => Written::default(),
    };
    Ok((written, locked))
}

/// Returns the ids of the instances with rows that a step result will lock: the instance itself,
/// its parent, and the targets of its signals.
fn touched(ended: &FinishedStep) -> impl Iterator<Item = i64> + '_ {
    let effects = ended.result.effects.as_deref();
    let parent = effects.and_then(|effects| effects.parent);
    let targets = effects
        .into_iter()
        .flat_map(|effects| effects.signals.iter().filter_map(|signal| signal.id));
    std::iter::once(ended.result.claim.id)
        .chain(parent)
        .chain(targets)
}

/// Divides a batch of step results and puts both halves back into `work`. If the batch has only one
/// result, returns that result.
pub(super) fn halve(
    mut batch: Vec<FinishedStep>,
    how: Try,
    work: &mut Work,
) -> Option<FinishedStep> {
    if batch.len() == 1 {
        return batch.pop();
    }
    let later = batch.split_off(batch.len() / 2);
    work.push((later, how));
    work.push((batch, how));
    None
}

/// Sets aside a step result that waits for a lock, together with all other step results that
/// address the same key.
pub(super) fn set_aside(core: &Core, ended: FinishedStep, work: &mut Work) {
    let keys: HashSet<(&str, &str)> = keys(&ended).collect();
    let is_behind = |other: &FinishedStep| self::keys(other).any(|key| keys.contains(&key));
    if !keys.is_empty() {
        for (batch, _) in work
            .iter_mut()
            .filter(|(_, how)| !matches!(how, Try::Ask(_)))
        {
            let (behind, others): (Vec<_>, Vec<_>) =
                std::mem::take(batch).into_iter().partition(is_behind);
            *batch = others;
            behind
                .into_iter()
                .for_each(|ended| core.blocked.push(ended));
        }
    }
    core.blocked.push(ended);
}

/// Returns the keys, with their tenants, of the instances that a step result addresses or inserts.
fn keys(ended: &FinishedStep) -> impl Iterator<Item = (&str, &str)> {
    ended.result.effects.iter().flat_map(|effects| {
        let children = effects.spawn.iter().flat_map(|spawn| &spawn.children);
        let taken = children
            .chain(&effects.new_instances)
            .filter_map(|new| Some((new.tenant.as_str(), new.key.as_deref()?)));
        let addressed = effects
            .signals
            .iter()
            .filter_map(|signal| Some((signal.tenant.as_str(), signal.key.as_deref()?)));
        taken.chain(addressed)
    })
}
