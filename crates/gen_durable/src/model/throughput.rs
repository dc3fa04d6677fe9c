//! Numbers about throughput and errors: how many instances settle and arrive, which errors occur,
//! and how large the schema is.

use jiff::Timestamp;
use serde::Serialize;

use super::json::id_text;
use crate::id::Status;

/// Instances that settled within one second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SettledCount {
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Arrived {
    /// The second in which callers enqueued the instances, in seconds since 1970.
    pub second: i64,
    /// The number of instances that were enqueued in this second.
    pub count: i64,
    /// The largest id among the instances that were enqueued in this second.
    #[serde(serialize_with = "id_text::required")]
    pub newest_id: i64,
}

/// An error text, and the number of instances that failed with this error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct FailureGroup {
    pub machine: String,
    pub step: String,
    pub status: Status,
    /// The common text of the errors of the group: the beginning of an error without its numbers
    /// and quoted names, as in `order # not found`. `None` if no error was recorded.
    pub fingerprint: Option<String>,
    /// The beginning of the error text of the newest instance.
    pub error: Option<String>,
    pub count: i64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// The id of the newest instance of the group.
    #[serde(serialize_with = "id_text::required")]
    pub newest_id: i64,
}

/// Estimates of the number of instances and of their size, read from the statistics of the database
/// without counting rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
