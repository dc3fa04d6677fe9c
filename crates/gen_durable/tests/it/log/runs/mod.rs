//! Tests of replays, rebuilds and verifications of projections.

mod continued;
mod rebuilds;

use super::board::{Board, Paid, lab};

async fn filled() -> (gen_durable::testing::Lab<()>, String) {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board::new(&schema));
    lab.record_all("t", (1..=1_000).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.record_all("u", (1..=10).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    (lab, schema)
}
