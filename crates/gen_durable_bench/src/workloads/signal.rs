//! Measures the time from the commit of a signal to the start of the step that runs after the wait
//! for this signal.

use std::collections::HashMap;

use anyhow::Result;

use crate::{
    bench::{Bench, SCHEMA, say},
    floors,
    jobs::{Listener, Probe, Wake, now_nanos},
    report::Measured,
    statistics::{percentile, rounded},
};

const SIGNALS: u64 = 200;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
const FLOOR: &str = "one plain claim of one row, from its sending to its answer, tokio-postgres";

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    bench.empty(SCHEMA).await?;
    let count = bench.count(SIGNALS).max(5);
    let floor = floors::claim_one(bench, count).await?;
    // The probe waits for two steps of each listener: the step that begins to wait, and the step
    // that runs after the signal.
    let probe = Probe::waiting_for(count * 2);
    let mut engine = bench.start_engine(SCHEMA, &probe).await?;
    let listeners = engine
        .client
        .enqueue_all((0..count).map(|n| Listener { n }))
        .await?;
    bench.all_parked(SCHEMA, count).await?;
    let mut sent = HashMap::new();
    let mut every = tokio::time::interval(PAUSE);
    for (n, listener) in (0..count).zip(listeners) {
        every.tick().await;
        let called = now_nanos();
        engine.client.signal(listener.id, Wake).await?;
        sent.insert(n, (called, now_nanos()));
    }
    engine.until(probe.all()).await?;
    engine.stop().await?;
    let since = |pick: fn(&(u64, u64)) -> u64| -> Vec<f64> {
        let of_one = |(n, at): &(u64, u64)| {
            sent.get(n)
                .map(|times| at.saturating_sub(pick(times)) as f64 / 1e6)
        };
        probe.started().iter().filter_map(of_one).collect()
    };
    let (committed, called) = (since(|sent| sent.1), since(|sent| sent.0));
    let (p50, p99) = (percentile(&committed, 50.0), percentile(&committed, 99.0));
    say(&format!("  p50 {p50:.2} ms, p99 {p99:.2} ms"));
    Ok(
        Measured::new("signal", "ms", p50, percentile(&floor, 50.0), FLOOR)
            .with("p99_ms", rounded(p99, 3))
            .with("from_call_p50_ms", rounded(percentile(&called, 50.0), 3))
            .with("signals", count),
    )
}
