//! Facts about the server for `durable doctor`: old snapshots, and the tables of the schema.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::json::seconds;
use crate::names::names;

/// An old snapshot: a transaction or replication slot that keeps vacuum from removing dead rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Snapshot {
    /// The kind of the snapshot's owner.
    pub kind: SnapshotKind,
    pub pid: i32,
    pub user: String,
    /// The application name of the session that holds the snapshot, or the name of the prepared
    /// transaction or of the replication slot.
    pub name: String,
    pub state: String,
    /// The age of the snapshot. `None`: the snapshot belongs to a replication slot.
    #[serde(rename = "age_seconds", serialize_with = "seconds::optional")]
    pub age: Option<Duration>,
    /// For a replication slot, the age of its snapshot in transactions.
    pub age_transactions: Option<i64>,
    /// The last query of the session that holds the snapshot.
    pub query: String,
}

/// A table of the schema, with its numbers of live and dead row versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct TableInfo {
    pub name: String,
    pub live: i64,
    pub dead: i64,
    /// The size of the table on disk, including its indexes.
    pub bytes: i64,
    pub last_vacuum_at: Option<Timestamp>,
}

/// The kind of the owner of an old snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SnapshotKind {
    /// A session with an open transaction owns the snapshot.
    Transaction,
    /// A prepared transaction owns the snapshot.
    Prepared,
    /// A replication slot owns the snapshot.
    Slot,
}

names!(SnapshotKind, "kind of snapshot", {
    Transaction => "transaction",
    Prepared => "prepared",
    Slot => "slot",
});
