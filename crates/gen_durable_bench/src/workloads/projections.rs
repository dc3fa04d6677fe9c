//! The event log and a projection of it: appends of one event and of a hundred, by one process and by several, to one tenant and to
//! many; a projector with one upsert an event; how far it is behind; a rebuild while events arrive.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures_util::future::try_join_all;
use gen_durable::{Client, Digest, Engine, Event, Projecting, Projection, Recorded, StepError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{
    bench::{Bench, SCHEMA, say},
    caller::{self, Task},
    floors,
    report::Measured,
    statistics::{median, percentile, rounded},
};

const CALLERS: usize = 10;
const PROCESSES: usize = 8;
const LASTING: Duration = Duration::from_secs(3);
const HUNDREDS: u64 = 300;
const PROJECTED: u64 = 50_000;
const REBUILT: u64 = 50_000;
const REBUILT_LONG: u64 = 1_000_000;
const LAG_RATE: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(600);
const FLOOR: &str =
    "INSERT of one event under the lock of its tenant's head, 10 connections, one tenant, tokio-postgres";

/// What is recorded.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sale {
    pub(crate) n: u64,
    pub(crate) at_nanos: u64,
}
impl Event for Sale {
    const NAME: &'static str = "sale";
}

/// A read model with one upsert an event, sent as one statement a batch.
struct Sums;
impl Projection for Sums {
    const NAME: &'static str = "sums";
    const GENERATIONS: bool = true;
    type Events = Sale;
    async fn apply(&self, batch: &[Recorded<Sale>], cx: &mut Projecting<'_>) -> Result<(), StepError> {
        let text = format!(
            "insert into {SCHEMA}.bench_sums as s (tenant, generation, key, count, last)
             select $1, $2, k, count(*), max(p) from unnest($3::bigint[], $4::bigint[]) as x(k, p) group by k
             on conflict (tenant, generation, key) do update set count = s.count + excluded.count, last = excluded.last"
        );
        let keys: Vec<i64> = batch.iter().map(|row| i64::try_from(row.event.n % 1_000).unwrap_or_default()).collect();
        let positions: Vec<i64> = batch.iter().map(|row| row.position).collect();
        cx.tx.execute(&text, &[&cx.tenant, &cx.generation, &keys, &positions]).await?;
        Ok(())
    }
    async fn clear(&self, cx: &mut Projecting<'_>) -> Result<(), StepError> {
        let text = format!("delete from {SCHEMA}.bench_sums where tenant = $1 and generation = $2");
        cx.tx.execute(&text, &[&cx.tenant, &cx.generation]).await?;
        Ok(())
    }
    async fn digest(&self, cx: &mut Projecting<'_>) -> Result<Option<Digest>, StepError> {
        let (tenant, generation) = (cx.tenant.to_owned(), cx.generation);
        let query = format!("select key, count, last from {SCHEMA}.bench_sums where tenant = $1 and generation = $2");
        Ok(Some(cx.digest(&query, &[&tenant, &generation]).await?))
    }
}

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let table = format!(
        "create table if not exists {SCHEMA}.bench_sums (tenant text, generation int, key bigint, count bigint, last bigint,
            primary key (tenant, generation, key))"
    );
    bench.sql.batch_execute(&table).await?;
    let lasting = bench.duration(LASTING);
    let (mut rates, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        empty(bench).await?;
        let floor = floors::append_one(bench, CALLERS, lasting).await?;
        empty(bench).await?;
        let rate = append(&Client::new(bench.pool(SCHEMA).await?), 1, lasting).await?;
        say(&format!("  round {round}: {rate:.0} events/s, floor {floor:.0}"));
        rates.push(rate);
        floors.push(floor);
    }
    let mut measured = Measured::new("projections", "events/s", median(&rates), median(&floors), FLOOR)
        .with("callers", CALLERS)
        .with("processes", PROCESSES);
    for (tenants, alone, together) in [
        (1, "append_1_tenant", "append_1_tenant_8_processes"),
        (10, "append_10_tenants", "append_10_tenants_8_processes"),
        (1_000, "append_1000_tenants", "append_1000_tenants_8_processes"),
    ] {
        empty(bench).await?;
        let rate = append(&Client::new(bench.pool(SCHEMA).await?), tenants, lasting).await?;
        let rates = by_processes(bench, tenants, lasting).await?;
        say(&format!("  {tenants} tenants: {rate:.0} events/s, by {PROCESSES} processes {rates:.0}"));
        measured = measured.with(alone, rounded(rate, 0)).with(together, rounded(rates, 0));
    }
    empty(bench).await?;
    let hundred = hundreds(bench).await?;
    say(&format!("  a hundred a transaction: {hundred:.0} events/s"));
    let (project, lag_p50, lag_p99, rebuild, pause) = follow(bench).await?;
    say(&format!("  projected {project:.0} events/s, lag p50 {lag_p50:.1} ms, p99 {lag_p99:.1} ms"));
    empty(bench).await?;
    Ok(measured
        .with("append_hundred", rounded(hundred, 0))
        .with("project", rounded(project, 0))
        .with("lag_p50_ms", rounded(lag_p50, 2))
        .with("lag_p99_ms", rounded(lag_p99, 2))
        .with("rebuild", rounded(rebuild, 0))
        .with("append_p99_while_rebuilding_ms", rounded(pause, 2)))
}

