//! Bulk actions: requests of operators to change all instances that meet some conditions.

use jiff::Timestamp;
use serde::Serialize;

use super::json::{id_text, serialize_with_methods};
use crate::{
    id::Status,
    model::instance::{Search, SearchHit},
    names::names,
};

/// The action of a bulk action on each matching instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BulkKind {
    /// Runs failed, stuck or cancelled instances again.
    Retry,
    /// Cancels instances that have not settled.
    Cancel,
    /// Gives up failed or stuck instances: they become cancelled. A lane that such an instance
    /// blocks continues with the next instance.
    Discard,
}

names!(BulkKind, "kind of a bulk action", {
    Retry => "retry",
    Cancel => "cancel",
    Discard => "discard",
});

impl BulkKind {
    /// Returns whether this action can change instances in this status.
    pub fn applies_to(self, status: Status) -> bool {
        match self {
            BulkKind::Retry => {
                matches!(status, Status::Failed | Status::Stuck | Status::Cancelled)
            }
            BulkKind::Cancel => !status.is_settled(),
            BulkKind::Discard => matches!(status, Status::Failed | Status::Stuck),
        }
    }
}

/// The state of a bulk action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BulkState {
    /// Some instances have not been examined yet. A runner executes the bulk action, or the next
    /// runner will.
    Running,
    /// All instances have been examined.
    Done,
    /// An operator has stopped the bulk action. Instances that it has changed stay changed.
    Stopped,
    /// The database refused a page of the bulk action. Instances that it has changed stay changed.
    Failed,
}

names!(BulkState, "state of a bulk action", {
    Running => "running",
    Done => "done",
    Stopped => "stopped",
    Failed => "failed",
});

/// The conditions of a bulk action. An instance matches if it meets all conditions that are set, at
/// the time when the bulk action reaches it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct BulkConditions {
    pub status: Status,
    pub machine: Option<String>,
    /// The version of the machine, as the row of the instance has it.
    pub version: Option<i32>,
    pub step: Option<String>,
    pub queue: Option<String>,
    pub tenant: Option<String>,
    /// The complete key of the instance.
    pub key: Option<String>,
    /// The beginning of the key of the instance.
    pub key_prefix: Option<String>,
    /// The lane key, also of an instance that has left the lane.
    pub lane: Option<String>,
    /// The partition key.
    pub partition: Option<String>,
    /// A part of the text of the instance's last error, in upper or lower case.
    pub error: Option<String>,
    /// The group of the last error, as in [`Search::error_group`]. `like:42` names the group that
    /// the error of the instance 42 has when the bulk action is requested.
    pub error_group: Option<String>,
    /// Selects only instances that callers enqueued at this time or later.
    pub since: Option<Timestamp>,
    /// Selects only instances that callers enqueued before this time.
    pub until: Option<Timestamp>,
}

impl BulkConditions {
    /// Creates conditions that all instances in this status meet.
    pub fn new(status: Status) -> BulkConditions {
        BulkConditions {
            status,
            machine: None,
            version: None,
            step: None,
            queue: None,
            tenant: None,
            key: None,
            key_prefix: None,
            lane: None,
            partition: None,
            error: None,
            error_group: None,
            since: None,
            until: None,
        }
    }

    /// Returns the search that finds the instances that meet these conditions now.
    pub fn search(&self) -> Search {
        let conditions = self.clone();
        Search {
            machine: conditions.machine,
            version: conditions.version,
            status: Some(conditions.status),
            step: conditions.step,
            queue: conditions.queue,
            tenant: conditions.tenant,
            key: conditions.key,
            key_prefix: conditions.key_prefix,
            lane: conditions.lane,
            partition: conditions.partition,
            error: conditions.error,
            error_group: conditions.error_group,
            since: conditions.since,
            until: conditions.until,
            ..Search::default()
        }
    }
}

/// How many instances a bulk action would change if it began now.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct BulkPreview {
    /// The number of matching instances, up to 10,000.
    pub count: u64,
    /// Whether `count` is the number of all matching instances, and not a lower bound.
    pub is_exact: bool,
    /// The newest matching instances, up to 20.
    pub sample: Vec<SearchHit>,
}

