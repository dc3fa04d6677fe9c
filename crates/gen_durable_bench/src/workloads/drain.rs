//! The workload `drain`: an engine runs a backlog of jobs until all have settled. The bench
//! measures jobs per second.

use anyhow::Result;

use crate::{
    bench::{Bench, SCHEMA, say},
    cpu::Used,
    floors::{self, loops},
    jobs::Probe,
    process::{self, Memory},
    report::Measured,
    statistics::{median, rounded},
};

const JOBS: u64 = 100_000;

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let jobs = bench.count(JOBS);
    let (mut rates, mut floors, mut sql_floors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut memory, mut cpu, mut floor_cpu) = (Memory::default(), Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        fill(bench, jobs).await?;
        let before = bench.cpu();
        let floor = loops::drain(bench, loops::Work::Jobs).await?;
        let floor_used = bench.cpu().since(before, jobs);
        fill(bench, jobs).await?;
        let before = bench.cpu();
        let (rate, memory_used) = ours(bench, jobs).await?;
        let used = bench.cpu().since(before, jobs);
        fill(bench, jobs).await?;
        let sql_floor = floors::sql_drain(bench, jobs).await?;
        say(&format!(
            "  round {round}: {rate:.0} jobs/s with {used}; bare loop {floor:.0} with {floor_used}; SQL alone {sql_floor:.0}"
        ));
        cpu.push(used);
        floor_cpu.push(floor_used);
        memory = if memory_used.peak_mb > memory.peak_mb {
            memory_used
        } else {
            memory
        };
        rates.push(rate);
        floors.push(floor);
        sql_floors.push(sql_floor);
    }
    Ok(Measured::new(
        "drain",
        "jobs/s",
        median(&rates),
        median(&floors),
        loops::KIND,
    )
    .with("sql_floor", median(&sql_floors).round())
    .with("jobs", jobs)
    .with("best", rates.iter().copied().fold(0.0, f64::max).round())
    .with("cpu_us", Used::medians(&cpu))
    .with("floor_cpu_us", Used::medians(&floor_cpu))
    .with("memory_peak_mb", rounded(memory.peak_mb, 1))
    .with("memory_mb", rounded(memory.now_mb, 1)))
}

async fn fill(bench: &Bench, jobs: u64) -> Result<()> {
    bench.empty(SCHEMA).await?;
    bench.fill_jobs(SCHEMA, jobs).await
}

/// Measures an engine. Returns jobs per second, from the start of the first step to the commit of
/// the last step, and the memory of this process.
async fn ours(bench: &Bench, jobs: u64) -> Result<(f64, Memory)> {
    let probe = Probe::waiting_for(jobs);
    process::forget_peak();
    let mut engine = bench.start_engine(SCHEMA, &probe).await?;
    engine.until(probe.all()).await?;
    bench.all_settled(SCHEMA).await?;
    let took = probe.first().elapsed();
    let memory = process::memory();
    engine.stop().await?;
    Ok((jobs as f64 / took.as_secs_f64(), memory))
}
