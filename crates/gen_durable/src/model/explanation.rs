//! Why an instance does not run.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::{instance::Instance, json::id_text, limit::LimitUse};
use crate::{id::Status, names::names};

/// The reasons why an instance does not run. Serializes as one object: fields of the instance
/// without its state, data and result, then `now` and `blockers`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The instance of which the explanation says why it does not run.
    pub instance: Instance,
    /// The time of the schema's clock when the statements of the explanation ran.
    pub now: Timestamp,
    /// The conditions that keep the instance from running, in the order in which the picker applies
    /// them. The first condition is the reason why the instance does not run now. If the list is
    /// empty, the instance is due and the next pick of a worker claims it.
    pub blockers: Vec<Blocker>,
}

impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            #[serde(serialize_with = "id_text::required")]
            id: i64,
            tenant: &'a str,
            machine: &'a str,
            version: i32,
            step: &'a str,
            status: Status,
            queue: &'a str,
            attempt: i32,
            eligible_at: Timestamp,
            inserted_at: Timestamp,
            updated_at: Timestamp,
            last_error: Option<&'a str>,
            now: Timestamp,
            blockers: &'a [Blocker],
        }
        let row = &self.instance;
        Shown {
            id: row.id,
            tenant: &row.tenant,
            machine: &row.machine,
            version: row.version,
            step: &row.step,
            status: row.status,
            queue: &row.queue,
            attempt: row.attempt,
            eligible_at: row.eligible_at,
            inserted_at: row.inserted_at,
            updated_at: row.updated_at,
            last_error: row.last_error.as_deref(),
            now: self.now,
            blockers: &self.blockers,
        }
        .serialize(serializer)
    }
}

/// A condition of the picker, or a status, that keeps an instance from running. Serializes as its
/// fields, with its [`kind`](Blocker::kind) as `kind`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(remote = "Self", untagged)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Blocker {
    /// The instance has settled, and runs again only if an operator retries it. If a step of the
    /// instance still runs, the next entry of the list is `CancelledStepRunning`.
    Settled {
        status: Status,
        error: Option<String>,
    },
    /// A worker runs the instance. `host` and `pid` are `None` if the row of the worker in
    /// `workers` no longer exists. `alive` says whether the worker's lease is valid.
    Executing {
        worker: String,
        host: Option<String>,
        pid: Option<i32>,
        alive: bool,
    },
    /// A caller cancelled the instance while its step ran, and the step has not ended. The instance
    /// keeps its lane or partition key until the step ends, or until the lease of its worker
    /// expires.
    CancelledStepRunning {
        worker: String,
        host: Option<String>,
        pid: Option<i32>,
        alive: bool,
    },
    /// The instance waits for a signal with one of these names. `signals` counts the signals in its
    /// inbox by name; none of these signals ends the wait.
    AwaitingSignal {
        names: Vec<String>,
        since: Timestamp,
        deadline_at: Option<Timestamp>,
        signals: BTreeMap<String, i64>,
    },
    /// The instance waits for children. `children` names the first 10 children that have not
    /// settled.
    AwaitingChildren {
        pending: i32,
        any: bool,
        deadline_at: Option<Timestamp>,
        children: Vec<PendingChild>,
    },
    /// The instance is due and waits for its limits. `limits` has the use of each bound that its
    /// step needs; at least one of them was full when a worker last tried.
    AwaitingLimit {
        since: Timestamp,
        limits: Vec<LimitUse>,
    },
    /// The instance waits in a lane behind `ahead` other instances, counted up to 10,001. The first
    /// of them is the head of the lane; the explanation of the head says why the head has not
    /// settled.
    Queued {
        lane: String,
        ahead: i64,
        head: Box<Explanation>,
    },
    /// The instance has arrived at its lane or under its partition key, and awaits placement: the
    /// next pick of any live worker gives the instance a lane position or makes it wait for the
    /// partition.
    AwaitingPlacement { live_workers: i64 },
    /// The instance waits for its partition, because another instance is the partition holder.
    PartitionWaiting {
        partition: String,
        holder: Box<Explanation>,
    },
    /// The instance failed for good and blocks its lane until an operator retries it, skips it, or
    /// cancels it with `durable lanes discard`. `behind` counts the instances that wait behind it
    /// in the lane, up to 10,001.
    BlocksLane {
        lane: String,
        tenant: String,
        behind: i64,
    },
    /// The instance is stuck: set aside for an operator. Either the build that claimed it could not
    /// decode it (`crashes` is 0), or `crashes` workers crashed while they ran it.
    Stuck { error: Option<String>, crashes: i16 },
    /// No live worker serves the queue of the instance.
    QueueNotWorked { queue: String },
    /// An operator has paused the queue of the instance, so no worker claims its instances.
    QueuePaused {
        queue: String,
        paused_at: Timestamp,
        paused_by: Option<String>,
    },
    /// The instance is not due yet: its due time is in the future.
    NotDue { due_at: Timestamp },
    /// No live worker of the instance's queue registered its machine and machine version.
    MachineNotServed {
        machine: String,
        version: i32,
        queue: String,
    },
    /// Live workers of the instance's queue registered its machine and machine version, but none of
    /// these workers knows its step. No worker with a build that knows the step has started yet, or
    /// none runs any more.
    NoWorkerForStep {
        machine: String,
        version: i32,
        step: String,
        queue: String,
    },
    /// The instance is a suspect: at least two workers crashed while they held its claim. Each
    /// worker runs at most one suspect at a time.
    Suspect { crashes: i16 },
    /// `count` other instances of the queue are due before the explained instance, counted up to
    /// 10,001.
    BehindOthers { count: i64 },
}

