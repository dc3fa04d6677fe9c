//! The workload `xmin`: the bench enqueues jobs at a steady rate while another connection holds an
//! old snapshot, so that vacuum cannot remove dead rows. The workload measures whether the time
//! from the enqueue of a job to the start of its step grows.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Result;
use futures_util::future::try_join_all;
use serde_json::json;

use crate::{
    bench::{Bench, SCHEMA, connect, say},
    jobs::{Ping, Probe, now_nanos},
    report::Measured,
    statistics::{percentile, rounded},
};

const RATE: u64 = 2_000;
const LASTING: Duration = Duration::from_secs(180);
const LASTING_SHORT: Duration = Duration::from_secs(20);
/// The bench does not measure the first second after the start of the engine.
const WARM_UP: Duration = Duration::from_secs(1);
const WINDOWS: u64 = 6;
/// The interval in milliseconds at which the bench enqueues a batch of jobs.
const TICK_MS: u64 = 2;
const FLOOR: &str = "the same without the snapshot";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let lasting = bench.duration(if bench.long { LASTING } else { LASTING_SHORT });
    bench.empty(SCHEMA).await?;
    let without = offer(bench, lasting).await?;
    say(&format!("  without: {without}"));
    bench.empty(SCHEMA).await?;
    let holder = connect(&bench.url).await?;
    // The first query of a `repeatable read` transaction takes a snapshot, and the transaction
    // holds this snapshot until the transaction ends.
    holder
        .batch_execute("begin isolation level repeatable read")
        .await?;
    holder
        .execute(&format!("select from {SCHEMA}.queues"), &[])
        .await?;
    let with = offer(bench, lasting).await?;
    holder.batch_execute("rollback").await?;
    say(&format!("  with: {with}"));
    Ok(Measured::new("xmin", "ms", with.p99, without.p99, FLOOR)
        .with("offered_per_second", RATE)
        .with("seconds", rounded(lasting.as_secs_f64(), 1))
        .with("p50_ms", json!([without.p50, with.p50]))
        .with("windows_p99_ms", json!(with.windows))
        .with("windows_without_p99_ms", json!(without.windows)))
}

/// Percentiles of the time from the commit of an enqueue to the start of the step of the enqueued
/// job, in milliseconds.
struct Offered {
    p50: f64,
    p99: f64,
    /// The 99th percentile of the time from commit to start in each of several successive time
    /// windows.
    windows: Vec<f64>,
}

impl std::fmt::Display for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "p50 {} ms, p99 {} ms, p99 of windows {:?}",
            self.p50, self.p99, self.windows
        )
    }
}

async fn offer(bench: &Bench, lasting: Duration) -> Result<Offered> {
    let per_tick = RATE * TICK_MS / 1_000;
    let ticks_in =
        |duration: Duration| anyhow::Ok((u64::try_from(duration.as_millis())? / TICK_MS).max(1));
    let warm = ticks_in(bench.duration(WARM_UP))?;
    let ticks = warm + ticks_in(lasting)?;
    let probe = Probe::waiting_for(ticks * per_tick);
    let mut engine = bench.start_engine(SCHEMA, &probe).await?;
    let committed: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let mut every = tokio::time::interval(Duration::from_millis(TICK_MS));
    let mut callers = Vec::new();
    for tick in 0..ticks {
        every.tick().await;
        let (client, committed) = (engine.client.clone(), committed.clone());
        callers.push(tokio::spawn(async move {
            let calls = (0..per_tick).map(|n| {
                let (client, committed) = (&client, &committed);
                async move {
                    let n = tick * per_tick + n;
                    client.enqueue(Ping { n }).await?;
                    let now = now_nanos();
                    committed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((n, now));
                    anyhow::Ok(())
                }
            });
            try_join_all(calls).await
        }));
        if callers.len() >= 1_000 {
            for caller in callers.drain(..500) {
                caller.await??;
            }
        }
    }
    for caller in callers {
        caller.await??;
    }
    engine.until(probe.all()).await?;
    engine.stop().await?;
    let committed = committed
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    Ok(of_windows(
        &committed,
        &probe.started(),
        warm * per_tick..ticks * per_tick,
    ))
}

fn of_windows(committed: &[(u64, u64)], started: &[(u64, u64)], counted: Range<u64>) -> Offered {
    let started: HashMap<u64, u64> = started.iter().copied().collect();
    let (mut all, mut windows) = (
        Vec::new(),
        vec![Vec::new(); WINDOWS.try_into().unwrap_or(1)],
    );
    let count = counted.end - counted.start;
    for (n, committed) in committed.iter().filter(|(n, _)| counted.contains(n)) {
        let Some(started) = started.get(n) else {
            continue;
        };
        let took = started.saturating_sub(*committed) as f64 / 1e6;
        all.push(took);
        if let Some(window) = windows
            .get_mut(usize::try_from((n - counted.start) * WINDOWS / count).unwrap_or_default())
        {
            window.push(took);
        }
    }
    let windows = windows
        .iter()
        .map(|window| rounded(percentile(window, 99.0), 2))
        .collect();
    Offered {
        p50: rounded(percentile(&all, 50.0), 2),
        p99: rounded(percentile(&all, 99.0), 2),
        windows,
    }
}
