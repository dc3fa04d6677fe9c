//! The ways that instances go from step to step, as their stories tell.

use jiff::Timestamp;

use super::{inspect::Inspect, row::column, sql};
use crate::error::Error;

sql!(EDGES, "edges.sql", [INT4]);

/// So many lines of stories are read: those of the newest instances.
const LINES_MAX: i32 = 5_000;

/// A way from one step to another.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Edge {
    /// The machine.
    pub fsm: String,
    /// What led there: `next`, `sleep`, `wait`, `spawn`, `retry`, `failure`, `done`, `stop`, `deadline`, …
    pub outcome: String,
    /// Where it stood.
    pub from: String,
    /// Where it stands since.
    pub to: String,
    /// How often, among the lines that were read.
    pub count: i64,
    /// How long the step ran, on average, in seconds.
    pub took_seconds: Option<f64>,
    /// When somebody last went it.
    pub last_at: Timestamp,
}

impl Inspect {
    /// The ways that the newest instances went: of the last 5,000 lines of stories.
    pub async fn edges(&self) -> Result<Vec<Edge>, Error> {
        self.read("read the ways of instances", |connection| async move {
            let rows = connection.query(&EDGES, &[&LINES_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Edge {
                        fsm: column(row, 0)?,
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
