//! What the server says of itself, for `durable doctor`: settings, old snapshots, dead rows.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{inspect::Inspect, row::column, sql};
use crate::error::Error;

sql!(SETTINGS, "settings.sql", []);
sql!(SNAPSHOTS, "snapshots.sql", [FLOAT8]);
sql!(TUPLES, "tuples.sql", []);

/// Somebody who keeps vacuum from removing dead rows.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Snapshot {
    /// `transaction`, `prepared` (a prepared transaction) or `slot` (of replication).
    pub kind: String,
    pub pid: i32,
    pub user: String,
    /// The application's name, the prepared transaction's or the slot's.
    pub name: String,
    pub state: String,
    /// In seconds; of a slot, in transactions.
    pub age: f64,
    /// What it ran last.
    pub query: String,
}

/// A table of the schema, and its dead rows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct TableInfo {
    pub name: String,
    pub live: i64,
    pub dead: i64,
    /// With its indexes.
    pub bytes: i64,
    pub last_vacuum: Option<Timestamp>,
}

impl Inspect {
    /// Settings of the server that durability or speed hang on, by name; and `now`, `client_backends`, `in_recovery`.
    pub async fn server_settings(&self) -> Result<BTreeMap<String, String>, Error> {
        self.read("read the server's settings", |connection| async move {
            let rows = connection.query(&SETTINGS, &[]).await?;
            rows.iter()
                .map(|row| Ok((column(row, 0)?, column(row, 1)?)))
                .collect()
        })
        .await
    }

    /// Snapshots older than this many seconds: what they can see, vacuum must keep.
    pub async fn snapshots(&self, older_than_seconds: f64) -> Result<Vec<Snapshot>, Error> {
        self.read("look for old snapshots", move |connection| async move {
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

    /// The tables of the schema, those with the most dead rows first.
    pub async fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.read("look at the tables", |connection| async move {
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
