//! The workload `pickup`: measures the time from the commit of an enqueue to the start of the step
//! on an idle engine. The enqueue comes from the same process, from another process, or from
//! another process after an idle period. The workload also measures the load of the idle engine on
//! Postgres.

use std::{collections::HashMap, time::Duration};

use anyhow::Result;

use crate::{
    bench::{Bench, SCHEMA, say},
    caller::{Called, Calls, from_another_process, ping},
    floors,
    jobs::Probe,
    process,
    report::Measured,
    statistics::{percentile, rounded},
};

const PINGS: u64 = 200;
const PAUSE: Duration = Duration::from_millis(50);
/// The idle period of the engine before an enqueue (with `--long` and without), and the number of
/// repetitions.
const QUIET: Duration = Duration::from_secs(62);
const QUIET_SHORT: Duration = Duration::from_secs(6);
const QUIET_TIMES: u32 = 3;
/// The time over which the bench measures the load of an idle engine, at the end of the idle
/// period.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_SHORT: Duration = Duration::from_secs(5);
const FLOOR: &str = "one plain claim of one row, from its sending to its answer, tokio-postgres";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.empty(SCHEMA).await?;
    let pings = bench.count(PINGS).max(5);
    let floor = floors::claim_one(bench, pings).await?;
    let same = same_process(bench, pings).await?;
    say(&format!("  same process: {same}"));
    let other = other_process(bench, pings).await?;
    say(&format!("  other process: {other}"));
    let quiet = after_quiet(bench).await?;
    let idle = &quiet.idle;
    say(&format!(
        "  first after {:?}: {}; idle: {:.1} statements/s, {:.2} % of a core in Postgres, {:.2} % here",
        quiet.after, quiet.pickup, idle.statements, idle.postgres_percent, idle.own_percent
    ));
    Ok(
        Measured::new("pickup", "ms", same.p50, percentile(&floor, 50.0), FLOOR)
            .with("same_process_p50_ms", same.p50)
            .with("same_process_p99_ms", same.p99)
            .with("same_process_from_call_p50_ms", same.from_call_p50)
            .with("other_process_p50_ms", other.p50)
            .with("other_process_p99_ms", other.p99)
            .with("other_process_from_call_p50_ms", other.from_call_p50)
            .with("after_quiet_p50_ms", quiet.pickup.p50)
            .with("after_quiet_max_ms", quiet.pickup.max)
            .with("quiet_seconds", rounded(quiet.after.as_secs_f64(), 1))
            .with("idle_statements_per_second", rounded(idle.statements, 1))
            .with(
                "idle_postgres_cpu_percent",
                rounded(idle.postgres_percent, 2),
            )
            .with("idle_own_cpu_percent", rounded(idle.own_percent, 2))
            .with("busy_statements_per_second", rounded(same.statements, 0)),
    )
}

/// Percentiles of the time from the commit of an enqueue to the start of the step of the enqueued
/// job, in milliseconds.
struct Pickup {
    p50: f64,
    p99: f64,
    max: f64,
    /// The median of the milliseconds from the call of an enqueue, before its commit, to the start
    /// of the step of the enqueued job.
    from_call_p50: f64,
    /// The number of transactions per second in the database during the measurement.
    statements: f64,
}

impl Pickup {
    fn of(calls: &[Called], started: &[(u64, u64)], statements: f64) -> Pickup {
        let started: HashMap<u64, u64> = started.iter().copied().collect();
        let millis = |from: fn(&Called) -> u64| -> Vec<f64> {
            let of_one = |call: &Called| {
                started
                    .get(&call.n)
                    .map(|at| at.saturating_sub(from(call)) as f64 / 1e6)
            };
            calls.iter().filter_map(of_one).collect()
        };
        // A step may start before the caller of the enqueue gets the confirmation of the commit.
        // The time from commit to start then counts as zero.
        let (committed, called) = (millis(|call| call.committed), millis(|call| call.called));
        let at = |percent| rounded(percentile(&committed, percent), 3);
        let from_call_p50 = rounded(percentile(&called, 50.0), 3);
        Pickup {
            p50: at(50.0),
            p99: at(99.0),
            max: at(100.0),
            from_call_p50,
            statements,
        }
    }
}

impl std::fmt::Display for Pickup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms",
            self.p50, self.p99, self.max
        )
    }
}

