//! Counts the edges between steps of machines, from the recorded history of instances.

use jiff::Timestamp;

use super::{inspect::Inspect, row::column, sql};
use crate::error::Error;

sql!(EDGES, "edges.sql", [INT4]);

/// The largest number of history rows that the query of the edges reads, beginning with the newest
/// instances.
const HISTORY_ROWS_MAX: i32 = 5_000;

/// A transition of instances from one step to another, aggregated over instances.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Edge {
    /// The name of the machine in which the transition happened.
    pub machine: String,
    /// The outcome of the step that caused the transition: `next`, `sleep`, `wait`, `spawn`,
    /// `retry`, `failure`, `done`, `stop`, `deadline`, …
    pub outcome: String,
    /// The step of the instance before the transition.
    pub from: String,
    /// The step of the instance after the transition.
    pub to: String,
    /// How often the transition happened, among the history rows that the query read.
    pub count: i64,
    /// The average run time of the step `from` before this transition, in seconds.
    pub took_seconds: Option<f64>,
    /// When an instance last made this transition.
    pub last_at: Timestamp,
}

impl Inspect {
    /// Returns the edges between steps, counted over the last 5,000 history rows of the newest
    /// instances.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn edges(&self) -> Result<Vec<Edge>, Error> {
        self.read("count the edges between steps", |connection| async move {
            let rows = connection.query(&EDGES, &[&HISTORY_ROWS_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Edge {
                        machine: column(row, 0)?,
                        outcome: column(row, 1)?,
                        from: column(row, 2)?,
                        to: column(row, 3)?,
                        count: column(row, 4)?,
                        took_seconds: column(row, 5)?,
                        last_at: column(row, 6)?,
                    })
                })
                .collect()
        })
        .await
    }
}
