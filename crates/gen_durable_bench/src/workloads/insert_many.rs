//! Measures enqueues of many instances in one call.

use std::time::Instant;

use anyhow::Result;
use gen_durable::Client;

use crate::{
    bench::{Bench, SCHEMA, say},
    floors,
    jobs::Noop,
    report::Measured,
    statistics::median,
};

const BATCHES: u64 = 200;
const SIZE: u64 = 1_000;
const FLOOR: &str =
    "INSERT of 1,000 rows from one array into the same table, one connection, tokio-postgres";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let batches = bench.count(BATCHES);
    let (mut rates, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        bench.empty(SCHEMA).await?;
        let floor = floors::insert_many(bench, batches, SIZE).await?;
        bench.empty(SCHEMA).await?;
        let rate = ours(bench, batches).await?;
        say(&format!(
            "  round {round}: {rate:.0} rows/s, floor {floor:.0}"
        ));
        rates.push(rate);
        floors.push(floor);
    }
    Ok(Measured::new(
        "insert_many",
        "rows/s",
        median(&rates),
        median(&floors),
        FLOOR,
    )
    .with("batch", SIZE))
}

async fn ours(bench: &Bench, batches: u64) -> Result<f64> {
    let client = Client::new(bench.pool(SCHEMA).await?);
    let begun = Instant::now();
    for _ in 0..batches {
        client.enqueue_all((0..SIZE).map(Noop::new)).await?;
    }
    Ok((batches * SIZE) as f64 / begun.elapsed().as_secs_f64())
}
