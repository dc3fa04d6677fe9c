//! Counts the edges between steps of machines, from the recorded history of instances.

use tokio_postgres::Row;

use super::{connection::Connection, fault::Fault, row::named, sql};
use crate::model::{
    history::{Edge, HistoryOutcome},
    json::seconds,
};

sql!(EDGES, "edges.sql", [INT4]);

/// The largest number of history rows that the query of the edges reads, beginning with the newest
/// instances.
const HISTORY_ROWS_MAX: i32 = 5_000;

/// Returns the edges between steps, counted over the last history rows of the newest instances.
pub(crate) async fn edges(connection: &Connection) -> Result<Vec<Edge>, Fault> {
    let rows = connection.query(&EDGES, &[&HISTORY_ROWS_MAX]).await?;
    rows.iter().map(edge).collect()
}

fn edge(row: &Row) -> Result<Edge, Fault> {
    Ok(Edge {
        machine: named(row, "machine")?,
        outcome: HistoryOutcome::read(named(row, "outcome")?),
        from: named(row, "from_step")?,
        to: named(row, "to_step")?,
        count: named(row, "count")?,
        took: named::<Option<f64>>(row, "took_seconds")?.map(seconds::duration),
        last_at: named(row, "last_at")?,
    })
}
