//! Reads the history of an instance, for people.

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{named, parsed},
    sql,
};
use crate::model::{
    history::{HistoryCursor, HistoryEntry, HistoryOutcome},
    json::seconds,
    page_size,
};

sql!(HISTORY, "history.sql", [INT8, INT8, INT8, INT4]);

/// The largest number of history entries on one page.
const PAGE_MAX: usize = 1_000;

/// Returns at most `limit` entries of the history of an instance, the newest first, all of them
/// before `before`.
pub(crate) async fn page(
    connection: &Connection,
    id: i64,
    before: Option<HistoryCursor>,
    limit: usize,
) -> Result<Vec<HistoryEntry>, Fault> {
    let limit = page_size(limit, PAGE_MAX);
    let before = before.unwrap_or(HistoryCursor {
        step_seq: i64::MAX,
        claim_epoch: i64::MAX,
    });
    let params: &[Param<'_>] = &[&id, &before.step_seq, &before.claim_epoch, &limit];
    let rows = connection.query(&HISTORY, params).await?;
    rows.iter().map(entry).collect()
}

fn entry(row: &Row) -> Result<HistoryEntry, Fault> {
    let took: Option<f32> = named(row, "took_seconds")?;
    Ok(HistoryEntry {
        cursor: HistoryCursor {
            step_seq: named(row, "step_seq")?,
            claim_epoch: named(row, "claim_epoch")?,
        },
        at: named(row, "at")?,
        woken_at: named(row, "woken_at")?,
        took: took.map(|took| seconds::duration(took.into())),
        attempt: named(row, "attempt")?,
        status: parsed(row, "status")?,
        outcome: HistoryOutcome::read(named(row, "outcome")?),
        from: named(row, "from_step")?,
        to: named(row, "to_step")?,
        error: named(row, "error")?,
        cause: named(row, "cause")?,
        worker: named(row, "worker")?,
    })
}
