//! The workload `chain`: an engine runs instances with several steps and commits each step before
//! the next step of the instance starts. The bench measures steps per second, with history or
//! without (the published targets are without history).

use anyhow::Result;

use crate::{
    bench::{Bench, SCHEMA, say},
    cpu::Used,
    floors::{
        self,
        loops::{self, Work},
    },
    jobs::{Probe, WALK_STEPS},
    report::Measured,
    statistics::median,
};

const INSTANCES: u64 = 5_000;

pub(super) async fn measure(bench: &Bench, with_history: bool) -> Result<Measured> {
    let instances = bench.count(INSTANCES);
    let (mut rates, mut floors, mut sql_floors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cpu, mut floor_cpu) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        fill(bench, instances, with_history).await?;
        let before = bench.cpu();
        let floor = loops::drain(bench, Work::Walks { with_history }).await?;
        let floor_used = bench.cpu().since(before, instances * WALK_STEPS);
        fill(bench, instances, with_history).await?;
        let before = bench.cpu();
        let rate = ours(bench, instances).await?;
        let used = bench.cpu().since(before, instances * WALK_STEPS);
        fill(bench, instances, with_history).await?;
        let sql_floor = floors::sql_chain(bench, instances, with_history).await?;
        say(&format!(
            "  round {round}: {rate:.0} steps/s with {used}; bare loop {floor:.0} with {floor_used}; SQL alone {sql_floor:.0}"
        ));
        cpu.push(used);
        floor_cpu.push(floor_used);
        rates.push(rate);
        floors.push(floor);
        sql_floors.push(sql_floor);
    }
    let (name, kind) = if with_history {
        ("chain_history", loops::HISTORY_KIND)
    } else {
        ("chain", loops::KIND)
    };
    Ok(
        Measured::new(name, "steps/s", median(&rates), median(&floors), kind)
            .with("history", if with_history { "all" } else { "off" })
            .with("sql_floor", median(&sql_floors).round())
            .with("instances", instances)
            .with("steps", WALK_STEPS)
            .with("cpu_us", Used::medians(&cpu))
            .with("floor_cpu_us", Used::medians(&floor_cpu))
            .with("best", rates.iter().copied().fold(0.0, f64::max).round()),
    )
}

async fn fill(bench: &Bench, instances: u64, with_history: bool) -> Result<()> {
    bench.empty(SCHEMA).await?;
    bench.fill_walks(SCHEMA, instances, with_history).await
}

/// Measures an engine and returns steps per second. Neither this rate nor the floor counts the last
/// commit of each walk (a machine that repeats its step), although that commit takes time.
async fn ours(bench: &Bench, instances: u64) -> Result<f64> {
    let probe = Probe::waiting_for(instances * (WALK_STEPS + 1));
    let mut engine = bench.start_engine(SCHEMA, &probe).await?;
    engine.until(probe.all()).await?;
    bench.all_settled(SCHEMA).await?;
    let took = probe.first().elapsed();
    engine.stop().await?;
    Ok((instances * WALK_STEPS) as f64 / took.as_secs_f64())
}
