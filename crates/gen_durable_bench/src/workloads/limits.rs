//! The workload `limits`: what a limit costs the jobs that it does not hold back, and whether more
//! steps run than a limit allows. An observer outside of the engine answers the second question:
//! each step of the check writes its begin and its end into a table of the bench.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use gen_durable::{
    Client, Context, Engine, Job, StepError,
    machine::{Limit, Limits},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};

use crate::{
    bench::{Bench, SCHEMA, connect, say},
    jobs::{Holding, InLimit, LIMIT, Probe},
    report::Measured,
    statistics::{median, rounded},
};

const JOBS: u64 = 50_000;
/// The number of keys of a limit that does not bind.
const KEYS: u64 = 100;
/// The bound of each key beside a saturated key. The other keys have as many jobs, so that they
/// are never full.
const PER_KEY: u32 = 10;
const SATURATED_KEY: u64 = u64::MAX >> 1;
const FILL_BATCH: usize = 1_000;
const POLL: Duration = Duration::from_millis(1);
const FLOOR: &str = "the same jobs without a declared limit";

/// The check: the jobs, their keys, the bounds, and how long a step lasts.
const CHECKED_JOBS: u64 = 4_000;
const CHECKED_KEYS: u64 = 8;
const CHECKED_AT_ONCE: u32 = 20;
const CHECKED_PER_KEY: u32 = 3;
const CHECKED_STEP: Duration = Duration::from_millis(2);
const CHECKED_ENGINES: usize = 2;
const CHECK_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let mut rates = Rates::default();
    let mut checks = Vec::new();
    for round in 1..=bench.rounds {
        rates.measure(bench, round).await?;
        let check = check(bench).await?;
        say(&format!("    {check}"));
        checks.push(check);
    }
    empty(bench).await?;
    let most = |of: fn(&Check) -> i64| checks.iter().map(of).max().unwrap_or_default();
    let measured = rates
        .report(bench.count(JOBS))
        .with(
            "observed_steps",
            checks.iter().map(|c| c.steps).sum::<i64>(),
        )
        .with("observed_at_once_max", most(|check| check.at_once))
        .with("observed_per_key_max", most(|check| check.per_key))
        .with("at_once", CHECKED_AT_ONCE)
        .with("per_key", CHECKED_PER_KEY);
    Ok(measured.with_headline("over_admissions", most(Check::over_admissions)))
}

/// Jobs per second of each case, one value per round.
#[derive(Default)]
struct Rates {
    /// No limit is declared.
    without: Vec<f64>,
    /// A limit is declared, and no job takes it.
    declared: Vec<f64>,
    /// Each job takes a limit that has a bound in total.
    total: Vec<f64>,
    /// Each job takes a limit that has a bound in total and one for each key.
    unbinding: Vec<f64>,
    /// Jobs of keys that are never full.
    alone: Vec<f64>,
    /// The same jobs, alternating with as many jobs of a saturated key.
    beside: Vec<f64>,
    /// The same jobs, while as many jobs of a saturated key wait for their limit.
    beside_waiting: Vec<f64>,
}

impl Rates {
    async fn measure(&mut self, bench: &Bench, round: u32) -> Result<()> {
        let jobs = bench.count(JOBS);
        let bound = || Limit::new(LIMIT).at_once(1_000_000);
        let both = || bound().per_key(100_000);
        for (rates, limit, takes) in [
            (&mut self.without, None, false),
            (&mut self.declared, Some(both()), false),
            (&mut self.total, Some(bound()), true),
            (&mut self.unbinding, Some(both()), true),
        ] {
            empty(bench).await?;
            let client = Client::new(bench.pool(SCHEMA).await?);
            let job = |n| InLimit {
                key: takes.then_some(n % KEYS),
            };
            fill(bench, &client, (0..jobs).map(job)).await?;
            rates.push(drain(bench, jobs, limit).await?);
        }
        for (rates, beside) in [
            (&mut self.alone, Beside::Nothing),
            (&mut self.beside, Beside::Arriving),
            (&mut self.beside_waiting, Beside::Waiting),
        ] {
            rates.push(others(bench, jobs, beside).await?);
        }
        let last = |rates: &[f64]| rates.last().copied().unwrap_or_default();
        say(&format!(
            "  round {round}: {:.0} jobs/s without a limit, {:.0} with one that no job takes, {:.0} with a bound in total, {:.0} also for each key",
            last(&self.without),
            last(&self.declared),
            last(&self.total),
            last(&self.unbinding)
        ));
        say(&format!(
            "    other keys: {:.0} jobs/s alone, {:.0} with arrivals of a saturated key, {:.0} while they wait",
            last(&self.alone),
            last(&self.beside),
            last(&self.beside_waiting)
        ));
        Ok(())
    }

