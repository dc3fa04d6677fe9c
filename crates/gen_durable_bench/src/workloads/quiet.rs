//! The workload `quiet`: how long the jobs of a quiet key or tenant wait for their start while
//! another key or tenant has very many instances, compared with the same engine without those
//! instances.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use gen_durable::{
    Client, Context, Engine, Job, NewInstance, Queue, StepError,
    machine::{Limit, Limits},
    operate::Operate,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{
    bench::{Bench, SCHEMA, say},
    jobs::LIMIT,
    report::Measured,
    statistics::{median, percentile, rounded},
};

/// The number of instances of the other key or tenant.
const WAITING: u64 = 1_000_000;
/// How many of them the engine itself sets aside. The bench copies their rows.
const SET_ASIDE: u64 = 2_000;
/// The bound of each key, the number of steps at once, and how long a step of the other key or
/// tenant lasts on average.
const PER_KEY: u32 = 10;
const CONCURRENCY: usize = 32;
const STEP: Duration = Duration::from_millis(20);
/// The number of jobs of the quiet key or tenant, and the pause between two of them.
const CALLS: u64 = 500;
const PAUSE: Duration = Duration::from_millis(15);
/// The jobs and tenants with which the bench measures throughput.
const JOBS: u64 = 50_000;
const TENANTS: u64 = 100;
/// The engine runs for this long before the first of them.
const SETTLE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);
const TIMEOUT: Duration = Duration::from_secs(120);
const QUEUE: Queue = Queue::new("bench_fair");
const FLOOR: &str = "the same without the other tenant";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let [mut key_alone, mut key_beside, mut alone, mut beside] = [const { Vec::new() }; 4];
    let (mut plain, mut fair) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        for (waits, of_key, is_beside) in [
            (&mut key_alone, true, false),
            (&mut key_beside, true, true),
            (&mut alone, false, false),
            (&mut beside, false, true),
        ] {
            waits.extend(pickups(bench, of_key, is_beside).await?);
        }
        for (rates, is_fair) in [(&mut plain, false), (&mut fair, true)] {
            rates.push(drain(bench, is_fair).await?);
        }
        say(&format!(
            "  round {round}: {:.0} jobs/s of {TENANTS} tenants in a plain queue, {:.0} in a fair one",
            plain.last().copied().unwrap_or_default(),
            fair.last().copied().unwrap_or_default()
        ));
        say(&format!(
            "  round {round}, p50 and p99 so far: a key alone {}, beside {}; a tenant alone {}, beside {}",
            shown(&key_alone),
            shown(&key_beside),
            shown(&alone),
            shown(&beside)
        ));
    }
    empty(bench).await?;
    let at = |waits: &[f64], percent| rounded(percentile(waits, percent), 3);
    let over =
        |one: &[f64], other: &[f64]| rounded(percentile(one, 99.0) / percentile(other, 99.0), 3);
    let p99 = |waits: &[f64]| percentile(waits, 99.0);
    Ok(
        Measured::new("quiet", "ms", p99(&beside), p99(&alone), FLOOR)
            .with("waiting", bench.count(WAITING))
            .with("quiet_key_alone_p50_ms", at(&key_alone, 50.0))
            .with("quiet_key_alone_p99_ms", at(&key_alone, 99.0))
            .with("quiet_key_beside_p50_ms", at(&key_beside, 50.0))
            .with("quiet_key_beside_p99_ms", at(&key_beside, 99.0))
            .with("quiet_tenant_alone_p50_ms", at(&alone, 50.0))
            .with("quiet_tenant_alone_p99_ms", at(&alone, 99.0))
            .with("quiet_tenant_beside_p50_ms", at(&beside, 50.0))
            .with("quiet_tenant_beside_p99_ms", at(&beside, 99.0))
            .with("plain", median(&plain).round())
            .with("fair", median(&fair).round())
            .with_headline(
                "fair_over_plain",
                rounded(median(&fair) / median(&plain), 3),
            )
            .with_headline("quiet_key_p99_over_alone", over(&key_beside, &key_alone))
            .with_headline("quiet_tenant_p99_over_alone", over(&beside, &alone)),
    )
}