async fn empty(bench: &Bench) -> Result<()> {
    let text = format!(
        "truncate {SCHEMA}.events, {SCHEMA}.event_heads, {SCHEMA}.event_looks, {SCHEMA}.projections, {SCHEMA}.projection_runs,
            {SCHEMA}.projection_failures, {SCHEMA}.bench_sums restart identity"
    );
    Ok(bench.sql.batch_execute(&text).await?)
}

/// Single events by concurrent callers of one process. Events a second.
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
    let task = || Task {
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
    let rate =
        |call: &caller::Called| call.n as f64 / (call.committed.saturating_sub(call.called) as f64 / 1e9).max(1e-3);
    Ok(calls.iter().flatten().map(rate).sum())
}

async fn hundreds(bench: &Bench) -> Result<f64> {
    let client = Client::new(bench.pool(SCHEMA).await?);
    let batches = bench.count(HUNDREDS);
    let begun = Instant::now();
    for _ in 0..batches {
        client.record_all("tenant 0", (0..100).map(|n| Sale { n, at_nanos: 0 })).await?;
    }
    Ok((batches * 100) as f64 / begun.elapsed().as_secs_f64())
}

/// A projection's own numbers: catching up, following, being rebuilt while events arrive.
async fn follow(bench: &Bench) -> Result<(f64, f64, f64, f64, f64)> {
    empty(bench).await?;
    let count = bench.count(if bench.long { REBUILT_LONG } else { REBUILT.max(PROJECTED) });
    let fill = format!(
        "insert into {SCHEMA}.event_heads values ('t');
         insert into {SCHEMA}.events (tenant, name, payload, position)
         select 't', 'sale', jsonb_build_object('n', n, 'at_nanos', 0), n from generate_series(1, {count}) n;
         analyze {SCHEMA}.events"
    );
    bench.sql.batch_execute(&fill).await?;
    let engine = Engine::builder(bench.pool(SCHEMA).await?, ()).project(Sums).build()?;
    let client = engine.client();
    let (stop, stopped) = oneshot::channel::<()>();
    let begun = Instant::now();
    let running = tokio::spawn(engine.run(async move { drop(stopped.await) }));
    let height = i64::try_from(count)?;
    if client.sync::<Sums>("t", height, PATIENCE).await? < height {
        bail!("the projection did not catch up within {PATIENCE:?}");
    }
    let project = count as f64 / begun.elapsed().as_secs_f64();

    let mut lags = Vec::new();
    let pause = Duration::from_secs_f64(1.0 / LAG_RATE as f64);
    let mut every = tokio::time::interval(pause);
    for n in 0..bench.count(3_000).max(50) {
        every.tick().await;
        let position = client.record("t", Sale { n, at_nanos: 0 }).await?;
        // Every tenth is waited for: from its commit to the commit of what follows from it.
        if n % 10 == 0 {
            let committed = Instant::now();
            client.sync::<Sums>("t", position, PATIENCE).await?;
            lags.push(committed.elapsed().as_secs_f64() * 1e3);
        }
    }

    let begun = Instant::now();
    let run = client.projections().rebuild_in_a_shadow("t", "sums").await?;
    let mut appends = Vec::new();
    let mut every = tokio::time::interval(Duration::from_millis(2));
    let took = loop {
        every.tick().await;
        let called = Instant::now();
        client.record("t", Sale { n: 1, at_nanos: 0 }).await?;
        appends.push(called.elapsed().as_secs_f64() * 1e3);
        let state = client.projections().run(run).await?;
        if state.is_over() {
            if state.status != "done" {
                bail!("the rebuild failed: {:?}", state.error);
            }
            break begun.elapsed();
        }
        if begun.elapsed() > PATIENCE {
            bail!("the rebuild did not end within {PATIENCE:?}");
        }
    };
    drop(stop);
    running.await??;
    let rebuild = count as f64 / took.as_secs_f64();
    Ok((project, percentile(&lags, 50.0), percentile(&lags, 99.0), rebuild, percentile(&appends, 99.0)))
}