    fn report(&self, jobs: u64) -> Measured {
        let rate = |rates: &[f64]| median(rates).round();
        let over = |rates: &[f64], other: &[f64]| rounded(median(rates) / median(other), 3);
        let (unbinding, without) = (median(&self.unbinding), median(&self.without));
        Measured::new("limits", "jobs/s", unbinding, without, FLOOR)
            .with("jobs", jobs)
            .with("without", rate(&self.without))
            .with("declared", rate(&self.declared))
            .with("unbinding_total", rate(&self.total))
            .with("unbinding", rate(&self.unbinding))
            .with("alone", rate(&self.alone))
            .with("beside", rate(&self.beside))
            .with("beside_waiting", rate(&self.beside_waiting))
            .with_headline("declared_over_without", over(&self.declared, &self.without))
            .with_headline(
                "unbinding_total_over_without",
                over(&self.total, &self.without),
            )
            .with_headline(
                "unbinding_over_without",
                over(&self.unbinding, &self.without),
            )
            .with_headline("others_over_alone", over(&self.beside, &self.alone))
            .with_headline(
                "others_over_alone_waiting",
                over(&self.beside_waiting, &self.alone),
            )
    }
}

/// Removes all instances, and the limits with all that the engine knows about them.
async fn empty(bench: &Bench) -> Result<()> {
    bench.empty(SCHEMA).await?;
    let text = format!(
        "truncate {SCHEMA}.limits, {SCHEMA}.limit_keys, {SCHEMA}.limit_locks, {SCHEMA}.limit_tokens, {SCHEMA}.limit_holds, {SCHEMA}.limit_backlog"
    );
    Ok(bench.sql.batch_execute(&text).await?)
}

/// Enqueues jobs as an application does, because an enqueue computes the limits of the first step.
async fn fill<J>(bench: &Bench, client: &Client, jobs: impl Iterator<Item = J>) -> Result<()>
where
    J: Job,
{
    let mut jobs = jobs.peekable();
    while jobs.peek().is_some() {
        client.enqueue_all(jobs.by_ref().take(FILL_BATCH)).await?;
    }
    bench.at_rest(&format!("{SCHEMA}.instances")).await
}

/// Waits until no row meets this condition.
async fn until_none(bench: &Bench, condition: &str) -> Result<()> {
    let found = format!("select exists (select from {SCHEMA}.instances where {condition})");
    let found = bench.sql.prepare(&found).await?;
    while bench.sql.query_one(&found, &[]).await?.try_get(0)? {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Starts an engine and waits until it has settled all jobs that hold no slot for a time. Returns
/// jobs per second, from the start of the first step to the commit of the last step.
async fn drain(bench: &Bench, jobs: u64, limit: Option<Limit>) -> Result<f64> {
    let probe = Probe::waiting_for(jobs);
    let mut engine = bench.start_limited(SCHEMA, &probe, limit).await?;
    engine.until(probe.all()).await?;
    let open = format!("machine = '{}' and settled_at is null", InLimit::NAME);
    engine.until(until_none(bench, &open)).await??;
    let took = probe.first().elapsed();
    engine.stop().await?;
    Ok(jobs as f64 / took.as_secs_f64())
}

/// What the saturated key does while the bench measures the other keys.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// Its jobs are in the backlog, alternating with the others, so the engine has yet to find that
    /// they may not begin.
    Arriving,
    /// Its jobs wait for their limit.
    Waiting,
}

async fn others(bench: &Bench, jobs: u64, beside: Beside) -> Result<f64> {
    empty(bench).await?;
    let limit = Limit::new(LIMIT).per_key(PER_KEY);
    let client = Client::new(bench.pool(SCHEMA).await?);
    let keys = (jobs / u64::from(PER_KEY)).max(1);
    let other = |n| InLimit {
        key: Some(n % keys),
    };
    let saturated = || Holding { key: SATURATED_KEY };
    if beside == Beside::Waiting {
        fill(bench, &client, (0..jobs).map(|_| saturated())).await?;
        let probe = Probe::waiting_for(jobs);
        let mut engine = bench
            .start_limited(SCHEMA, &probe, Some(limit.clone()))
            .await?;
        engine
            .until(until_none(bench, "status = 'runnable'"))
            .await??;
        engine.stop().await?;
    }
    if beside == Beside::Arriving {
        let mut left = 0..jobs;
        while !left.is_empty() {
            let batch: Vec<u64> = left.by_ref().take(FILL_BATCH / 10).collect();
            let held = batch.iter().map(|_| saturated());
            client.enqueue_all(held).await?;
            client.enqueue_all(batch.iter().copied().map(other)).await?;
        }
        bench.at_rest(&format!("{SCHEMA}.instances")).await?;
    } else {
        fill(bench, &client, (0..jobs).map(other)).await?;
    }
    drain(bench, jobs, Some(limit)).await
}

/// A job of the check.
#[derive(Serialize, Deserialize)]
struct CheckedJob {
    key: u64,
}

impl Job for CheckedJob {
    const NAME: &'static str = "observed";
    type App = Arc<Observer>;
    type Output = ();
    fn limits(&self) -> Limits {
        Limits::of(LIMIT).key(self.key)
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        let observer = cx.app();
        let connection = observer.take().await?;
        let insert = format!("insert into {SCHEMA}.bench_observed (key) values ($1) returning n");
        let key = i64::try_from(self.key)?;
        let n: i64 = connection.query_one(&insert, &[&key]).await?.try_get(0)?;
        tokio::time::sleep(CHECKED_STEP).await;
        let update =
            format!("update {SCHEMA}.bench_observed set ended_at = clock_timestamp() where n = $1");
        connection.execute(&update, &[&n]).await?;
        observer.give_back(connection);
        Ok(())
    }
}

/// The connections with which steps of the check write their begin and their end. A step has a
/// connection for itself.
struct Observer {
    url: String,
    idle: Mutex<Vec<tokio_postgres::Client>>,
    ended: AtomicU64,
    wanted: u64,
    all_ended: Notify,
}

impl Observer {
    async fn take(&self) -> Result<tokio_postgres::Client, StepError> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        match idle {
            Some(connection) => Ok(connection),
            None => {
                let connected = connect(&self.url).await;
                Ok(connected.map_err(|error| format!("{error:#}"))?)
            }
        }
    }

    fn give_back(&self, connection: tokio_postgres::Client) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(connection);
        let ended = &self.ended;
        if ended.fetch_add(1, Ordering::Relaxed) + 1 >= self.wanted {
            self.all_ended.notify_one();
        }
    }
}

