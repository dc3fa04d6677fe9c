//! Measures the delay of timers in four cases: this process sets a thousand timers per second;
//! another process sets as many; the engine starts with many pending timers; and many timers are
//! overdue.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{
    bench::{Bench, SCHEMA, say},
    floors,
    jobs::{Alarm, Probe},
    process,
    report::Measured,
    slow::{LOGGED_FROM_MS, Slow},
    statistics::{percentile, rounded},
};

/// The number of timers that become due per second, and the duration of the measurement in seconds.
const PER_SECOND: u64 = 1_000;
const SECONDS: u64 = 30;
const SECONDS_SHORT: u64 = 10;
/// The number of timers in the measurements with pending timers and with overdue timers.
const ROWS: u64 = 1_000_000;
const ROWS_SHORT: u64 = 100_000;
/// The number of timers that the bench inserts for the measurement of memory. It is larger than the
/// number of due times that a worker keeps in memory. These timers are due `NEAR_AHEAD` after the
/// start of the measurement, and the worker must have read their due times `NEAR_SEEN` before the
/// timers are due.
const NEAR: u64 = 100_000;
const NEAR_AHEAD: Duration = Duration::from_secs(8);
const NEAR_AHEAD_MIN: Duration = Duration::from_secs(4);
const NEAR_SEEN: Duration = Duration::from_secs(2);
/// The time over which the bench counts the overdue timers that fire. The time is too short for all
/// overdue timers to fire.
const WATCHED: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(600);
const FLOOR: &str = "one plain claim of one row, from its sending to its answer, tokio-postgres";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.empty(SCHEMA).await?;
    let floor = floors::claim_one(bench, bench.count(200).max(5)).await?;
    let seconds = if bench.long { SECONDS } else { SECONDS_SHORT };
    let count = bench.count(PER_SECOND * seconds).max(20);
    let own = armed_here(bench, count).await?;
    say(&format!("  set by this process: {own}"));
    let other = armed_elsewhere(bench, count).await?;
    say(&format!("  set by another process: {other}"));
    let rows = bench.count(if bench.long { ROWS } else { ROWS_SHORT });
    let pending = bench.pending.unwrap_or(rows);
    let restart = after_a_restart(bench, pending).await?;
    say(&format!(
        "  first fired {:.0} ms after a start, with {pending} pending; {:.1} MB more memory with {} timers due soon",
        restart.first_ms, restart.memory_mb, restart.near
    ));
    let backlog = overdue(bench, rows).await?;
    say(&format!(
        "  with {rows} overdue: {:.0} of them a second; new timers: {}",
        backlog.per_second, backlog.fresh
    ));
    say(&match &backlog.longest {
        Some(slow) => format!(
            "  the longest statement during this time: {:.0} ms, {}",
            slow.milliseconds, slow.text
        ),
        None => {
            format!("  no statement of {LOGGED_FROM_MS} ms or more was logged during this time")
        }
    });
    Ok(Measured::new(
        "timers",
        "ms",
        own.p50.max(0.001),
        percentile(&floor, 50.0),
        FLOOR,
    )
    .with("count", count)
    .with("armed_here_p50_ms", own.p50)
    .with("armed_here_p99_ms", own.p99)
    .with("armed_elsewhere_p50_ms", other.p50)
    .with("armed_elsewhere_p99_ms", other.p99)
    .with("pending", pending)
    .with("first_after_start_ms", rounded(restart.first_ms, 1))
    .with("memory_more_mb", rounded(restart.memory_mb, 1))
    .with("overdue", rows)
    .with("overdue_per_second", rounded(backlog.per_second, 0))
    .with(
        "overdue_longest_statement_ms",
        backlog.longest.map(|slow| rounded(slow.milliseconds, 1)),
    )
    .with("fresh_while_overdue_p50_ms", backlog.fresh.p50)
    .with("fresh_while_overdue_p99_ms", backlog.fresh.p99))
}

/// The delays of timers in milliseconds by the clock of the database. A timer that fired early
/// would have a negative delay.
struct Lateness {
    p50: f64,
    p99: f64,
    most: f64,
}

