//! Facts about the server for `durable doctor`: settings, old snapshots, dead rows.

use std::{collections::BTreeMap, time::Duration};

use tokio_postgres::Row;

use super::{
    connection::Connection,
    fault::Fault,
    row::{named, parsed},
    sql,
};
use crate::model::{
    json::seconds,
    server::{Snapshot, TableInfo},
};

sql!(SETTINGS, "settings.sql", []);
sql!(SNAPSHOTS, "snapshots.sql", [FLOAT8]);
sql!(TUPLES, "tuples.sql", []);

/// The largest age of snapshots to ask for: an `interval` of Postgres has a bound.
const SNAPSHOT_SECONDS_MAX: f64 = 1e9;

/// Returns the server settings that durability or speed depend on, by name.
pub(crate) async fn settings(connection: &Connection) -> Result<BTreeMap<String, String>, Fault> {
    let rows = connection.query(&SETTINGS, &[]).await?;
    rows.iter()
        .map(|row| Ok((named(row, "name")?, named(row, "setting")?)))
        .collect()
}

/// Returns the snapshots that are older than `older_than`, and those of replication slots.
pub(crate) async fn snapshots(
    connection: &Connection,
    older_than: Duration,
) -> Result<Vec<Snapshot>, Fault> {
    let seconds = older_than.as_secs_f64().min(SNAPSHOT_SECONDS_MAX);
    let rows = connection.query(&SNAPSHOTS, &[&seconds]).await?;
    rows.iter().map(snapshot).collect()
}

fn snapshot(row: &Row) -> Result<Snapshot, Fault> {
    Ok(Snapshot {
        kind: parsed(row, "kind")?,
        pid: named(row, "pid")?,
        user: named(row, "user")?,
        name: named(row, "name")?,
        state: named(row, "state")?,
        age: named::<Option<f64>>(row, "age_seconds")?.map(seconds::duration),
        age_transactions: named(row, "age_transactions")?,
        query: named(row, "query")?,
    })
}

/// Returns the tables of the schema, ordered by their number of dead rows, the largest first.
pub(crate) async fn tables(connection: &Connection) -> Result<Vec<TableInfo>, Fault> {
    let rows = connection.query(&TUPLES, &[]).await?;
    rows.iter().map(table).collect()
}

fn table(row: &Row) -> Result<TableInfo, Fault> {
    Ok(TableInfo {
        name: named(row, "relname")?,
        live: named(row, "n_live_tup")?,
        dead: named(row, "n_dead_tup")?,
        bytes: named(row, "bytes")?,
        last_vacuum_at: named(row, "last_vacuum")?,
    })
}
