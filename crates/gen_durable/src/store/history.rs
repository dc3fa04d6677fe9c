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

/// The largest number of history entries on one page.
const PAGE_MAX: usize = 1_000;

/// An entry of an instance's history: one commit that changed the instance.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The position of the entry in the history of its instance.
    pub mark: HistoryCursor,
    /// When the commit changed the instance.
    pub at: Timestamp,
    /// The step of the instance before the commit of this history entry.
    pub from: String,
    /// The step of the instance after the commit of this history entry.
    pub to: String,
    /// The kind of the entry: a step result (`next`, `sleep`, `wait`, `spawn`, `retry`, `failure`,
    /// `done`, `stop`, `outage`, `stuck`), or an act from outside (`deadline`, `reap`, `cancel`,
    /// `operator_retry`).
    pub outcome: String,
    /// The status of the instance after the commit. `Executing`: the worker ran ahead, so it began
    /// the next step of the instance on the same claim.
    pub status: Status,
    /// The number of attempts of the step before the attempt of this history entry.
    pub attempt: i32,
    /// How long the step ran. `None`: the entry records an act from outside and not a step.
    pub took: Option<Duration>,
    /// When the wait or the stuck status that this entry began has ended, if the entry began one.
    pub woken_at: Option<Timestamp>,
    /// The reason why the wait or the stuck status of the instance ended: `signal paid`,
    /// `children`, `another build`.
    pub cause: Option<String>,
    /// The first 1,000 characters of the step's error.
    pub error: Option<String>,
    /// The worker that ran the step, or that crashed while it ran the step, as `host/pid`.
    pub worker: Option<String>,
}

/// The position of an entry in the history of an instance: the number of commits and the number of
/// claims that the instance had. A later entry has a larger position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryCursor {
    /// The `step_seq` of the instance after the commit of the history entry.
    pub seq: i64,
    /// The `claim_epoch` of the instance after the commit of the history entry.
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
