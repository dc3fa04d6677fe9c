//! What became of commits whose answer was lost.

use std::collections::HashMap;

use super::{
    connection::Connection,
    fault::Fault,
    row::{Claim, column},
    sql,
};

sql!(RESOLVE, "resolve.sql", [INT8_ARRAY]);

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
pub(crate) async fn resolve(connection: &Connection, claims: &[Claim]) -> Result<Vec<Resolved>, Fault> {
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
            Some((Some(epoch), Some(seq))) if (*epoch, *seq) == (claim.epoch, claim.seq) => Resolved::Ours,
            // Only the owner of the claim can have raised step_seq at this epoch, or left it with the next one.
            Some((Some(epoch), Some(seq))) if *seq == claim.seq + 1 && *epoch - claim.epoch <= 1 => Resolved::Committed,
            Some((Some(_), Some(_))) => Resolved::Stale,
            Some(_) => Resolved::Held,
        })
        .collect())
}