/// A bulk action to be requested; see [`Operate::begin_bulk`](crate::operate::Operate::begin_bulk).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NewBulkAction {
    /// The action on each matching instance.
    pub kind: BulkKind,
    /// The conditions that select the instances.
    pub conditions: BulkConditions,
    /// The step from which a retry continues, without data. `None`: the current step.
    pub retry_step: Option<String>,
    /// The reason of a cancel or a discard, which becomes a part of the error of the instances.
    pub reason: String,
    /// The authenticated user that requests the bulk action.
    pub actor: String,
    /// The network address from which the request came, if known.
    pub source: Option<String>,
    /// The channel of the request: `dashboard`, `command`, or the name of your own tool.
    pub channel: String,
    /// The number of matching instances that the operator saw before the request.
    pub expected: u64,
    /// Whether `expected` is an exact number, and not a lower bound.
    pub expected_is_exact: bool,
}

impl NewBulkAction {
    /// Creates a request of this user, through this channel.
    pub fn new(
        kind: BulkKind,
        conditions: BulkConditions,
        actor: impl Into<String>,
        channel: impl Into<String>,
    ) -> NewBulkAction {
        let actor = actor.into();
        NewBulkAction {
            kind,
            conditions,
            retry_step: None,
            reason: format!("{kind} by {actor}"),
            actor,
            source: None,
            channel: channel.into(),
            expected: 0,
            expected_is_exact: false,
        }
    }
}

/// A bulk action and its progress. `share` is a further key of its JSON, with the value of
/// [`share`](BulkAction::share).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct BulkAction {
    /// The id of the bulk action. A later one has a larger id.
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
    /// The action on each matching instance.
    pub kind: BulkKind,
    /// The conditions that select the instances.
    pub conditions: BulkConditions,
    /// The step from which a retry continues. `None`: the current step of each instance.
    pub retry_step: Option<String>,
    /// The reason of a cancel or a discard.
    pub reason: String,
    /// The authenticated user that requested the bulk action.
    pub actor: String,
    /// The network address from which the request came, if known.
    pub source: Option<String>,
    /// The channel of the request.
    pub channel: String,
    /// The number of matching instances that the operator saw before the request.
    pub expected: i64,
    /// Whether `expected` is an exact number, and not a lower bound.
    pub expected_is_exact: bool,
    /// The largest id of an instance at the time of the request. The bulk action changes no
    /// instance with a larger id.
    #[serde(serialize_with = "id_text::required")]
    pub id_max: i64,
    /// The id up to which the bulk action has examined all instances.
    #[serde(serialize_with = "id_text::required")]
    pub cursor: i64,
    /// The number of instances that the bulk action has examined.
    pub examined: i64,
    /// The number of instances that the bulk action has changed.
    pub changed: i64,
    /// The number of matching instances that the bulk action could not change.
    pub refused: i64,
    /// Why instances could not be changed: the first 20 of them.
    pub refusals: Vec<String>,
    /// The state of the bulk action.
    pub state: BulkState,
    /// Why the bulk action failed.
    pub error: Option<String>,
    /// Whether a live runner executes the bulk action now.
    pub is_active: bool,
    /// When the operator requested the bulk action.
    pub requested_at: Timestamp,
    /// When the progress changed for the last time.
    pub updated_at: Timestamp,
    /// When the bulk action ended.
    pub ended_at: Option<Timestamp>,
}

serialize_with_methods!(BulkAction, { share: f64 = share });

impl BulkAction {
    /// Returns the share of the work that is done, from 0 to 1: by the number of instances that the
    /// operator saw if that was exact, by the range of ids otherwise.
    pub fn share(&self) -> f64 {
        let (done, all) = if self.expected_is_exact {
            (self.changed + self.refused, self.expected)
        } else {
            (self.cursor, self.id_max)
        };
        if self.state == BulkState::Done || all <= 0 {
            return 1.0;
        }
        (done as f64 / all as f64).clamp(0.0, 1.0)
    }
}
