//! The story of an instance, for people.

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

sql!(STORY, "story.sql", [INT8, INT8, INT8, INT4]);

/// The most lines of one page.
const PAGE_MAX: usize = 1_000;

/// A line of a story: one commit that changed an instance.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StoryLine {
    /// Its place in the story.
    pub mark: StoryMark,
    /// When it was committed.
    pub at: Timestamp,
    /// Where the instance stood.
    pub from: String,
    /// Where it stands since.
    pub to: String,
    /// What a step decided (`next`, `sleep`, `wait`, `spawn`, `retry`, `failure`, `done`, `stop`, `outage`, `stuck`) or what
    /// was done to it (`deadline`, `reap`, `cancel`, `operator_retry`).
    pub outcome: String,
    /// Its status since. `Executing`: the next step began on the same claim.
    pub status: Status,
    /// Failed runs of the step before this one.
    pub attempt: i32,
    /// How long the step ran. `None`: no step did.
    pub took: Option<Duration>,
    /// When what it waited for came.
    pub woken_at: Option<Timestamp>,
    /// And what that was: `signal paid`, `children`, `another build`.
    pub cause: Option<String>,
    /// What went wrong, the first 1,000 characters of it.
    pub error: Option<String>,
    /// The process that ran the step (or died with it), as host/pid.
    pub worker: Option<String>,
}

/// The place of a line: how many commits the instance had, and how many claims. It only ever rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoryMark {
    /// The instance's `step_seq`.
    pub seq: i64,
    /// The instance's `claim_epoch`.
    pub epoch: i64,
}

impl Inspect {
    /// What happened to an instance, the newest first: at most `limit` lines (up to 1,000), all of them before `before`. The
    /// next page begins before the mark of the last line. An instance that is not there has no story.
    pub async fn story(
        &self,
        id: i64,
        before: Option<StoryMark>,
        limit: usize,
    ) -> Result<Vec<StoryLine>, Error> {
        let limit = i32::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(1_000);
        let before = before.unwrap_or(StoryMark {
            seq: i64::MAX,
            epoch: i64::MAX,
        });
        self.read(
            "read the story of an instance",
            move |connection| async move {
                let params: &[super::connection::Param<'_>] =
                    &[&id, &before.seq, &before.epoch, &limit];
                connection
                    .query(&STORY, params)
                    .await?
                    .iter()
                    .map(line)
                    .collect()
            },
        )
        .await
    }
}

fn line(row: &Row) -> Result<StoryLine, Fault> {
    let took: Option<f32> = column(row, 4)?;
    Ok(StoryLine {
        mark: StoryMark {
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
