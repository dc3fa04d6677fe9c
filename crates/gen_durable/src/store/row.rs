//! Rows as Rust sees them.

use jiff::Timestamp;
use tokio_postgres::{Row, types::FromSql};

use super::fault::Fault;

/// A row that this process holds.
#[derive(Debug, Clone)]
pub(crate) struct Claimed {
    pub(crate) id: i64,
    pub(crate) fsm: String,
    pub(crate) fsm_version: u16,
    pub(crate) step: String,
    /// What the step carries, as JSON; `None` for a unit variant.
    pub(crate) data: Option<String>,
    pub(crate) state: String,
    pub(crate) attempt: u32,
    /// How many runs of this step have failed.
    pub(crate) failures: u32,
    pub(crate) claim_epoch: i64,
    pub(crate) step_seq: i64,
    pub(crate) visit: i64,
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) eligible_at: Timestamp,
    pub(crate) tenant: String,
    pub(crate) traceparent: Option<String>,
    /// Under a partition key or in a lane: exclusion is promised, so its step ends when the lease does.
    pub(crate) keyed: bool,
    /// It follows in a lane that this process leads: until it has run for a while, its row is still `queued`.
    pub(crate) led: bool,
    pub(crate) crash_count: i16,
    /// The signals that its step waited for.
    pub(crate) awaits: Option<Vec<String>>,
    /// Its letters, as JSON: [[id, name, payload], …].
    pub(crate) inbox: Option<String>,
    /// The children of its last spawn, as JSON.
    pub(crate) children: Option<String>,
    pub(crate) parent_id: Option<i64>,
    /// The number of its claim: larger than that of every claim before it, of this instance, its lane or its partition key.
    pub(crate) fencing_token: i64,
    /// The database's time when it was claimed, or when its last commit was answered.
    pub(crate) now: Timestamp,
}

/// What names one claim of one step, and guards every write of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) id: i64,
    pub(crate) epoch: i64,
    pub(crate) seq: i64,
}

impl Claimed {
    /// About how much it weighs.
    pub(crate) fn bytes(&self) -> usize {
        let more = [&self.data, &self.inbox, &self.children]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum::<usize>();
        self.state.len() + more
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim {
            id: self.id,
            epoch: self.claim_epoch,
            seq: self.step_seq,
        }
    }
}

/// A row of an answer, whichever driver brought it.
pub trait Fields {
    /// A column, or why it cannot be read.
    fn field<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, String>;
}

impl Fields for Row {
    fn field<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, String> {
        self.try_get(index).map_err(|error| error.to_string())
    }
}

/// A column, or the news that the answer is not what this build expects.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a impl Fields, index: usize) -> Result<T, Fault> {
    row.field(index).map_err(|error| Fault::Refused {
        code: None,
        message: format!("an unexpected answer: {error}"),
    })
}

/// A column of a batch, or nothing at all if every value is the usual one: `unnest` fills a shorter array up with nulls,
/// and one that is empty costs the server nothing, where every other one costs it a copy of each value.
pub(crate) fn unless_all<T: PartialEq>(usual: T, values: impl Iterator<Item = T>) -> Vec<T> {
    let values: Vec<T> = values.collect();
    if values.iter().all(|value| *value == usual) {
        Vec::new()
    } else {
        values
    }
}
