//! Facts about the server for `durable doctor`: settings, old snapshots, dead rows.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{inspect::Inspect, row::column, sql};
use crate::error::Error;

sql!(SETTINGS, "settings.sql", []);
sql!(SNAPSHOTS, "snapshots.sql", [FLOAT8]);
sql!(TUPLES, "tuples.sql", []);

/// An old snapshot: a transaction or replication slot that keeps vacuum from removing dead rows.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Snapshot {
    /// The kind of the snapshot's owner: `transaction`, `prepared` (a prepared transaction) or
    /// `slot` (a replication slot).
    pub kind: String,
    pub pid: i32,
    pub user: String,
    /// The application name of the session that holds the snapshot, or the name of the prepared
    /// transaction or of the replication slot.
    pub name: String,
    pub state: String,
    /// The age of the snapshot, in seconds. For a replication slot, the age in transactions.
    pub age: f64,
    /// The last query of the session that holds the snapshot.
    pub query: String,
}

/// A table of the schema, with its numbers of live and dead row versions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct TableInfo {
    pub name: String,
    pub live: i64,
    pub dead: i64,
    /// The size of the table on disk, including its indexes.
    pub bytes: i64,
    pub last_vacuum: Option<Timestamp>,
}

impl Inspect {
    /// Returns the server settings that durability or speed depend on, by name. Adds three values
    /// that are not settings: `now`, `client_backends` and `in_recovery`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn server_settings(&self) -> Result<BTreeMap<String, String>, Error> {
        self.read("read the server's settings", |connection| async move {
            let rows = connection.query(&SETTINGS, &[]).await?;
            rows.iter()
                .map(|row| Ok((column(row, 0)?, column(row, 1)?)))
                .collect()
        })
        .await
    }

    /// Returns the snapshots that are older than `older_than_seconds`. Vacuum must keep every row
    /// version that such a snapshot can see.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn snapshots(&self, older_than_seconds: f64) -> Result<Vec<Snapshot>, Error> {
        self.read("list old snapshots", move |connection| async move {
            let rows = connection.query(&SNAPSHOTS, &[&older_than_seconds]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Snapshot {
                        kind: column(row, 0)?,
                        pid: column(row, 1)?,
                        user: column(row, 2)?,
                        name: column(row, 3)?,
                        state: column(row, 4)?,
                        age: column(row, 5)?,
                        query: column(row, 6)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Returns the tables of the schema, ordered by their number of dead rows, the largest first.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.read("list the tables", |connection| async move {
            let rows = connection.query(&TUPLES, &[]).await?;
            rows.iter()
                .map(|row| {
                    Ok(TableInfo {
                        name: column(row, 0)?,
                        live: column(row, 1)?,
                        dead: column(row, 2)?,
                        bytes: column(row, 3)?,
                        last_vacuum: column(row, 4)?,
                    })
                })
                .collect()
        })
        .await
    }
}
