//! Pages of instances in the order in which they settle.

use jiff::Timestamp;
use serde::Serialize;

use super::{instance::SearchHit, json::id_text};
use crate::id::Status;

/// A position in the order in which instances settle: the time, and the id among instances that
/// settled at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SettledCursor {
    /// When the instance settled.
    pub settled_at: Timestamp,
    /// The id of the instance; 0 is before all instances of this time.
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
}

/// Selects instances that have settled, in the order of settling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledFilter {
    /// Selects only instances of this machine.
    pub machine: Option<String>,
    /// Selects only instances in this queue.
    pub queue: Option<String>,
    /// Selects only instances in this status: done, failed or cancelled.
    pub status: Option<Status>,
    /// Selects only instances that settled after this position.
    pub after: SettledCursor,
    /// The largest number of instances that the page reads, up to 1,000; 0 means 50.
    pub limit: usize,
}

impl SettledFilter {
    /// Selects all instances that settled at this time or later.
    pub fn since(settled_at: Timestamp) -> SettledFilter {
        SettledFilter {
            machine: None,
            queue: None,
            status: None,
            after: SettledCursor { settled_at, id: 0 },
            limit: 0,
        }
    }
}

/// A page of instances that have settled.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SettledPage {
    /// The instances, in the order in which they settled.
    pub instances: Vec<SearchHit>,
    /// The `after` of the next page.
    pub next: SettledCursor,
    /// Whether no further instance has settled until now.
    pub is_last: bool,
}
