//! Queues of instances, and the workers that serve them.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::json::{seconds, serialize_with_methods};

/// A queue of instances: its pause, its backlog, and the instances that wait in lanes or for
/// partitions. `paused` is a further key when it serializes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct QueueInfo {
    /// The name of the queue.
    pub name: String,
    /// Since when the queue is paused. `None`: the queue is not paused.
    pub paused_at: Option<Timestamp>,
    /// The operator that paused the queue.
    pub paused_by: Option<String>,
    /// The number of instances of the queue that are due and wait for a worker, counted up to
    /// 10,001.
    pub due: i64,
    /// The earliest due time among the instances of the queue that are due.
    pub oldest_due_at: Option<Timestamp>,
    /// The number of instances of the queue that become due later, counted up to 10,001 for each
    /// priority.
    pub scheduled: i64,
    /// The earliest due time among the instances of the queue that become due later.
    pub next_due_at: Option<Timestamp>,
    /// The number of instances of the queue that workers run now.
    pub executing: i64,
    /// The number of live workers that serve the queue.
    pub workers: i64,
    /// The number of instances of this queue that wait in a lane behind its head. The query counts
    /// only the first 10,001 such instances of all queues together.
    pub queued: i64,
    /// The number of instances of this queue that wait for their partition. The query counts only
    /// the first 10,001 such instances of all queues together.
    pub partition_waiting: i64,
    /// How long upkeep keeps done instances of this queue, if an engine has declared it. `None`:
    /// the settings of the engine that deletes them apply. `Duration::MAX`: without limit. It
    /// serializes as a number of seconds, or as `"infinity"`.
    #[serde(rename = "retention_seconds", serialize_with = "kept")]
    pub retention: Option<Duration>,
    /// As `retention`, for failed and cancelled instances.
    #[serde(rename = "failed_retention_seconds", serialize_with = "kept")]
    pub failed_retention: Option<Duration>,
    /// Whether the tenants of the queue share its workers.
    pub is_fair: bool,
    /// The shares of tenants other than 1, if the queue is fair or was.
    pub tenant_shares: BTreeMap<String, u32>,
}

fn kept<S: Serializer>(kept: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match kept {
        Some(Duration::MAX) => serializer.serialize_str("infinity"),
        kept => seconds::optional(kept, serializer),
    }
}

serialize_with_methods!(QueueInfo, { paused: bool = is_paused });

impl QueueInfo {
    /// Returns whether the queue is paused.
    pub fn is_paused(&self) -> bool {
        self.paused_at.is_some()
    }
}

/// A worker: a process with an engine that runs steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct WorkerInfo {
    pub id: String,
    pub host: String,
    pub pid: i32,
    pub queues: Vec<String>,
    pub machines: Vec<String>,
    /// The steps that the worker knows, as `machine/version/step`. An entry `machine/version`
    /// stands for every step of that version.
    pub steps: Vec<String>,
    /// The schedules that the worker can fire.
    pub schedules: Vec<String>,
    /// The projections for which the worker can execute runs.
    pub projections: Vec<String>,
    pub started_at: Timestamp,
    /// When the worker last renewed its lease.
    pub renewed_at: Timestamp,
    /// When the worker last found an instance to run, to about a second while its group has work.
    pub found_work_at: Timestamp,
    pub lease_expires_at: Timestamp,
    /// Whether the lease of the worker is valid.
    pub alive: bool,
    /// Whether the worker looks for instances: it has room for one, and is not draining.
    pub polls: bool,
    /// Whether the worker stops: it claims no more instances.
    pub draining: bool,
    /// The version of gen_durable in the build of the worker; empty if the build does not say it.
    pub version: String,
    /// The largest number of connections that the worker opens; 0 if its build does not say it.
    pub connections_max: i32,
}

/// A group of instances that have not settled and that no live worker can run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct NoWorkerFor {
    pub machine: String,
    pub version: i32,
    /// The step of these instances that no live worker knows. `None`: no live worker registered the
    /// machine and its version.
    pub step: Option<String>,
    pub count: i64,
}

/// A queue of instances and its backlog: a part of the fields of [`QueueInfo`], which one bounded
/// statement counts. `paused` is a further key when it serializes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct Backlog {
    /// The name of the queue.
    pub name: String,
    /// Since when the queue is paused. `None`: the queue is not paused.
    pub paused_at: Option<Timestamp>,
    /// The operator that paused the queue.
    pub paused_by: Option<String>,
    /// The number of instances of the queue that are due and wait for a worker, counted up to
    /// 10,001 for each priority. Suspects are not counted.
    pub due: i64,
    /// The earliest due time among the instances of the queue that are due.
    pub oldest_due_at: Option<Timestamp>,
    /// The number of instances of the queue that become due later, counted up to 10,001 for each
    /// priority.
    pub scheduled: i64,
    /// The earliest due time among the instances of the queue that become due later.
    pub next_due_at: Option<Timestamp>,
    /// The number of instances of the queue that workers run now.
    pub executing: i64,
    /// The number of live workers that serve the queue.
    pub workers: i64,
    /// Whether the tenants of the queue share its workers.
    pub is_fair: bool,
}

serialize_with_methods!(Backlog, { paused: bool = is_paused });

impl Backlog {
    /// Returns whether the queue is paused.
    pub fn is_paused(&self) -> bool {
        self.paused_at.is_some()
    }
}
