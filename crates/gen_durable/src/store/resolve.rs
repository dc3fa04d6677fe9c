//! Finds the outcome of commits after their replies were lost.

use std::collections::HashMap;

use super::{
    connection::Connection,
    fault::Fault,
    row::{Claim, column},
    step_results::NextInputs,
    sql,
};

sql!(RESOLVE, "resolve.sql", [INT8_ARRAY]);
sql!(INPUTS, "inputs.sql", [INT8_ARRAY, INT8_ARRAY, INT8_ARRAY]);

/// The outcome of a commit that was sent and got no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// The commit has happened.
    Committed,
    /// The commit has not happened, and this worker still has the claim: send it again.
    Ours,
    /// This worker no longer has the claim, or the row is gone. The row has changed since in
    /// another way, so it does not show whether the commit happened.
    Stale,
    /// Another transaction holds the row, possibly that of the lost connection itself: ask again
    /// later.
    Held,
}

/// Finds the outcome of commits that got no reply. It waits for no lock: a locked row is returned
/// as `Held`.
pub(crate) async fn resolve(
    connection: &Connection,
    claims: &[Claim],
) -> Result<Vec<Resolved>, Fault> {
    let ids: Vec<i64> = claims.iter().map(|claim| claim.id).collect();
    let rows = connection.query(&RESOLVE, &[&ids]).await?;
    let found = rows
        .iter()
        .map(|row| Ok((column(row, 0)?, (column(row, 1)?, column(row, 2)?))))
        .collect::<Result<HashMap<i64, (Option<i64>, Option<i64>)>, Fault>>()?;
    Ok(claims
        .iter()
        .map(|claim| match found.get(&claim.id) {
            None => Resolved::Stale,
            Some((Some(epoch), Some(seq))) if (*epoch, *seq) == (claim.epoch, claim.seq) => {
                Resolved::Ours
            }
            // Only the worker that has the claim can have raised step_seq at this epoch. A commit
            // that ends the claim raises the epoch by one.
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

/// Reads the inputs of the next steps of these claims, after their commits were found to have
/// happened. A claim that was lost in the meantime is left out.
///
/// This is a statement of its own, after [`resolve`]: that statement reads the newest version of
/// each row that it locks, but its snapshot may be older than the commit that it finds there, and
/// would show signals that the commit has consumed.
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
    rows.iter()
        .map(|row| {
            Ok((
                column(row, 0)?,
                NextInputs {
                    inbox: column(row, 1)?,
                    children: column(row, 2)?,
                },
            ))
        })
        .collect()
}
