//! Measures single enqueues by concurrent callers of one process.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;
use gen_durable::Client;

use crate::{
    bench::{Bench, SCHEMA, say},
    floors,
    jobs::Noop,
    report::Measured,
    statistics::median,
};

const CALLERS: usize = 10;
const LASTING: Duration = Duration::from_secs(3);
const FLOOR: &str = "single-row INSERT into the same table by 10 connections, tokio-postgres";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let lasting = bench.duration(LASTING);
    let (mut rates, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        bench.empty(SCHEMA).await?;
        let floor = floors::insert_one(bench, CALLERS, lasting).await?;
        bench.empty(SCHEMA).await?;
        let rate = ours(bench, lasting).await?;
        say(&format!(
            "  round {round}: {rate:.0} rows/s, floor {floor:.0}"
        ));
        rates.push(rate);
        floors.push(floor);
    }
    Ok(
        Measured::new("insert", "rows/s", median(&rates), median(&floors), FLOOR)
            .with("callers", CALLERS),
    )
}

async fn ours(bench: &Bench, lasting: Duration) -> Result<f64> {
    let client = Client::new(bench.pool(SCHEMA).await?);
    let begun = Instant::now();
    let callers = (0..CALLERS).map(|_| {
        let client = client.clone();
        let calling = async move {
            let mut rows = 0;
            while begun.elapsed() < lasting {
                client.enqueue(Noop::new(rows)).await?;
                rows += 1;
            }
            anyhow::Ok(rows)
        };
        async move { tokio::spawn(calling).await? }
    });
    let rows: u64 = try_join_all(callers).await?.iter().sum();
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}
