//! Rust values for rows of the database: claimed instances, claims, and columns of result rows.

use jiff::Timestamp;
use tokio_postgres::{Row, types::FromSql};

use super::fault::Fault;

/// An instance that this worker has claimed.
#[derive(Debug, Clone)]
pub(crate) struct Claimed {
    pub(crate) id: i64,
    pub(crate) machine: String,
    pub(crate) machine_version: u16,
    pub(crate) step: String,
    /// The data of the instance's step, as JSON; `None` for a unit variant of the step enum.
    pub(crate) data: Option<String>,
    pub(crate) state: String,
    pub(crate) attempt: u32,
    /// The number of executions of the instance's current step that have failed.
    pub(crate) failures: u32,
    pub(crate) claim_epoch: i64,
    pub(crate) step_seq: i64,
    pub(crate) step_entry_seq: i64,
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) eligible_at: Timestamp,
    pub(crate) tenant: String,
    pub(crate) traceparent: Option<String>,
    /// True if the instance has a partition key or is in a lane. Lanes and partition keys promise
    /// that no two steps run at the same time, so the worker stops the step of such an instance
    /// when the worker's lease expires.
    pub(crate) keyed: bool,
    /// True if this worker, as the lane worker, runs the instance without a claim. The status of
    /// the instance stays `queued` until the step has run for a while.
    pub(crate) unclaimed: bool,
    pub(crate) crash_count: i16,
    /// The names of the signals that the instance waited for before its current step.
    pub(crate) awaits: Option<Vec<String>>,
    /// The signals in the inbox of the instance, as JSON: [[id, name, payload], …].
    pub(crate) inbox: Option<String>,
    /// The children of the instance's last spawn, as JSON.
    pub(crate) children: Option<String>,
    pub(crate) parent_id: Option<i64>,
    /// The fencing token of the claim. The token is larger than the token of every earlier claim of
    /// this instance, of its lane or of its partition key.
    pub(crate) fencing_token: i64,
    /// The time of the database when the worker claimed the instance, or when the database
    /// acknowledged the last commit of the instance.
    pub(crate) now: Timestamp,
}

/// Identifies one claim of one step. Every write of the claiming worker compares these three
/// numbers with the instance's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) id: i64,
    pub(crate) epoch: i64,
    pub(crate) seq: i64,
}

impl Claimed {
    /// Returns the approximate size of the claimed instance in bytes.
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

/// A result row of `tokio_postgres` or of `sqlx`.
pub trait Fields {
    /// Returns a column of the row, or the reason why the driver cannot read the column.
    fn field<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, String>;
}

impl Fields for Row {
    fn field<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, String> {
        self.try_get(index).map_err(|error| error.to_string())
    }
}

/// Returns a column of a result row. A column that the driver cannot read becomes a [`Fault`]: the
/// row does not have the shape that this build expects.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a impl Fields, index: usize) -> Result<T, Fault> {
    row.field(index).map_err(|error| Fault::Refused {
        code: None,
        message: format!("unexpected result from the database: {error}"),
    })
}

/// Returns one column of a batch as an array, or an empty array if every value is the default.
/// `unnest` pads a shorter array with nulls, so an empty array means the default for all rows. An
/// empty array costs the server nothing, while the server copies each value of any other array.
pub(crate) fn unless_all<T: PartialEq>(usual: T, values: impl Iterator<Item = T>) -> Vec<T> {
    let values: Vec<T> = values.collect();
    if values.iter().all(|value| *value == usual) {
        Vec::new()
    } else {
        values
    }
}
