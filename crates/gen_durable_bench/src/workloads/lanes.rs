//! Lanes of serial jobs: how fast are they gone, and does one that is very long keep the others?

use anyhow::Result;

use crate::{
    bench::{Bench, SCHEMA, say},
    floors::loops,
    report::Measured,
    statistics::median,
};

const LANES: u64 = 100;
const JOBS_EACH: u64 = 100;
/// The long form: many short lanes beside one that is very long.
const FRESH_LANES: u64 = 1_000;
const FRESH_JOBS_EACH: u64 = 10;
const LONG_LANE: u64 = 1_000_000;
const LONG_LANE_KEY: u64 = u64::MAX >> 1;

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let each = bench.count(JOBS_EACH);
    let jobs = LANES * each;
    let (mut alternating, mut together, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        bench.empty(SCHEMA).await?;
        bench.fill_jobs(SCHEMA, jobs).await?;
        floors.push(loops::drain(bench, loops::Work::Jobs).await?);
        alternating.push(drain(bench, (0..jobs).map(|n| n % LANES)).await?);
        together.push(drain(bench, (0..jobs).map(|n| n / each)).await?);
        let last = |rates: &[f64]| rates.last().copied().unwrap_or_default();
        say(&format!(
            "  round {round}: keys alternating {:.0} jobs/s, each key's jobs together {:.0}; bare loop without lanes {:.0}",
            last(&alternating),
            last(&together),
            last(&floors)
        ));
    }
    let slower = median(&alternating).min(median(&together));
    let measured = Measured::new("lanes", "jobs/s", slower, median(&floors), loops::KIND)
        .with("lanes", LANES)
        .with("jobs", jobs)
        .with("alternating", median(&alternating).round())
        .with("together", median(&together).round());
    if bench.long { beside_a_long_one(bench, measured).await } else { Ok(measured) }
}

async fn drain(bench: &Bench, keys: impl Iterator<Item = u64>) -> Result<f64> {
    bench.empty(SCHEMA).await?;
    bench.fill_keyed(SCHEMA, "in_lane", "lane", keys).await?;
    super::partitions::drain(bench, None).await
}

/// Fresh lanes alone, and beside a lane with a million entries that stands still: interleaved, five windows of each.
async fn beside_a_long_one(bench: &Bench, measured: Measured) -> Result<Measured> {
    let fresh = || (0..FRESH_LANES * FRESH_JOBS_EACH).map(|n| n % FRESH_LANES);
    let entries = bench.count(LONG_LANE);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for window in 1..=5 {
        alone.push(drain(bench, fresh()).await?);
        bench.empty(SCHEMA).await?;
        // Its head is due tomorrow, so it stands still; all behind it wait.
        bench.stand_still(SCHEMA, "in_lane", "lane", &format!("bench:{LONG_LANE_KEY}"), entries).await?;
        bench.fill_keyed(SCHEMA, "in_lane", "lane", fresh()).await?;
        beside.push(super::partitions::drain(bench, Some(FRESH_LANES * FRESH_JOBS_EACH)).await?);
        let last = |rates: &[f64]| rates.last().copied().unwrap_or_default();
        say(&format!(
            "  window {window}: {FRESH_LANES} lanes alone {:.0} jobs/s, beside one of {entries} {:.0}",
            last(&alone),
            last(&beside)
        ));
    }
    Ok(measured
        .with("fresh_alone", median(&alone).round())
        .with("fresh_beside_a_long_one", median(&beside).round())
        .with("long_lane", entries))
}
