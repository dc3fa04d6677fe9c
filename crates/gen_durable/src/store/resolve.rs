//! What became of commits whose answer was lost.

use std::collections::HashMap;

use super::{
    connection::Connection,
    fault::Fault,
    row::{Claim, column},
    settle::Found,
    sql,
};

sql!(RESOLVE, "resolve.sql", [INT8_ARRAY]);
sql!(INPUTS, "inputs.sql", [INT8_ARRAY, INT8_ARRAY, INT8_ARRAY]);

/// What became of a claim whose commit was sent and never answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// It was committed.
    Committed,
    /// It was not, and the claim is still ours: send it again.
    Ours,
    /// It was not, and the row has another owner (or is gone).
    Stale,
    /// Somebody holds the row, perhaps the very backend that we lost: ask again.
    Held,
}

/// Ask what became of commits whose answer was lost. It waits for nobody: a row that is locked is answered as `Held`.
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
            // Only the owner of the claim can have raised step_seq at this epoch, or left it with the next one.
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

/// Reads what the next steps of these claims see, after their commits were found to have happened. A claim that was lost in the
/// meantime is left out.
///
/// A statement of its own, after [`resolve`]: the snapshot of that one may be older than the commit that it waited for, and would
/// show signals that the commit consumed.
pub(crate) async fn inputs(
    connection: &Connection,
    claims: &[Claim],
) -> Result<HashMap<i64, Found>, Fault> {
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
                Found {
                    inbox: column(row, 1)?,
                    children: column(row, 2)?,
                },
            ))
        })
        .collect()
}
