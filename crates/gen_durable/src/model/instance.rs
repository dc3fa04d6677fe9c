//! Instances: one row with all of its columns, the row of a list, and the conditions of lists and
//! searches.

use jiff::Timestamp;
use serde::Serialize;

use super::json::{id_text, json_text, serialize_with_methods};
use crate::{id::Status, names::names};

/// An instance, with the columns that `durable show` prints. The JSON columns serialize as they are
/// stored, digit by digit. `lane_head` and `blocks_its_lane` are further keys, with the values of
/// [`is_lane_head`](Instance::is_lane_head) and [`blocks_its_lane`](Instance::blocks_its_lane).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
#[allow(missing_docs)] // The columns of the row, by their names.
pub struct Instance {
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
    pub tenant: String,
    pub machine: String,
    pub version: i32,
    pub step: String,
    #[serde(serialize_with = "json_text::optional")]
    pub data: Option<String>,
    #[serde(serialize_with = "json_text::required")]
    pub state: String,
    pub status: Status,
    #[serde(serialize_with = "json_text::optional")]
    pub result: Option<String>,
    pub last_error: Option<String>,
    pub queue: String,
    pub priority: i16,
    pub attempt: i32,
    pub failures: i32,
    pub eligible_at: Timestamp,
    pub inserted_at: Timestamp,
    pub updated_at: Timestamp,
    pub settled_at: Option<Timestamp>,
    pub lease_expires_at: Option<Timestamp>,
    pub locked_by: Option<String>,
    pub claim_epoch: i64,
    pub step_seq: i64,
    pub step_entry_seq: i64,
    pub crash_count: i16,
    pub traceparent: Option<String>,
    pub key: Option<String>,
    pub awaits: Option<Vec<String>>,
    pub deadline_at: Option<Timestamp>,
    pub deadline_step: Option<String>,
    #[serde(skip)]
    pub deadline_data: Option<String>,
    #[serde(serialize_with = "id_text::optional")]
    pub parent_id: Option<i64>,
    pub parent_generation: Option<i32>,
    pub join_generation: i32,
    pub join_any: bool,
    pub children_pending: i32,
    pub partition: Option<String>,
    pub lane: Option<String>,
    pub lane_position: Option<i64>,
    pub in_lane: bool,
    pub lane_blocks: bool,
    pub partition_waiting: bool,
    #[serde(skip)]
    pub arrival_no: Option<i64>,
}

serialize_with_methods!(Instance, {
    lane_head: bool = is_lane_head,
    blocks_its_lane: bool = blocks_its_lane,
});

impl Instance {
    /// Returns whether the instance is the head of its lane: it runs, may run, waits for signals or
    /// children, or has failed and blocks the lane. All other instances of the lane wait for the
    /// head. Returns false for the first instance of a lane while its status is still `queued`: the
    /// next placement makes it the head.
    pub fn is_lane_head(&self) -> bool {
        self.in_lane && self.status != Status::Queued
    }

    /// Returns whether the instance blocks its lane: it failed for good, and keeps its lane
    /// position until an operator retries it, skips it, or cancels it with `durable lanes discard`.
    pub fn blocks_its_lane(&self) -> bool {
        self.in_lane && self.status == Status::Failed
    }
}

/// Selects the instances of a list. The list is ordered from the newest to the oldest, and begins
/// below `before`.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Selects only instances of this machine.
    pub machine: Option<String>,
    /// Selects only instances in this status.
    pub status: Option<Status>,
    /// Selects only instances in the queue of this name.
    pub queue: Option<String>,
    /// Selects only instances of this tenant.
    pub tenant: Option<String>,
    /// Selects only instances with this lane key, including instances that have left the lane. A
    /// lane belongs to a tenant.
    pub lane: Option<String>,
    /// Selects only instances under this partition key. A partition key belongs to a tenant.
    pub partition: Option<String>,
    /// Selects only instances with an id below this id, which is the last id of the previous page.
    pub before: Option<i64>,
    /// The largest number of instances on the page, up to 200; 0 means 50.
    pub limit: usize,
}

