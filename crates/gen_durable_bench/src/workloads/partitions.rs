//! The workload `partitions`: an engine runs jobs with partition keys, one step at a time per key.
//! The bench measures jobs per second.

use anyhow::Result;

use crate::{
    bench::{Bench, SCHEMA, say},
    floors::loops,
    jobs::Probe,
    report::Measured,
    statistics::median,
};

const KEYS: u64 = 100;
const JOBS_EACH: u64 = 100;
const BACKLOG: u64 = 1_000_000;

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let jobs = KEYS * bench.count(JOBS_EACH);
    let (mut rates, mut floors, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        bench.empty(SCHEMA).await?;
        bench.fill_jobs(SCHEMA, jobs).await?;
        floors.push(loops::drain(bench, loops::Work::Jobs).await?);
        bench.empty(SCHEMA).await?;
        bench
            .fill_keyed(
                SCHEMA,
                "in_partition",
                "partition",
                (0..jobs).map(|n| n % KEYS),
            )
            .await?;
        rates.push(drain(bench, SCHEMA, None).await?);
        if bench.long {
            bench.empty(SCHEMA).await?;
            bench
                .fill_blocked_key(
                    SCHEMA,
                    "in_partition",
                    "partition",
                    "bench:hot",
                    bench.count(BACKLOG),
                )
                .await?;
            bench
                .fill_keyed(
                    SCHEMA,
                    "in_partition",
                    "partition",
                    (0..jobs).map(|n| n % KEYS),
                )
                .await?;
            beside.push(drain(bench, SCHEMA, Some(jobs)).await?);
        }
        let last = |rates: &[f64]| rates.last().copied().unwrap_or_default();
        say(&format!(
            "  round {round}: {:.0} jobs/s; bare loop without keys {:.0}",
            last(&rates),
            last(&floors)
        ));
    }
    let measured = Measured::new(
        "partitions",
        "jobs/s",
        median(&rates),
        median(&floors),
        loops::KIND,
    )
    .with("keys", KEYS)
    .with("jobs", jobs);
    Ok(if bench.long {
        measured.with("beside_a_backlog", median(&beside).round())
    } else {
        measured
    })
}

/// Starts an engine and waits until it has settled `runnable` jobs of the schema, or all jobs if
/// `runnable` is `None`. Returns jobs per second, from the start of the first step to the commit of
/// the last step.
pub(super) async fn drain(bench: &Bench, schema: &str, runnable: Option<u64>) -> Result<f64> {
    let jobs = match runnable {
        Some(jobs) => jobs,
        None => bench.live(schema).await?,
    };
    let probe = Probe::waiting_for(jobs);
    let mut engine = bench.start_engine(schema, &probe).await?;
    engine.until(probe.all()).await?;
    bench.settled(schema, jobs).await?;
    let took = probe.first().elapsed();
    engine.stop().await?;
    Ok(jobs as f64 / took.as_secs_f64())
}
