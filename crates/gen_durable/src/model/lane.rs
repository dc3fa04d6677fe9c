//! Lanes and partition keys with instances, and the filters that select them.

use serde::Serialize;

use super::{explanation::Explanation, json::serialize_with_methods, page_size};

/// The largest number of lanes or partition keys on one page.
const PAGE_MAX: usize = 200;

/// A lane with at least one instance. `blocked` is a further key when it serializes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct LaneInfo {
    /// The tenant of the lane.
    pub tenant: String,
    /// The key of the lane, for example `server:7`.
    pub key: String,
    /// The number of instances in the lane, its head included, counted up to 10,001.
    pub depth: i64,
    /// The number of instances that have arrived at this lane and await placement, among the first
    /// 10,001 arrivals of all lanes.
    pub awaiting_placement: i64,
    /// The first instance of the lane, and why it has not settled. `None`: no instance of the lane
    /// has a lane position yet. If the status of the head is `queued`, the next pick or repair
    /// makes the head runnable.
    pub head: Option<Explanation>,
}

serialize_with_methods!(LaneInfo, { blocked: bool = is_blocked });

impl LaneInfo {
    /// Returns the position of the lane in the list of lanes: the `after` of the next page.
    pub fn cursor(&self) -> KeyCursor {
        KeyCursor::new(&self.tenant, &self.key)
    }

    /// Returns whether the lane is blocked: its head failed for good and keeps its lane position
    /// until an operator retries it, skips it, or cancels it with `durable lanes discard`.
    pub fn is_blocked(&self) -> bool {
        self.head
            .as_ref()
            .is_some_and(|head| head.instance.blocks_its_lane())
    }
}

impl PartitionInfo {
    /// Returns the position of the partition key in the list of partition keys: the `after` of the
    /// next page.
    pub fn cursor(&self) -> KeyCursor {
        KeyCursor::new(&self.tenant, &self.key)
    }
}

/// A page of the list of lanes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LanePage {
    /// The lanes of the page, ordered by tenant and key.
    pub lanes: Vec<LaneInfo>,
    /// The `after` of the next page: the last lane that the query read. `None`: this was the last
    /// page.
    pub next: Option<KeyCursor>,
}

/// A partition key under which an instance runs, may run or waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// The tenant of the partition key.
    pub tenant: String,
    /// The partition key, under which at most one step runs at a time.
    pub key: String,
    /// The number of instances that wait for the partition, counted up to 10,001.
    pub waiting: i64,
    /// The partition holder, with the reasons why it still holds the partition. `None`: placement
    /// has not chosen a partition holder yet.
    pub holder: Option<Explanation>,
}

/// The position of a lane or of a partition key in its list, which is ordered by tenant and key.
/// Serializes as the parameters of the next request to the HTTP API.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct KeyCursor {
    /// The tenant of the lane or partition key.
    #[serde(rename = "after_tenant")]
    pub tenant: String,
    /// The key of the lane, or the partition key.
    #[serde(rename = "after")]
    pub key: String,
}

impl KeyCursor {
    /// Creates the position of this key of this tenant. The empty name means no tenant.
    pub fn new(tenant: impl Into<String>, key: impl Into<String>) -> KeyCursor {
        KeyCursor {
            tenant: tenant.into(),
            key: key.into(),
        }
    }
}

/// Selects lanes, ordered by tenant and key, page by page.
#[derive(Debug, Clone, Default)]
pub struct LaneFilter {
    /// Selects only lanes of this tenant. The empty name means instances without a tenant.
    pub tenant: Option<String>,
    /// Selects only the lane with this key.
    pub key: Option<String>,
    /// Selects only lanes with a key that begins with this prefix.
    pub prefix: Option<String>,
    /// Selects only lanes that a failed instance blocks.
    pub blocked: bool,
    /// Selects only lanes after this position, which is the position of the last lane of the
    /// previous page.
    pub after: Option<KeyCursor>,
    /// The largest number of lanes on the page, up to 200; 0 means 50.
    pub limit: usize,
}

/// Selects partition keys, ordered by tenant and key, page by page.
#[derive(Debug, Clone, Default)]
pub struct PartitionFilter {
    /// Selects only partition keys of this tenant. The empty name means instances without a tenant.
    pub tenant: Option<String>,
    /// Selects only this partition key.
    pub key: Option<String>,
    /// Selects only partition keys after this position, which is the position of the last key of
    /// the previous page.
    pub after: Option<KeyCursor>,
    /// The largest number of partition keys on the page, up to 200; 0 means 50.
    pub limit: usize,
}

impl LaneFilter {
    pub(crate) fn limit(&self) -> i32 {
        page_size(self.limit, PAGE_MAX)
    }

    pub(crate) fn after(&self) -> (&str, &str) {
        page_start(self.after.as_ref())
    }
}

impl PartitionFilter {
    pub(crate) fn limit(&self) -> i32 {
        page_size(self.limit, PAGE_MAX)
    }

    pub(crate) fn after(&self) -> (&str, &str) {
        page_start(self.after.as_ref())
    }
}

/// Returns the tenant and the key after which a page begins.
fn page_start(after: Option<&KeyCursor>) -> (&str, &str) {
    after.map_or(("", ""), |after| (&after.tenant, &after.key))
}
