//! Measures appends to the event log: of one event and of a hundred events, by one process and by
//! several processes, to one tenant and to many tenants. The module `follow` measures a projection
//! of the log.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;
use gen_durable::{Client, Event};
use serde::{Deserialize, Serialize};

use super::follow;
use crate::{
    bench::{Bench, SCHEMA, say},
    caller::{self, Calls},
    floors,
    report::Measured,
    statistics::{median, rounded},
};

const CALLERS: usize = 10;
const PROCESSES: usize = 8;
const LASTING: Duration = Duration::from_secs(3);
const HUNDREDS: u64 = 300;
const MANY: u64 = 1_000;
const FLOOR: &str = "INSERT of one event under the lock of its tenant's head, 10 connections, one tenant, tokio-postgres";

/// The event that the bench appends to the log.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sale {
    pub(crate) n: u64,
    pub(crate) at_nanos: u64,
}
impl Event for Sale {
    const NAME: &'static str = "sale";
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let table = format!(
        "create table if not exists {SCHEMA}.bench_sums (tenant text, generation int, key bigint, count bigint, last bigint,
            primary key (tenant, generation, key))"
    );
    bench.sql.batch_execute(&table).await?;
    let lasting = bench.duration(LASTING);
    // Measures appends to one tenant and to many tenants, each alternately with its floor (appends
    // in plain SQL).
    let (mut one, mut many) = (Appends::default(), Appends::default());
    for round in 1..=bench.rounds {
        one.measure(bench, round, 1).await?;
        many.measure(bench, round, MANY).await?;
    }
    let mut measured = Measured::new(
        "projections",
        "events/s",
        median(&one.rates),
        median(&one.floors),
        FLOOR,
    )
    .with("callers", CALLERS)
    .with("processes", PROCESSES)
    .with(
        "append_1000_tenants_floor",
        rounded(median(&many.floors), 0),
    )
    .with(
        "append_1000_tenants_ratio",
        rounded(median(&many.rates) / median(&many.floors), 3),
    );
    for (tenants, alone, together) in [
        (1, "append_1_tenant", "append_1_tenant_8_processes"),
        (10, "append_10_tenants", "append_10_tenants_8_processes"),
        (
            MANY,
            "append_1000_tenants",
            "append_1000_tenants_8_processes",
        ),
    ] {
        empty(bench).await?;
        let rate = append(&Client::new(bench.pool(SCHEMA).await?), tenants, lasting).await?;
        let rates = by_processes(bench, tenants, lasting).await?;
        say(&format!(
            "  {tenants} tenants: {rate:.0} events/s, by {PROCESSES} processes {rates:.0}"
        ));
        measured = measured
            .with(alone, rounded(rate, 0))
            .with(together, rounded(rates, 0));
    }
    empty(bench).await?;
    let hundred = hundreds(bench).await?;
    say(&format!("  a hundred a transaction: {hundred:.0} events/s"));
    let measured =
        follow::measure(bench, measured.with("append_hundred", rounded(hundred, 0))).await?;
    empty(bench).await?;
    Ok(measured)
}

/// The rates at which the bench appends single events, one rate per round.
#[derive(Default)]
struct Appends {
    rates: Vec<f64>,
    floors: Vec<f64>,
}

impl Appends {
    async fn measure(&mut self, bench: &Bench, round: u32, tenants: u64) -> Result<()> {
        let lasting = bench.duration(LASTING);
        empty(bench).await?;
        let floor = floors::append_one(bench, CALLERS, tenants, lasting).await?;
        empty(bench).await?;
        let rate = append(&Client::new(bench.pool(SCHEMA).await?), tenants, lasting).await?;
        say(&format!(
            "  round {round}, {tenants} tenants: {rate:.0} events/s, floor {floor:.0}"
        ));
        self.rates.push(rate);
        self.floors.push(floor);
        Ok(())
    }
}

/// Removes all events, projections and projection runs from the schema of the bench.
pub(super) async fn empty(bench: &Bench) -> Result<()> {
    let text = format!(
        "truncate {SCHEMA}.events, {SCHEMA}.event_heads, {SCHEMA}.event_scans, {SCHEMA}.projections, {SCHEMA}.projection_runs, {SCHEMA}.projection_run_failures, {SCHEMA}.log_walks,
            {SCHEMA}.projection_failures, {SCHEMA}.bench_sums restart identity"
    );
    Ok(bench.sql.batch_execute(&text).await?)
}

/// Appends single events from concurrent callers in this process. Returns events per second.
pub(crate) async fn append(client: &Client, tenants: u64, lasting: Duration) -> Result<f64> {
    let begun = Instant::now();
    let callers = (0..CALLERS).map(|caller| {
        let client = client.clone();
        let calling = async move {
            let mut n = 0;
            while begun.elapsed() < lasting {
                let tenant = format!("tenant {}", (n * 7 + caller as u64 * 131) % tenants);
                client.record(&tenant, Sale { n, at_nanos: 0 }).await?;
                n += 1;
            }
            anyhow::Ok(n)
        };
        async move { tokio::spawn(calling).await? }
    });
    let events: u64 = try_join_all(callers).await?.iter().sum();
    Ok(events as f64 / begun.elapsed().as_secs_f64())
}

async fn by_processes(bench: &Bench, tenants: u64, lasting: Duration) -> Result<f64> {
    let task = || Calls {
        url: bench.url.clone(),
        schema: SCHEMA.to_owned(),
        count: tenants,
        pause_ms: u64::try_from(lasting.as_millis()).unwrap_or(u64::MAX),
        append: true,
    };
    let all = (0..PROCESSES).map(|_| async {
        let task = task();
        caller::from_another_process(bench.caller.as_deref(), &task).await
    });
    let calls = try_join_all(all).await?;
    let rate = |call: &caller::Called| {
        call.n as f64 / (call.committed.saturating_sub(call.called) as f64 / 1e9).max(1e-3)
    };
    Ok(calls.iter().flatten().map(rate).sum())
}

async fn hundreds(bench: &Bench) -> Result<f64> {
    let client = Client::new(bench.pool(SCHEMA).await?);
    let batches = bench.count(HUNDREDS);
    let begun = Instant::now();
    for _ in 0..batches {
        client
            .record_all("tenant 0", (0..100).map(|n| Sale { n, at_nanos: 0 }))
            .await?;
    }
    Ok((batches * 100) as f64 / begun.elapsed().as_secs_f64())
}