impl std::fmt::Display for Lateness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms late",
            self.p50, self.p99, self.most
        )
    }
}

/// Waits until the timers of all alarms with this name have fired, and returns the delays of these
/// timers.
async fn lateness(bench: &Bench, name: &str, count: u64) -> Result<Lateness> {
    let fired = format!(
        "select count(*) from {SCHEMA}.instances where state->>'name' = $1 and step = 'late'"
    );
    let begun = Instant::now();
    while bench
        .sql
        .query_one(&fired, &[&name])
        .await?
        .try_get::<_, i64>(0)?
        < i64::try_from(count)?
    {
        if begun.elapsed() > TIMEOUT {
            bail!("not all timers fired within {TIMEOUT:?}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let late = format!(
        "select extract(epoch from eligible_at - (state->>'due')::timestamptz)::float8 * 1000 from {SCHEMA}.instances
         where state->>'name' = $1"
    );
    let late = bench.sql.query(&late, &[&name]).await?;
    let late = late
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<Vec<f64>, _>>()?;
    if late.iter().any(|late| *late < 0.0) {
        bail!("a timer fired before its due time");
    }
    let at = |percent| rounded(percentile(&late, percent), 3);
    Ok(Lateness {
        p50: at(50.0),
        p99: at(99.0),
        most: at(100.0),
    })
}

async fn now(bench: &Bench) -> Result<gen_durable::schedule::Timestamp> {
    let text: String = bench
        .sql
        .query_one("select to_char(statement_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')", &[])
        .await?
        .try_get(0)?;
    Ok(text.parse()?)
}

async fn armed_here(bench: &Bench, count: u64) -> Result<Lateness> {
    let probe = Probe::waiting_for(u64::MAX);
    let engine = bench.start_engine(SCHEMA, &probe).await?;
    bench.ready(&engine).await?;
    // Sets the first deadline late enough for the engine to run the first step of all alarms before
    // it.
    let first = now(bench).await? + Duration::from_secs(2 + count / 1_000);
    let due = |n: u64| first + Duration::from_millis(n);
    let alarms = (0..count).map(|n| Alarm {
        name: "here".into(),
        due: due(n),
    });
    engine.client.enqueue_all(alarms).await?;
    let late = lateness(bench, "here", count).await?;
    engine.stop().await?;
    Ok(late)
}

/// Inserts alarms (machines that wait until a deadline) that already wait, as if another process
/// had run their first step. `from` is the time from now to the first deadline, and `apart_ms` is
/// the time between two deadlines.
async fn park(bench: &Bench, name: &str, count: u64, from: &str, apart_ms: f64) -> Result<()> {
    let park = format!(
        "insert into {SCHEMA}.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
         select 'alarm', 'dismissed', jsonb_build_object('name', $1::text, 'due', to_char(due at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')),
             'awaiting_signal', '{{dismiss}}', due, 'late'
         from (select statement_timestamp() + $3::text::interval + g * $4::float8 * interval '1 ms' as due
               from generate_series(1, $2::bigint) g) x"
    );
    bench
        .sql
        .execute(&park, &[&name, &i64::try_from(count)?, &from, &apart_ms])
        .await?;
    Ok(())
}

async fn armed_elsewhere(bench: &Bench, count: u64) -> Result<Lateness> {
    let probe = Probe::waiting_for(u64::MAX);
    let engine = bench.start_engine(SCHEMA, &probe).await?;
    bench.ready(&engine).await?;
    park(bench, "elsewhere", count, "2 seconds", 1.0).await?;
    let late = lateness(bench, "elsewhere", count).await?;
    engine.stop().await?;
    Ok(late)
}

/// The measured values of the start of an engine with many pending timers.
struct Restart {
    /// Milliseconds from the start of the engine until the one overdue timer has fired.
    first_ms: f64,
    /// The maximum growth of the memory of this process in megabytes, while its engine keeps the
    /// maximum number of due times in memory.
    memory_mb: f64,
    near: u64,
}

async fn after_a_restart(bench: &Bench, pending: u64) -> Result<Restart> {
    bench.empty(SCHEMA).await?;
    park(bench, "pending", pending, "1 day", 1.0).await?;
    bench
        .sql
        .batch_execute(&format!("analyze {SCHEMA}.instances"))
        .await?;
    // Inserts more timers than the due times that a worker keeps in memory. The worker reads these
    // due times soon after its start.
    let near = bench.count(NEAR).min(pending);
    let ahead = bench.duration(NEAR_AHEAD).max(NEAR_AHEAD_MIN);
    let due_from = now(bench).await? + ahead;
    park(
        bench,
        "near",
        near,
        &format!("{} ms", ahead.as_millis()),
        0.001,
    )
    .await?;
    park(bench, "restart", 1, "-1 second", 1.0).await?;
    // Finds the overdue alarm by its id, because a scan of ten million rows would take longer than
    // the measured time.
    let due = format!("select max(id) from {SCHEMA}.instances");
    let due: i64 = bench.sql.query_one(&due, &[]).await?.try_get(0)?;
    let fired = format!(
        "select extract(epoch from eligible_at - $2::text::timestamptz)::float8 * 1000 from {SCHEMA}.instances
         where id = $1 and step = 'late'"
    );
    let fired = bench.sql.prepare(&fired).await?;
    let probe = Probe::waiting_for(u64::MAX);
    process::forget_peak();
    let before = process::memory().now_mb;
    let (begun, waited) = (now(bench).await?.to_string(), Instant::now());
    let engine = bench.start_engine(SCHEMA, &probe).await?;
    let first_ms = loop {
        if let Some(row) = bench.sql.query_opt(&fired, &[&due, &begun]).await? {
            break row.try_get(0)?;
        }
        if waited.elapsed() > TIMEOUT {
            bail!("no timer fired within {TIMEOUT:?} of a start");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    // Waits until the engine has read the due times of the timers `near` into memory, while these
    // timers are not due yet.
    while now(bench).await? < due_from - NEAR_SEEN {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let memory_mb = (process::memory().peak_mb - before).max(0.0);
    engine.stop().await?;
    Ok(Restart {
        first_ms,
        memory_mb,
        near,
    })
}

/// The measured values of an engine with many overdue timers.
struct Backlog {
    per_second: f64,
    fresh: Lateness,
    /// The slowest statement of the engine during the measurement with overdue timers, if Postgres
    /// has logged it and the bench can read the log of the server.
    longest: Option<Slow>,
}

/// Measures how many overdue timers fire per second, and the delays of new timers that become due
/// during this measurement.
async fn overdue(bench: &Bench, rows: u64) -> Result<Backlog> {
    bench.empty(SCHEMA).await?;
    park(bench, "overdue", rows, "-1 day", 1.0).await?;
    bench
        .sql
        .batch_execute(&format!("analyze {SCHEMA}.instances"))
        .await?;
    let probe = Probe::waiting_for(u64::MAX);
    let (engine, log) = bench.start_watched(SCHEMA, &probe).await?;
    bench.ready(&engine).await?;
    let watched = bench.duration(WATCHED);
    let fresh = bench.count(1_000).max(10);
    let worked_off = format!(
        "select count(*) from {SCHEMA}.instances where state->>'name' = 'overdue' and step = 'late'"
    );
    let (before, begun) = (
        bench
            .sql
            .query_one(&worked_off, &[])
            .await?
            .try_get::<_, i64>(0)?,
        Instant::now(),
    );
    park(
        bench,
        "fresh",
        fresh,
        "1 second",
        watched.as_secs_f64() * 1_000.0 / fresh as f64,
    )
    .await?;
    tokio::time::sleep(watched).await;
    let done = bench
        .sql
        .query_one(&worked_off, &[])
        .await?
        .try_get::<_, i64>(0)?
        - before;
    let per_second = done as f64 / begun.elapsed().as_secs_f64();
    let fresh = lateness(bench, "fresh", fresh).await?;
    engine.stop().await?;
    let longest = log.map(|log| log.longest()).transpose()?.flatten();
    Ok(Backlog {
        per_second,
        fresh,
        longest,
    })
}
