//! Measures the time from the enqueue of a parent with many children until the step after its join
//! has run.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::{
    bench::{Bench, SCHEMA, say},
    jobs::{FanOut, Probe},
    report::Measured,
    statistics::median,
};

const CHILDREN: u64 = 1_000;
const CHILDREN_LONG: u64 = 100_000;
const FLOOR: &str =
    "INSERT of as many rows, claimed and ended by one UPDATE each in batches of 500, SQL alone";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let few = one_size(bench, bench.count(CHILDREN)).await?;
    let measured =
        Measured::new("fan_out", "ms", few.ours, few.floor, FLOOR).with("children", few.children);
    if !bench.long {
        return Ok(measured);
    }
    let many = one_size(bench, bench.count(CHILDREN_LONG)).await?;
    Ok(measured
        .with("large_children", many.children)
        .with("large_ms", many.ours.round())
        .with("large_floor_ms", many.floor.round()))
}

struct Size {
    children: u64,
    ours: f64,
    floor: f64,
}

async fn one_size(bench: &Bench, children: u64) -> Result<Size> {
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        bench.empty(SCHEMA).await?;
        floors.push(floor(bench, children).await?);
        bench.empty(SCHEMA).await?;
        let probe = Probe::waiting_for(children + 2);
        let mut engine = bench.start_engine(SCHEMA, &probe).await?;
        bench.ready(&engine).await?;
        let begun = Instant::now();
        engine.client.enqueue(FanOut { children }).await?;
        engine.until(probe.all()).await?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        bench.all_settled(SCHEMA).await?;
        engine.stop().await?;
        ours.push(took);
        say(&format!(
            "  round {round}: {children} children in {took:.0} ms"
        ));
    }
    Ok(Size {
        children,
        ours: median(&ours),
        floor: median(&floors),
    })
}

async fn floor(bench: &Bench, children: u64) -> Result<f64> {
    let count = i64::try_from(children).context("too many children")?;
    let begun = Instant::now();
    let insert = format!(
        "insert into {SCHEMA}.instances (machine, step, state) select 'floor', 'run', '1' from generate_series(1, $1::bigint)"
    );
    bench.sql.execute(&insert, &[&count]).await?;
    let claim = format!(
        "update {SCHEMA}.instances set status = 'executing', locked_by = gen_random_uuid()
         where id in (select id from {SCHEMA}.instances where status = 'runnable' and crash_count < 2 and not partition_waiting and queue = 'default'
                      and priority = 0 order by eligible_at, id limit 500) returning id"
    );
    let claim = bench.sql.prepare(&claim).await?;
    let end = format!(
        "update {SCHEMA}.instances set status = 'done', locked_by = null, settled_at = statement_timestamp() where id = any ($1)"
    );
    let end = bench.sql.prepare(&end).await?;
    loop {
        let ids: Vec<i64> = bench
            .sql
            .query(&claim, &[])
            .await?
            .iter()
            .map(|row| row.get(0))
            .collect();
        if ids.is_empty() {
            return Ok(begun.elapsed().as_secs_f64() * 1e3);
        }
        bench.sql.execute(&end, &[&ids]).await?;
    }
}
