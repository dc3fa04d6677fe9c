//! Reads numbers about throughput and backlog: how many instances settle, arrive and wait, and
//! which errors occur. Every query reads a bounded number of rows.

use jiff::Timestamp;

use super::{
    inspect::{self, Inspect},
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(FINISHED, "finished.sql", [TIMESTAMPTZ, INT4]);
sql!(ARRIVED, "arrived.sql", [INT8, INT4]);
sql!(COUNTS, "status_counts.sql", [INT4]);
sql!(BACKLOG, "backlog.sql", [INT4]);
sql!(ERRORS, "failure_groups.sql", [INT4]);
sql!(ESTIMATE, "estimate.sql", []);

/// The largest number to which the queries of this module count instances.
pub(crate) const COUNTED_MAX: i32 = 10_001;
/// The largest number of settled or newly enqueued instances that one query reads.
const SAMPLED_MAX: i32 = 20_000;
/// The largest number of failed instances that one query reads to group their errors.
const ERRORS_MAX: i32 = 5_000;

/// Instances that settled within one second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finished {
    /// The second in which the instances settled, in seconds since 1970.
    pub second: i64,
    /// The name of the machine of the instances that settled.
    pub machine: String,
    /// The status in which the instances settled.
    pub status: Status,
    /// The class of the time from the enqueue of the instances until they settled: at least
    /// 2^(class/4) milliseconds.
    pub class: i32,
    /// The number of instances of this machine, status and class that settled in this second.
    pub count: i64,
}

/// Instances that callers enqueued within one second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrived {
    /// The second in which callers enqueued the instances, in seconds since 1970.
    pub second: i64,
    /// The number of instances that were enqueued in this second.
    pub count: i64,
    /// The largest id among the instances that were enqueued in this second.
    pub newest: i64,
}

/// A queue of instances and its backlog.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// The name of the queue of instances.
    pub queue: String,
    /// Since when the queue is paused. `None`: the queue is not paused.
    pub paused_at: Option<Timestamp>,
    /// The operator that paused the queue.
    pub paused_by: Option<String>,
    /// The number of instances of the queue that are due and wait for a worker, counted up to
    /// 10,001 for each priority.
    pub due: i64,
    /// The earliest due time among the instances of the queue that are due.
    pub oldest: Option<Timestamp>,
    /// The number of instances of the queue that become due later, counted up to 10,001 for each
    /// priority.
    pub later: i64,
    /// The earliest due time among the instances of the queue that become due later.
    pub next: Option<Timestamp>,
    /// The number of instances of the queue that workers run now.
    pub executing: i64,
    /// The number of live workers that serve the queue.
    pub workers: i64,
}

/// An error text, and the number of instances that failed with this error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct FailureGroup {
    pub machine: String,
    pub step: String,
    pub status: Status,
    /// The beginning of the error text of these instances.
    pub error: Option<String>,
    pub count: i64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// The id of the newest instance with this error.
    pub newest: i64,
}

/// Estimates of the number of instances and of their size, read from the statistics of the database
/// without counting rows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// The current time of the schema's clock.
    pub now: Timestamp,
    /// The approximate number of instances in the database.
    pub instances: i64,
    /// The size of the table `instances` on disk, including its indexes.
    pub bytes: i64,
    /// The number of workers with a valid lease.
    pub workers: i64,
}

impl Inspect {
    /// Counts the instances that settled since this time, grouped by second. The query reads at
    /// most the newest 20,000 instances.
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

    /// Counts the instances that were enqueued after the instance with the id `after`, grouped by
    /// second. The query reads at most the newest 20,000 instances.
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

    /// Counts the instances by machine, step and status, at most 10,001 of each status. Leaves out
    /// instances with the status `done`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn status_counts(&self) -> Result<Vec<inspect::Count>, Error> {
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

    /// Returns the queues that workers serve, the queues with waiting instances, and the paused
    /// queues, each with its backlog.
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
    pub async fn failure_groups(&self) -> Result<Vec<FailureGroup>, Error> {
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

    /// Returns the time of the schema's clock, and an estimate of the number of instances in the
    /// database.
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
