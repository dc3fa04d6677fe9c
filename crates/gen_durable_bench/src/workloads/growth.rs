//! The workload `growth`: compares the rate at which an engine starts the first 10,000 jobs of a
//! large backlog with the rate for a small backlog.

use anyhow::Result;

use crate::{
    bench::{Bench, LARGE_SCHEMA, SCHEMA, say},
    jobs::Probe,
    report::Measured,
    statistics::median,
};

const FIRST: u64 = 10_000;
const LARGE: u64 = 1_000_000;
const LARGE_SHORT: u64 = 200_000;
const FLOOR: &str = "the same with a backlog of 10,000";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let first = bench.count(FIRST);
    let large = bench.count(if bench.long { LARGE } else { LARGE_SHORT });
    // The large backlog is in the schema `LARGE_SCHEMA`, so that it stays while the bench fills the
    // small backlog again for each round.
    bench.drop_schema(LARGE_SCHEMA).await?;
    bench.pool(LARGE_SCHEMA).await?.migrate().await?;
    say(&format!("  creating a backlog of {large}"));
    bench.fill_jobs(LARGE_SCHEMA, large).await?;
    let (mut of_large, mut of_small) = (Vec::new(), Vec::new());
    // Measures twice as many rounds as the other workloads, because the rounds of this workload are
    // short.
    for round in 1..=bench.rounds * 2 {
        bench.empty(SCHEMA).await?;
        bench.fill_jobs(SCHEMA, first).await?;
        let small_rate = ours(bench, SCHEMA, first).await?;
        let large_rate = ours(bench, LARGE_SCHEMA, first).await?;
        say(&format!(
            "  round {round}: {large_rate:.0} jobs/s of {large}, {small_rate:.0} jobs/s of {first}"
        ));
        of_large.push(large_rate);
        of_small.push(small_rate);
    }
    bench.drop_schema(LARGE_SCHEMA).await?;
    Ok(Measured::new(
        "growth",
        "jobs/s",
        median(&of_large),
        median(&of_small),
        FLOOR,
    )
    .with("backlog", large))
}

/// Measures an engine. Returns jobs per second, from the start of the first step to the start of
/// the last step.
async fn ours(bench: &Bench, schema: &str, jobs: u64) -> Result<f64> {
    let probe = Probe::waiting_for(jobs);
    let mut engine = bench.start_engine(schema, &probe).await?;
    let took = engine.until(probe.all()).await?;
    engine.stop().await?;
    Ok(jobs as f64 / took.as_secs_f64().max(1e-6))
}
