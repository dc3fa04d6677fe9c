//! Finds the outcome of commits of step results after the replies to the commits were lost.

use std::collections::HashMap;

use super::{
    commit::{NextInputs, next_inputs},
    connection::Connection,
    fault::Fault,
    row::{Claim, named},
    sql,
};

sql!(RESOLVE, "resolve.sql", [INT8_ARRAY]);
sql!(INPUTS, "inputs.sql", [INT8_ARRAY, INT8_ARRAY, INT8_ARRAY]);

/// The outcome of a commit of a step result that the worker sent and got no reply to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// The commit of the step result has happened.
    Committed,
    /// The commit of the step result has not happened, and this worker still has the claim, so the
    /// worker sends the commit again.
    Ours,
    /// This worker no longer has the claim, or the instance's row is deleted. The row no longer
    /// shows whether the commit happened.
    Stale,
    /// Another transaction has locked the instance's row, possibly the transaction of the lost
    /// connection, so the worker asks again later.
    Held,
}

/// Finds the outcome of commits of step results that got no reply. The statement waits for no lock,
/// and the function returns `Held` for a locked row.
pub(crate) async fn resolve(
    connection: &Connection,
    claims: &[Claim],
) -> Result<Vec<Resolved>, Fault> {
    let ids: Vec<i64> = claims.iter().map(|claim| claim.id).collect();
    let rows = connection.query(&RESOLVE, &[&ids]).await?;
    let found = rows
        .iter()
        .map(|row| {
            let claim = (named(row, "claim_epoch")?, named(row, "step_seq")?);
            Ok((named(row, "id")?, claim))
        })
        .collect::<Result<HashMap<i64, (Option<i64>, Option<i64>)>, Fault>>()?;
    Ok(claims
        .iter()
        .map(|claim| match found.get(&claim.id) {
            None => Resolved::Stale,
            Some((Some(epoch), Some(seq))) if (*epoch, *seq) == (claim.epoch, claim.seq) => {
                Resolved::Ours
            }
            // Only the worker that has the claim can have incremented `step_seq` at this
            // `claim_epoch`. A commit that ends the claim increments `claim_epoch` by one.
            Some((Some(epoch), Some(seq)))
                if *seq == claim.seq + 1 && *epoch - claim.epoch <= 1 =>
            {
                Resolved::Committed
            }
            Some((Some(_), Some(_))) => Resolved::Stale,
            Some(_) => Resolved::Held,
        })
        .collect())
}

/// Reads the inputs of the next steps of these claims, after [`resolve`] found that their commits
/// have happened. Leaves out a claim that this worker has lost since then.
///
/// The inputs need a statement of their own, after [`resolve`]. The statement of `resolve` reads
/// the newest version of each row that it locks, but its snapshot may be older than the commit that
/// it finds there, and would show signals that the commit has consumed.
pub(crate) async fn inputs(
    connection: &Connection,
    claims: &[Claim],
) -> Result<HashMap<i64, NextInputs>, Fault> {
    if claims.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<i64> = claims.iter().map(|claim| claim.id).collect();
    let epochs: Vec<i64> = claims.iter().map(|claim| claim.epoch).collect();
    let seqs: Vec<i64> = claims.iter().map(|claim| claim.seq).collect();
    let rows = connection.query(&INPUTS, &[&ids, &epochs, &seqs]).await?;
    next_inputs(&rows)
}