async fn same_process(bench: &Bench, pings: u64) -> Result<Pickup> {
    let probe = Probe::waiting_for(pings);
    let mut engine = bench.start_engine(SCHEMA, &probe).await?;
    let (before, begun) = (transactions(bench).await?, std::time::Instant::now());
    let calls = ping(&engine.client, pings, PAUSE).await?;
    engine.until(probe.all()).await?;
    let statements = (transactions(bench).await? - before) / begun.elapsed().as_secs_f64();
    engine.stop().await?;
    Ok(Pickup::of(&calls, &probe.started(), statements))
}

async fn other_process(bench: &Bench, pings: u64) -> Result<Pickup> {
    let probe = Probe::waiting_for(pings);
    let mut engine = bench.start_engine(SCHEMA, &probe).await?;
    let calls = from_another_process(bench.caller.as_deref(), &task(bench, pings)).await?;
    engine.until(probe.all()).await?;
    engine.stop().await?;
    Ok(Pickup::of(&calls, &probe.started(), 0.0))
}

fn task(bench: &Bench, count: u64) -> Calls {
    let pause_ms = u64::try_from(PAUSE.as_millis()).unwrap_or_default();
    Calls {
        url: bench.url.clone(),
        schema: SCHEMA.into(),
        count,
        pause_ms,
        append: false,
    }
}

struct Quiet {
    pickup: Pickup,
    after: Duration,
    idle: Idle,
}

/// The load of an idle engine, which has no instances to run.
struct Idle {
    statements: f64,
    postgres_percent: f64,
    own_percent: f64,
}

async fn after_quiet(bench: &Bench) -> Result<Quiet> {
    let (quiet, idle) = if bench.long {
        (QUIET, IDLE)
    } else {
        (QUIET_SHORT, IDLE_SHORT)
    };
    let (quiet, lasting) = (bench.duration(quiet), bench.duration(idle));
    let times = if bench.long { QUIET_TIMES } else { 1 };
    let (mut calls, mut started, mut idle) = (Vec::new(), Vec::new(), None);
    for time in 0..times {
        let probe = Probe::waiting_for(1);
        let mut engine = bench.start_engine(SCHEMA, &probe).await?;
        tokio::time::sleep(quiet).await;
        idle = Some(cost(bench, lasting).await?);
        let called = from_another_process(bench.caller.as_deref(), &task(bench, 1)).await?;
        engine.until(probe.all()).await?;
        engine.stop().await?;
        // Replaces the number of the `Ping` by the number of the repetition, because the calling
        // process gives its only `Ping` the same number in every repetition.
        calls.extend(called.into_iter().map(|call| Called {
            n: time.into(),
            ..call
        }));
        started.extend(probe.started().into_iter().map(|(_, at)| (time.into(), at)));
    }
    let idle = idle.unwrap_or(Idle {
        statements: 0.0,
        postgres_percent: 0.0,
        own_percent: 0.0,
    });
    Ok(Quiet {
        pickup: Pickup::of(&calls, &started, 0.0),
        after: quiet + lasting,
        idle,
    })
}

async fn cost(bench: &Bench, lasting: Duration) -> Result<Idle> {
    let backends = bench
        .sql
        .query(
            "select pid from pg_stat_activity where application_name = 'gen_durable' order by pid",
            &[],
        )
        .await?;
    let backends = backends
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<Vec<i32>, _>>()?;
    let own = [i32::try_from(std::process::id())?];
    let before = (
        transactions(bench).await?,
        process::cpu_seconds(&backends),
        process::cpu_seconds(&own),
    );
    tokio::time::sleep(lasting).await;
    let after = (
        transactions(bench).await?,
        process::cpu_seconds(&backends),
        process::cpu_seconds(&own),
    );
    let seconds = lasting.as_secs_f64();
    Ok(Idle {
        statements: (after.0 - before.0 - 1.0).max(0.0) / seconds,
        postgres_percent: (after.1 - before.1) / seconds * 100.0,
        own_percent: (after.2 - before.2) / seconds * 100.0,
    })
}

/// Returns the number of transactions that Postgres has counted in the database of the bench. Each
/// statement of the engine is one transaction.
async fn transactions(bench: &Bench) -> Result<f64> {
    let row = bench
        .sql
        .query_one(
            "select (xact_commit + xact_rollback)::float8 from pg_stat_database where datname = current_database()",
            &[],
        )
        .await?;
    Ok(row.try_get(0)?)
}
