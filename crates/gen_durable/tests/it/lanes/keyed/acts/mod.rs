//! Tests which columns each act on a lane or a partition key writes. There is one test for each row
//! of the act matrix in ARCHITECTURE.md, and each test compares every column.

mod columns;
mod placement;

use gen_durable::{Id, inspect::Instance, schedule::Timestamp, testing::Lab};

use super::{RunLog, Walk, run, statement};
use crate::support::sql;

fn with(row: &Instance, change: impl FnOnce(&mut Instance)) -> Instance {
    let mut row = row.clone();
    change(&mut row);
    row
}

/// Advances the clock by one second, so that no two acts have the same time.
async fn tick(lab: &Lab<RunLog>) -> Timestamp {
    run(lab, "update S.lab_clock set now = now + interval '1 s'").await;
    lab.now().await
}

/// Runs placement, which assigns lane positions and partition holders and claims nothing.
async fn run_placement(lab: &Lab<RunLog>) {
    sql()
        .await
        .query(&statement(lab, "select gen_durable._place(0, 1000)"), &[])
        .await
        .unwrap();
}

async fn rows(lab: &Lab<RunLog>, ids: [Id<Walk>; 2]) -> (Instance, Instance) {
    (lab.row_of(ids[0]).await, lab.row_of(ids[1]).await)
}