/// The number of instances of one machine at one step in one status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Count {
    pub machine: String,
    pub version: i32,
    pub step: String,
    pub status: Status,
    pub count: i64,
}

/// The conditions of a search for instances. A search finds an instance if the instance meets all
/// conditions that the caller set.
///
/// A search by `key`, `key_prefix`, `tenant`, `error_group`, a status of instances that wait,
/// failed or were cancelled, `since` or `until` uses an index; so does a search for failed or stuck
/// instances by `machine` and `step`. Other conditions are compared row by row, and every page
/// reads a bounded number of rows: [`SearchPage::next`] continues the search until the whole table
/// has been read.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Search {
    pub machine: Option<String>,
    /// The version of the machine.
    pub version: Option<i32>,
    pub status: Option<Status>,
    pub step: Option<String>,
    pub queue: Option<String>,
    pub tenant: Option<String>,
    /// The complete key of the instance to find.
    pub key: Option<String>,
    /// The beginning of the key of the instance to find.
    pub key_prefix: Option<String>,
    /// Selects only instances with this lane key, including instances that have left the lane.
    pub lane: Option<String>,
    /// Selects only instances under this partition key.
    pub partition: Option<String>,
    /// A part of the text of the instance's last error, in upper or lower case.
    pub error: Option<String>,
    /// Selects only failed and stuck instances with an error of this group:
    /// [`FailureGroup::fingerprint`](super::throughput::FailureGroup::fingerprint), the text of
    /// such an error, or `like:42` for the group of the instance 42.
    pub error_group: Option<String>,
    /// Selects only instances that callers enqueued at this time or later.
    pub since: Option<Timestamp>,
    /// Selects only instances that callers enqueued before this time. The search begins at the ids
    /// of ten minutes later: it does not find instances that one statement inserted more than ten
    /// minutes after the statement began.
    pub until: Option<Timestamp>,
    /// The order of the instances.
    pub order: SearchOrder,
    /// Only instances with an id below this id, which is the `next` of the previous page.
    pub before: Option<i64>,
    /// Only instances with an id above this id, which is the `next` of the previous page in the
    /// order [`OldestFirst`](SearchOrder::OldestFirst).
    pub after: Option<i64>,
    /// The largest number of instances on the page, up to 200; 0 means 50.
    pub limit: usize,
}

/// The order of the instances that a search finds. Every order is that of an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SearchOrder {
    /// The instance with the largest id first.
    #[default]
    NewestFirst,
    /// The instance with the smallest id first.
    OldestFirst,
}

names!(SearchOrder, "order of a search", {
    NewestFirst => "newest",
    OldestFirst => "oldest",
});

/// An instance that a search found: a part of the fields of [`Instance`], without its state and
/// data.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct SearchHit {
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
    pub tenant: String,
    pub machine: String,
    pub version: i32,
    pub step: String,
    pub status: Status,
    pub queue: String,
    pub priority: i16,
    pub attempt: i32,
    pub eligible_at: Timestamp,
    pub inserted_at: Timestamp,
    pub updated_at: Timestamp,
    pub settled_at: Option<Timestamp>,
    pub key: Option<String>,
    #[serde(serialize_with = "id_text::optional")]
    pub parent_id: Option<i64>,
    /// The beginning of the text of the instance's last error.
    pub last_error: Option<String>,
    pub awaits: Option<Vec<String>>,
}

/// A page of instances that a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SearchPage {
    /// The instances that the search found, in the order of the search.
    pub instances: Vec<SearchHit>,
    /// The `before` of the next page, or its `after` in the order
    /// [`OldestFirst`](SearchOrder::OldestFirst): the search has compared every instance up to this
    /// id. `None`: this was the last page.
    #[serde(serialize_with = "id_text::optional")]
    pub next: Option<i64>,
    /// When the instance with the id `next` was enqueued: how far back the search has come.
    pub next_at: Option<Timestamp>,
}