/// What the observer has seen in one round.
struct Check {
    steps: i64,
    /// The largest number of steps that ran at the same time.
    at_once: i64,
    /// The largest number of steps with the same key that ran at the same time.
    per_key: i64,
}

impl Check {
    /// Returns by how many steps a bound was exceeded.
    fn over_admissions(&self) -> i64 {
        let total = self.at_once - i64::from(CHECKED_AT_ONCE);
        total.max(self.per_key - i64::from(CHECKED_PER_KEY)).max(0)
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "observed {} steps: at most {} of {CHECKED_AT_ONCE} at once, {} of {CHECKED_PER_KEY} with the same key",
            self.steps, self.at_once, self.per_key
        )
    }
}

/// Runs jobs in two engines under a bound in total and one for each key, and reads from the
/// observer's table how many steps ran at the same time.
async fn check(bench: &Bench) -> Result<Check> {
    empty(bench).await?;
    let jobs = bench.count(CHECKED_JOBS);
    let create = format!(
        "drop table if exists {SCHEMA}.bench_observed;
         create table {SCHEMA}.bench_observed (n bigserial primary key, key bigint not null,
            begun_at timestamptz not null default clock_timestamp(), ended_at timestamptz)"
    );
    bench.sql.batch_execute(&create).await?;
    let client = Client::new(bench.pool(SCHEMA).await?);
    // Half of the jobs have one key, so that its bound and the bound in total are both reached.
    let all = (0..jobs).map(|n| CheckedJob {
        key: n % 2 * (1 + n / 2 % (CHECKED_KEYS - 1)),
    });
    fill(bench, &client, all).await?;
    let observer = Arc::new(Observer {
        url: bench.url.clone(),
        idle: Mutex::default(),
        ended: 0.into(),
        wanted: jobs,
        all_ended: Notify::new(),
    });
    let (mut stops, mut engines) = (Vec::new(), Vec::new());
    for _ in 0..CHECKED_ENGINES {
        let limit = Limit::new(LIMIT).at_once(CHECKED_AT_ONCE);
        let engine = Engine::builder(bench.pool(SCHEMA).await?, observer.clone())
            .register::<CheckedJob>()
            .limit(limit.per_key(CHECKED_PER_KEY))
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        engines.push(tokio::spawn(engine.run(async { drop(stopped.await) })));
    }
    let all_ended = observer.all_ended.notified();
    tokio::time::timeout(CHECK_TIMEOUT, all_ended).await?;
    until_none(bench, "settled_at is null").await?;
    drop(stops);
    for engine in engines {
        engine.await??;
    }
    read(bench).await
}

/// Reads the observer's table. A step without an end counts until the end of the check.
async fn read(bench: &Bench) -> Result<Check> {
    let text = format!(
        "with mark as (
            select key, begun_at as at, 1 as change from {SCHEMA}.bench_observed
            union all select key, coalesce(ended_at, 'infinity'), -1 from {SCHEMA}.bench_observed
         ), running as (
            select sum(change) over (order by at, change rows unbounded preceding) as in_total,
                sum(change) over (partition by key order by at, change rows unbounded preceding) as of_key
            from mark
         )
         select (select count(*) from {SCHEMA}.bench_observed), coalesce(max(in_total), 0)::bigint, coalesce(max(of_key), 0)::bigint
         from running"
    );
    let row = bench.sql.query_one(&text, &[]).await?;
    let check = Check {
        steps: row.try_get(0)?,
        at_once: row.try_get(1)?,
        per_key: row.try_get(2)?,
    };
    let drop_table = format!("drop table {SCHEMA}.bench_observed");
    bench.sql.batch_execute(&drop_table).await?;
    Ok(check)
}
