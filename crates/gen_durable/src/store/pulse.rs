//! How it goes, in numbers whose price is known: what settles, what comes in, what waits where, what fails with which error.
//! Every one of these looks at so many rows and no more.

use jiff::Timestamp;

use super::{
    inspect::{self, Inspect},
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(FINISHED, "finished.sql", [TIMESTAMPTZ, INT4]);
sql!(ARRIVED, "arrived.sql", [INT8, INT4]);
sql!(STANDING, "standing.sql", [INT4]);
sql!(BACKLOG, "backlog.sql", [INT4]);
sql!(TROUBLES, "troubles.sql", [INT4]);
sql!(ESTIMATE, "estimate.sql", []);

/// Counts go this far.
pub(crate) const COUNTED_MAX: i32 = 10_001;
/// So many settled or arrived instances are looked at in one go.
const SAMPLED_MAX: i32 = 20_000;
/// So many failed instances are read for their errors.
const TROUBLES_MAX: i32 = 5_000;

/// Instances that settled within one second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finished {
    /// Seconds since 1970.
    pub second: i64,
    /// The machine.
    pub fsm: String,
    /// How they ended.
    pub status: Status,
    /// How long they took from the enqueue to the end: from 2^(class/4) milliseconds on.
    pub class: i32,
    /// How many.
    pub count: i64,
}

/// Instances that were enqueued within one second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrived {
    /// Seconds since 1970.
    pub second: i64,
    /// How many.
    pub count: i64,
    /// The newest of them.
    pub newest: i64,
}

/// A queue, and what waits in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// Its name.
    pub queue: String,
    /// Since when nothing is claimed from it, if it is paused.
    pub paused_at: Option<Timestamp>,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// Due and waiting: of each priority counted up to 10,001.
    pub due: i64,
    /// Since when the first of them is due.
    pub oldest: Option<Timestamp>,
    /// Due later: of each priority counted up to 10,001.
    pub later: i64,
    /// When the next of those is due.
    pub next: Option<Timestamp>,
    /// Running now.
    pub executing: i64,
    /// Live processes that work it.
    pub workers: i64,
}

/// An error, and how many have failed with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Trouble {
    pub fsm: String,
    pub step: String,
    pub status: Status,
    /// The beginning of its text.
    pub error: Option<String>,
    pub count: i64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// The newest instance that has it.
    pub newest: i64,
}

/// What the database itself knows, without counting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// The schema's time.
    pub now: Timestamp,
    /// About so many instances are kept.
    pub instances: i64,
    /// So much room they take, indexes included.
    pub bytes: i64,
    /// Live processes that run steps.
    pub workers: i64,
}

impl Inspect {
    /// What settled since then: the newest 20,000 of it.
    pub async fn finished(&self, since: Timestamp) -> Result<Vec<Finished>, Error> {
        self.read("read what settled", move |connection| async move {
            let rows = connection.query(&FINISHED, &[&since, &SAMPLED_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Finished {
                        second: column(row, 0)?,
                        fsm: column(row, 1)?,
                        status: inspect::status(row, 2)?,
                        class: column(row, 3)?,
                        count: column(row, 4)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// What was enqueued after this instance: the newest 20,000 of it.
    pub async fn arrived(&self, after: i64) -> Result<Vec<Arrived>, Error> {
        self.read("read what came in", move |connection| async move {
            let rows = connection.query(&ARRIVED, &[&after, &SAMPLED_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Arrived {
                        second: column(row, 0)?,
                        count: column(row, 1)?,
                        newest: column(row, 2)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// How many stand where, of each status 10,001 at most. What is done is left out.
    pub async fn standing(&self) -> Result<Vec<inspect::Count>, Error> {
        self.read("count what stands where", |connection| async move {
            let rows = connection.query(&STANDING, &[&COUNTED_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(inspect::Count {
                        fsm: column(row, 0)?,
                        fsm_version: column(row, 1)?,
                        step: column(row, 2)?,
                        status: inspect::status(row, 3)?,
                        count: column(row, 4)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// The queues that are worked, hold work or are paused.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, Error> {
        self.read("count what waits", |connection| async move {
            let rows = connection.query(&BACKLOG, &[&COUNTED_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Backlog {
                        queue: column(row, 0)?,
                        paused_at: column(row, 1)?,
                        paused_by: column(row, 2)?,
                        due: column(row, 3)?,
                        oldest: column(row, 4)?,
                        later: column(row, 5)?,
                        next: column(row, 6)?,
                        executing: column(row, 7)?,
                        workers: column(row, 8)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Errors of what has failed or is stuck, the latest first.
    pub async fn troubles(&self) -> Result<Vec<Trouble>, Error> {
        self.read("group errors", |connection| async move {
            let rows = connection.query(&TROUBLES, &[&TROUBLES_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Trouble {
                        fsm: column(row, 0)?,
                        step: column(row, 1)?,
                        status: inspect::status(row, 2)?,
                        error: column(row, 3)?,
                        count: column(row, 4)?,
                        first_at: column(row, 5)?,
                        last_at: column(row, 6)?,
                        newest: column(row, 7)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// The schema's time, and about how much it keeps.
    pub async fn estimate(&self) -> Result<Estimate, Error> {
        self.read("estimate how much there is", |connection| async move {
            let rows = connection.query(&ESTIMATE, &[]).await?;
            let row = rows.first().ok_or(super::fault::Fault::Refused {
                code: None,
                message: "the catalogue does not know the table of instances".into(),
            })?;
            Ok(Estimate {
                now: column(row, 0)?,
                instances: column(row, 1)?,
                bytes: column(row, 2)?,
                workers: column(row, 3)?,
            })
        })
        .await
    }
}
