//! Numbers about throughput and backlog, at a known price: what settles, what is enqueued, what
//! waits, and which errors occur. Every query reads a bounded number of rows.

use jiff::Timestamp;

use super::{
    inspect::{self, Inspect},
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(FINISHED, "finished.sql", [TIMESTAMPTZ, INT4]);
sql!(ARRIVED, "arrived.sql", [INT8, INT4]);
sql!(COUNTS, "standing.sql", [INT4]);
sql!(BACKLOG, "backlog.sql", [INT4]);
sql!(ERRORS, "troubles.sql", [INT4]);
sql!(ESTIMATE, "estimate.sql", []);

/// Counts stop at this number.
pub(crate) const COUNTED_MAX: i32 = 10_001;
/// The largest number of settled or newly enqueued instances that one query reads.
const SAMPLED_MAX: i32 = 20_000;
/// The largest number of failed instances that one query reads to group their errors.
const ERRORS_MAX: i32 = 5_000;

/// Instances that settled within one second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finished {
    /// Seconds since 1970.
    pub second: i64,
    /// The machine.
    pub machine: String,
    /// The status in which they settled.
    pub status: Status,
    /// The class of their duration from enqueue to end: 2^(class/4) milliseconds or more.
    pub class: i32,
    /// The number of instances.
    pub count: i64,
}

/// Instances that were enqueued within one second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrived {
    /// Seconds since 1970.
    pub second: i64,
    /// The number of instances.
    pub count: i64,
    /// The largest id among them.
    pub newest: i64,
}

/// A queue and its backlog.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// The name of the queue.
    pub queue: String,
    /// Since when the queue is paused, if it is.
    pub paused_at: Option<Timestamp>,
    /// The operator that paused it.
    pub paused_by: Option<String>,
    /// Instances that are due and wait. Counted up to 10,001 for each priority.
    pub due: i64,
    /// The due time of the oldest of them.
    pub oldest: Option<Timestamp>,
    /// Instances that are due later. Counted up to 10,001 for each priority.
    pub later: i64,
    /// The due time of the next of these.
    pub next: Option<Timestamp>,
    /// Instances that run now.
    pub executing: i64,
    /// Live workers that serve the queue.
    pub workers: i64,
}

/// An error text, and the number of instances that failed with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct FailureGroup {
    pub machine: String,
    pub step: String,
    pub status: Status,
    /// The beginning of the error text.
    pub error: Option<String>,
    pub count: i64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// The newest instance with this error.
    pub newest: i64,
}

/// Statistics that the database keeps, so that nothing is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// The time of the schema's clock.
    pub now: Timestamp,
    /// The approximate number of stored instances.
    pub instances: i64,
    /// Their size on disk, indexes included.
    pub bytes: i64,
    /// Live workers.
    pub workers: i64,
}

impl Inspect {
    /// Returns the instances that settled since this time, grouped by second. It reads the newest
    /// 20,000.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn finished(&self, since: Timestamp) -> Result<Vec<Finished>, Error> {
        self.read("count settled instances", move |connection| async move {
            let rows = connection.query(&FINISHED, &[&since, &SAMPLED_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Finished {
                        second: column(row, 0)?,
                        machine: column(row, 1)?,
                        status: inspect::status(row, 2)?,
                        class: column(row, 3)?,
                        count: column(row, 4)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Returns the instances that were enqueued after this one, grouped by second. It reads the
    /// newest 20,000.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn arrived(&self, after: i64) -> Result<Vec<Arrived>, Error> {
        self.read("count enqueued instances", move |connection| async move {
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

    /// Counts the instances by machine, step and status, at most 10,001 of each status. Instances
    /// that are done are left out.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn standing(&self) -> Result<Vec<inspect::Count>, Error> {
        self.read("count instances by step", |connection| async move {
            let rows = connection.query(&COUNTS, &[&COUNTED_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(inspect::Count {
                        machine: column(row, 0)?,
                        machine_version: column(row, 1)?,
                        step: column(row, 2)?,
                        status: inspect::status(row, 3)?,
                        count: column(row, 4)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Returns the queues that workers serve, that have waiting instances, or that are paused.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, Error> {
        self.read("count the backlog", |connection| async move {
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

    /// Returns the errors of failed and stuck instances, grouped, the latest first.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn troubles(&self) -> Result<Vec<FailureGroup>, Error> {
        self.read("group errors", |connection| async move {
            let rows = connection.query(&ERRORS, &[&ERRORS_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(FailureGroup {
                        machine: column(row, 0)?,
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

    /// Returns the time of the schema's clock, and an estimate of how many instances are stored.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn estimate(&self) -> Result<Estimate, Error> {
        self.read(
            "estimate the number of instances",
            |connection| async move {
                let rows = connection.query(&ESTIMATE, &[]).await?;
                let row = rows.first().ok_or(super::fault::Fault::Refused {
                    code: None,
                    message: "the table of instances is not in the catalog".into(),
                })?;
                Ok(Estimate {
                    now: column(row, 0)?,
                    instances: column(row, 1)?,
                    bytes: column(row, 2)?,
                    workers: column(row, 3)?,
                })
            },
        )
        .await
    }
}