fn shown(waits: &[f64]) -> String {
    format!(
        "{:.1} and {:.1} ms",
        percentile(waits, 50.0),
        percentile(waits, 99.0)
    )
}

/// The starts of the jobs that the bench measures, by their numbers; and the number of steps of the
/// other key or tenant.
#[derive(Default)]
struct StartTimes(Mutex<HashMap<u64, Instant>>, AtomicU64);

impl StartTimes {
    fn of(&self, n: u64) -> Option<Instant> {
        let starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts.get(&n).copied()
    }

    fn first(&self) -> Option<Instant> {
        let starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts.values().min().copied()
    }
}

/// A job of the quiet key or tenant, which has a number, or of the other one.
#[derive(Serialize, Deserialize)]
struct Timed {
    n: Option<u64>,
    key: Option<u64>,
}

impl Job for Timed {
    const NAME: &'static str = "timed";
    const QUEUE: Queue = QUEUE;
    type App = Arc<StartTimes>;
    type Output = ();
    fn limits(&self) -> Limits {
        match self.key {
            Some(key) => Limits::of(LIMIT).key(key),
            None => Limits::none(),
        }
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        match self.n {
            None => {
                // The steps last differently, so that they do not all end at the same time.
                let step = cx.app().1.fetch_add(1, Ordering::Relaxed);
                let part = STEP.mul_f64((step * 617 % 1_000) as f64 / 1e3);
                tokio::time::sleep(STEP / 2 + part).await;
            }
            Some(n) => {
                let starts = &cx.app().0;
                let mut starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
                starts.insert(n, Instant::now());
            }
        }
        Ok(())
    }
}

/// Returns how many jobs of many tenants an engine settles per second.
async fn drain(bench: &Bench, is_fair: bool) -> Result<f64> {
    empty(bench).await?;
    let client = Client::new(bench.pool(SCHEMA).await?);
    let operate = client.operate();
    operate.set_fair(QUEUE.name(), is_fair).await?;
    let jobs = bench.count(JOBS);
    let job = |n| {
        let job = Timed {
            n: Some(n),
            key: None,
        };
        NewInstance::new(job).tenant(format!("tenant {}", n % TENANTS))
    };
    let mut left = 0..jobs;
    while !left.is_empty() {
        client
            .enqueue_all(left.by_ref().take(1_000).map(job))
            .await?;
    }
    bench.at_rest(&format!("{SCHEMA}.instances")).await?;
    let starts = Arc::new(StartTimes::default());
    let builder = Engine::builder(bench.pool(SCHEMA).await?, starts.clone())
        .register::<Timed>()
        .queue(QUEUE, CONCURRENCY);
    let running = run(builder.build()?);
    let open = format!("select exists (select from {SCHEMA}.instances where settled_at is null)");
    while bench.sql.query_one(&open, &[]).await?.try_get(0)? {
        tokio::time::sleep(POLL).await;
    }
    let ended = Instant::now();
    running.stop().await?;
    let first = starts.first().unwrap_or(ended);
    Ok(jobs as f64 / ended.duration_since(first).as_secs_f64())
}

