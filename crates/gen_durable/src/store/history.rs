//! Reads the history of an instance, for people.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    fault::Fault,
    inspect::{Inspect, status},
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(HISTORY, "history.sql", [INT8, INT8, INT8, INT4]);

/// The largest number of entries on one page.
const PAGE_MAX: usize = 1_000;

/// An entry of the history: one commit that changed the instance.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The position of the entry in the history.
    pub mark: HistoryCursor,
    /// When the change was committed.
    pub at: Timestamp,
    /// The step of the instance before the commit.
    pub from: String,
    /// The step of the instance after the commit.
    pub to: String,
    /// The decision of a step (`next`, `sleep`, `wait`, `spawn`, `retry`, `failure`, `done`,
    /// `stop`, `outage`, `stuck`), or an action on the instance (`deadline`, `reap`, `cancel`,
    /// `operator_retry`).
    pub outcome: String,
    /// The status of the instance after the commit. `Executing`: the worker ran ahead, so it began
    /// the next step on the same claim.
    pub status: Status,
    /// The number of earlier attempts of this step.
    pub attempt: i32,
    /// How long the step ran. `None`: the entry is not from a step.
    pub took: Option<Duration>,
    /// When the instance was woken, if this entry made it wait or set it aside as stuck.
    pub woken_at: Option<Timestamp>,
    /// The reason why the instance was woken: `signal paid`, `children`, `another build`.
    pub cause: Option<String>,
    /// The first 1,000 characters of the error.
    pub error: Option<String>,
    /// The worker that ran the step, or that crashed while it ran the step, as `host/pid`.
    pub worker: Option<String>,
}

/// The position of an entry in the history of an instance: the number of commits and the number of
/// claims that the instance had. A later entry has a larger position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryCursor {
    /// The instance's `step_seq`.
    pub seq: i64,
    /// The instance's `claim_epoch`.
    pub epoch: i64,
}

impl Inspect {
    /// Returns the history of an instance, the newest entry first: at most `limit` entries (up to
    /// 1,000), all of them before `before`. For the next page, pass the mark of the last entry. The
    /// history of an instance that does not exist is empty.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn history(
        &self,
        id: i64,
        before: Option<HistoryCursor>,
        limit: usize,
    ) -> Result<Vec<HistoryEntry>, Error> {
        let limit = i32::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(1_000);
        let before = before.unwrap_or(HistoryCursor {
            seq: i64::MAX,
            epoch: i64::MAX,
        });
        self.read(
            "read the history of an instance",
            move |connection| async move {
                let params: &[super::connection::Param<'_>] =
                    &[&id, &before.seq, &before.epoch, &limit];
                connection
                    .query(&HISTORY, params)
                    .await?
                    .iter()
                    .map(entry)
                    .collect()
            },
        )
        .await
    }
}

fn entry(row: &Row) -> Result<HistoryEntry, Fault> {
    let took: Option<f32> = column(row, 4)?;
    Ok(HistoryEntry {
        mark: HistoryCursor {
            seq: column(row, 0)?,
            epoch: column(row, 1)?,
        },
        at: column(row, 2)?,
        woken_at: column(row, 3)?,
        took: took.map(|seconds| Duration::try_from_secs_f32(seconds).unwrap_or_default()),
        attempt: column(row, 5)?,
        status: status(row, 6)?,
        outcome: column(row, 7)?,
        from: column(row, 8)?,
        to: column(row, 9)?,
        error: column(row, 10)?,
        cause: column(row, 11)?,
        worker: column(row, 12)?,
    })
}