/// A child of the explained instance that has not settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct PendingChild {
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
    pub machine: String,
    pub step: String,
    pub status: Status,
}

/// The numbers of unconsumed signals and of children of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Relations {
    /// The signals that no step of the instance has consumed, counted by name. If the instance has
    /// settled, no step has received these signals.
    pub signals: BTreeMap<String, i64>,
    /// The children that the instance has spawned, counted by status.
    pub children: BTreeMap<Status, i64>,
}

/// The kind of a [`Blocker`], without its fields: a stable word for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockerKind {
    /// [`Blocker::Settled`].
    Settled,
    /// [`Blocker::Executing`] by a worker with a valid lease.
    Executing,
    /// [`Blocker::Executing`] by a worker with an expired lease, or by a worker without a row.
    WorkerLost,
    /// [`Blocker::CancelledStepRunning`].
    CancelledStepRunning,
    /// [`Blocker::AwaitingSignal`].
    AwaitingSignal,
    /// [`Blocker::AwaitingChildren`].
    AwaitingChildren,
    /// [`Blocker::AwaitingLimit`].
    AwaitingLimit,
    /// [`Blocker::Queued`].
    Queued,
    /// [`Blocker::AwaitingPlacement`].
    AwaitingPlacement,
    /// [`Blocker::PartitionWaiting`].
    PartitionWaiting,
    /// [`Blocker::BlocksLane`].
    BlocksLane,
    /// [`Blocker::Stuck`].
    Stuck,
    /// [`Blocker::QueueNotWorked`].
    QueueNotWorked,
    /// [`Blocker::QueuePaused`].
    QueuePaused,
    /// [`Blocker::NotDue`].
    NotDue,
    /// [`Blocker::MachineNotServed`].
    MachineNotServed,
    /// [`Blocker::NoWorkerForStep`].
    NoWorkerForStep,
    /// [`Blocker::Suspect`].
    Suspect,
    /// [`Blocker::BehindOthers`].
    BehindOthers,
}