/// Returns the milliseconds from the answer of each enqueue to the start of its step.
async fn pickups(bench: &Bench, of_key: bool, is_beside: bool) -> Result<Vec<f64>> {
    empty(bench).await?;
    // The engine does not know this pool, so the enqueues do not wake its picker: the bench
    // measures what a producer in another process would see.
    let client = Client::new(bench.pool(SCHEMA).await?);
    if is_beside {
        fill(bench, &client, of_key).await?;
    }
    let starts = Arc::new(StartTimes::default());
    let running = start(bench, &starts, of_key).await?;
    tokio::time::sleep(bench.duration(SETTLE)).await;
    let mut waits = Vec::new();
    for n in 0..bench.count(CALLS).max(20) {
        let job = Timed {
            n: Some(n),
            key: of_key.then_some(1),
        };
        let new = NewInstance::new(job).tenant("quiet");
        client.enqueue(new).await?;
        let enqueued = Instant::now();
        let began = async {
            loop {
                match starts.of(n) {
                    Some(begun) => return begun,
                    None => tokio::time::sleep(POLL).await,
                }
            }
        };
        let begun = tokio::time::timeout(TIMEOUT, began).await?;
        waits.push(begun.saturating_duration_since(enqueued).as_secs_f64() * 1e3);
        // The pauses differ, so that they do not keep step with the polls.
        tokio::time::sleep(PAUSE + Duration::from_micros(n * 997 % 10_000)).await;
    }
    running.stop().await?;
    Ok(waits)
}

struct Engines {
    stop: oneshot::Sender<()>,
    engine: tokio::task::JoinHandle<Result<(), gen_durable::Error>>,
}

impl Engines {
    async fn stop(self) -> Result<()> {
        drop(self.stop);
        Ok(self.engine.await??)
    }
}

/// StartTimes an engine with the limit of each key, or with a fair queue.
async fn start(bench: &Bench, starts: &Arc<StartTimes>, of_key: bool) -> Result<Engines> {
    let builder = Engine::builder(bench.pool(SCHEMA).await?, starts.clone())
        .register::<Timed>()
        .queue(QUEUE, CONCURRENCY);
    let builder = if of_key {
        builder.limit(Limit::new(LIMIT).per_key(PER_KEY))
    } else {
        builder.fair(QUEUE)
    };
    Ok(run(builder.build()?))
}

fn run(engine: Engine) -> Engines {
    let (stop, stopped) = oneshot::channel::<()>();
    let engine = engine.run(async { drop(stopped.await) });
    Engines {
        stop,
        engine: tokio::spawn(engine),
    }
}

/// Makes many instances of one key wait for their limit, or many instances of one tenant for a
/// worker.
async fn fill(bench: &Bench, client: &Client, of_key: bool) -> Result<()> {
    let job = || {
        let job = Timed {
            n: None,
            key: of_key.then_some(0),
        };
        NewInstance::new(job).tenant("busy")
    };
    if !of_key {
        Operate::new(bench.pool(SCHEMA).await?)
            .set_fair(QUEUE.name(), true)
            .await?;
    }
    client.enqueue_all((0..SET_ASIDE).map(|_| job())).await?;
    if of_key {
        let running = start(bench, &Arc::default(), of_key).await?;
        let waits = format!(
            "select exists (select from {SCHEMA}.instances where status = 'awaiting_limit')"
        );
        while !bench.sql.query_one(&waits, &[]).await?.try_get(0)? {
            tokio::time::sleep(POLL).await;
        }
        running.stop().await?;
    }
    let status = if of_key { "awaiting_limit" } else { "runnable" };
    let copies = i64::try_from(bench.count(WAITING))?;
    let copy = format!(
        "insert into {SCHEMA}.instances (machine, step, state, queue, tenant, status, fair, limit_group, limit_weight)
         select machine, step, state, queue, tenant, status, fair, limit_group, limit_weight
         from (select * from {SCHEMA}.instances where status = '{status}' limit 1) one, generate_series(1, {copies})"
    );
    bench.sql.batch_execute(&copy).await?;
    bench.at_rest(&format!("{SCHEMA}.instances")).await
}

/// Removes all instances, limits and settings of queues.
async fn empty(bench: &Bench) -> Result<()> {
    bench.empty(SCHEMA).await?;
    let text = format!(
        "truncate {SCHEMA}.queues, {SCHEMA}.limits, {SCHEMA}.limit_keys, {SCHEMA}.limit_locks, {SCHEMA}.limit_tokens, {SCHEMA}.limit_holds, {SCHEMA}.limit_backlog"
    );
    Ok(bench.sql.batch_execute(&text).await?)
}