names!(BlockerKind, "kind of blocker", {
    Settled => "settled",
    Executing => "executing",
    WorkerLost => "worker_lost",
    CancelledStepRunning => "cancelled_step_running",
    AwaitingSignal => "awaiting_signal",
    AwaitingChildren => "awaiting_children",
    AwaitingLimit => "awaiting_limit",
    Queued => "queued",
    AwaitingPlacement => "awaiting_placement",
    PartitionWaiting => "partition_waiting",
    BlocksLane => "blocks_lane",
    Stuck => "stuck",
    QueueNotWorked => "queue_not_worked",
    QueuePaused => "queue_paused",
    NotDue => "not_due",
    MachineNotServed => "machine_not_served",
    NoWorkerForStep => "no_worker_for_step",
    Suspect => "suspect",
    BehindOthers => "behind_others",
});

impl Blocker {
    /// Returns the kind of the blocker.
    pub fn kind(&self) -> BlockerKind {
        match self {
            Blocker::Settled { .. } => BlockerKind::Settled,
            Blocker::Executing { alive: true, .. } => BlockerKind::Executing,
            Blocker::Executing { .. } => BlockerKind::WorkerLost,
            Blocker::CancelledStepRunning { .. } => BlockerKind::CancelledStepRunning,
            Blocker::AwaitingSignal { .. } => BlockerKind::AwaitingSignal,
            Blocker::AwaitingChildren { .. } => BlockerKind::AwaitingChildren,
            Blocker::AwaitingLimit { .. } => BlockerKind::AwaitingLimit,
            Blocker::Queued { .. } => BlockerKind::Queued,
            Blocker::AwaitingPlacement { .. } => BlockerKind::AwaitingPlacement,
            Blocker::PartitionWaiting { .. } => BlockerKind::PartitionWaiting,
            Blocker::BlocksLane { .. } => BlockerKind::BlocksLane,
            Blocker::Stuck { .. } => BlockerKind::Stuck,
            Blocker::QueueNotWorked { .. } => BlockerKind::QueueNotWorked,
            Blocker::QueuePaused { .. } => BlockerKind::QueuePaused,
            Blocker::NotDue { .. } => BlockerKind::NotDue,
            Blocker::MachineNotServed { .. } => BlockerKind::MachineNotServed,
            Blocker::NoWorkerForStep { .. } => BlockerKind::NoWorkerForStep,
            Blocker::Suspect { .. } => BlockerKind::Suspect,
            Blocker::BehindOthers { .. } => BlockerKind::BehindOthers,
        }
    }
}

impl Serialize for Blocker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Tagged<'a> {
            kind: BlockerKind,
            #[serde(flatten, serialize_with = "Blocker::serialize")]
            fields: &'a Blocker,
        }
        Tagged {
            kind: self.kind(),
            fields: self,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_blocker_serializes_as_its_kind_and_its_fields() {
        let executing = |alive| Blocker::Executing {
            worker: "w".into(),
            host: None,
            pid: Some(7),
            alive,
        };
        assert_eq!(
            serde_json::to_value([executing(true), executing(false)]).unwrap(),
            json!([
                {"kind": "executing", "worker": "w", "host": null, "pid": 7, "alive": true},
                {"kind": "worker_lost", "worker": "w", "host": null, "pid": 7, "alive": false},
            ])
        );
        let children = Blocker::AwaitingChildren {
            pending: 1,
            any: false,
            deadline_at: None,
            children: vec![PendingChild {
                id: 1 << 60,
                machine: "m".into(),
                step: "s".into(),
                status: Status::Runnable,
            }],
        };
        assert_eq!(
            serde_json::to_value(children).unwrap(),
            json!({
                "kind": "awaiting_children", "pending": 1, "any": false, "deadline_at": null,
                "children": [{"id": "1152921504606846976", "machine": "m", "step": "s", "status": "runnable"}],
            })
        );
    }

    #[test]
    fn each_kind_of_blocker_parses_from_its_name() {
        for kind in BlockerKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json, json!(kind.to_string()));
            assert_eq!(serde_json::from_value::<BlockerKind>(json).unwrap(), kind);
        }
        let unknown = "asleep".parse::<BlockerKind>().unwrap_err();
        assert_eq!(unknown.to_string(), "unknown kind of blocker \"asleep\"");
    }
}
