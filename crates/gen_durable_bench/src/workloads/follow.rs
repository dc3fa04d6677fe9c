//! Measures a projection of the event log: how fast the projection applies old events, how far it
//! is behind the log while events arrive, and how much a rebuild delays appends and the projection.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gen_durable::{
    Client, Engine, StepError,
    client::Recorded,
    projection::{Digest, Projection, ProjectionContext, RunStatus, Scope},
};
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};

use super::projections::{Sale, empty};
use crate::{
    bench::{Bench, SCHEMA, connect, say},
    report::Measured,
    statistics::{percentile, rounded},
};

const PROJECTED: u64 = 50_000;
const PROJECTED_LONG: u64 = 1_000_000;
/// The rate and the number of events while the bench measures the lag, and the rate of events
/// during the rebuild. Rates are in events per second.
const LAG_RATE: u64 = 1_000;
const LAG_EVENTS: u64 = 5_000;
const REBUILD_RATE: u64 = 500;
/// The bench appends events for this long before the rebuild of the projection starts and after the
/// rebuild has ended.
const AROUND: Duration = Duration::from_millis(300);
/// At the end of a rebuild, a worker makes the new generation of the projection the current one.
/// The bench detects this change by polling, and attributes a pause of the projection within this
/// time of the change to the change.
const NEAR: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(900);

/// A projection of the bench that keeps one row per key. It upserts all rows of a batch of events
/// with one statement.
struct Sums;
impl Projection for Sums {
    const NAME: &'static str = "sums";
    const GENERATIONS: bool = true;
    type Events = Sale;
    async fn apply(
        &self,
        batch: &[Recorded<Sale>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        let text = format!(
            "insert into {SCHEMA}.bench_sums as s (tenant, generation, key, count, last)
             select $1, $2, k, count(*), max(p) from unnest($3::bigint[], $4::bigint[]) as x(k, p) group by k
             on conflict (tenant, generation, key) do update set count = s.count + excluded.count, last = excluded.last"
        );
        let keys: Vec<i64> = batch
            .iter()
            .map(|row| i64::try_from(row.event.n % 1_000).unwrap_or_default())
            .collect();
        let positions: Vec<i64> = batch.iter().map(|row| row.position).collect();
        cx.tx
            .execute(&text, &[&cx.tenant, &cx.generation, &keys, &positions])
            .await?;
        Ok(())
    }
    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        let text = format!("delete from {SCHEMA}.bench_sums where tenant = $1 and generation = $2");
        cx.tx.execute(&text, &[&cx.tenant, &cx.generation]).await?;
        Ok(())
    }
    async fn digest(&self, cx: &mut ProjectionContext<'_>) -> Result<Option<Digest>, StepError> {
        let (tenant, generation) = (cx.tenant.to_owned(), cx.generation);
        let query = format!(
            "select key, count, last from {SCHEMA}.bench_sums where tenant = $1 and generation = $2"
        );
        Ok(Some(cx.digest(&query, &[&tenant, &generation]).await?))
    }
}

pub(super) async fn measure(bench: &Bench, measured: Measured) -> Result<Measured> {
    let count = bench.count(if bench.long {
        PROJECTED_LONG
    } else {
        PROJECTED
    });
    fill(bench, count).await?;
    let engine = Engine::builder(bench.pool(SCHEMA).await?, ())
        .project(Sums)
        .build()?;
    let client = engine.client();
    let (stop, stopped) = oneshot::channel::<()>();
    let begun = Instant::now();
    let running = tokio::spawn(engine.run(async move { drop(stopped.await) }));
    let end = i64::try_from(count)?;
    if client.sync::<Sums>("t", end, TIMEOUT).await? < end {
        bail!("the projection did not catch up within {TIMEOUT:?}");
    }
    let project = count as f64 / begun.elapsed().as_secs_f64();
    say(&format!("  projected {project:.0} events/s"));

    let (lag_p50, lag_p99) = measure_lag(bench, &client).await?;

    let watch = Watch::begin(bench).await?;
    let appending = Appending::begin(&client, REBUILD_RATE);
    tokio::time::sleep(AROUND).await;
    let begun = Instant::now();
    let run = client
        .projections()
        .shadow_rebuild(Scope::new("sums").of("t"))
        .await?;
    let ended = client.projections().finished(run, TIMEOUT).await?;
    let took = begun.elapsed();
    if ended.status != RunStatus::Done {
        bail!("the rebuild is {}: {:?}", ended.status, ended.error);
    }
    tokio::time::sleep(AROUND).await;
    let appended = appending.end().await?;
    let followed = watch.end_at(&client, &appended).await?;
    drop(stop);
    running.await??;

    let waits: Vec<f64> = appended
        .iter()
        .map(|one| milliseconds(one.committed - one.called))
        .collect();
    let (pause, at_swap) = pauses(&followed);
    let rebuilt = ended.position;
    let measured = measured
        .with("project", rounded(project, 0))
        .with("lag_p50_ms", rounded(lag_p50, 2))
        .with("lag_p99_ms", rounded(lag_p99, 2))
        .with("rebuilt_events", rebuilt)
        .with("rebuild_s", rounded(took.as_secs_f64(), 2))
        .with("rebuild", rounded(rebuilt as f64 / took.as_secs_f64(), 0))
        .with(
            "appended_per_s_while_rebuilding",
            rounded(rate(&appended), 0),
        )
        .with(
            "append_p99_while_rebuilding_ms",
            rounded(percentile(&waits, 99.0), 2),
        )
        .with(
            "append_max_while_rebuilding_ms",
            rounded(percentile(&waits, 100.0), 2),
        )
        .with("live_pause_max_while_rebuilding_ms", rounded(pause, 1))
        .with("live_pause_at_swap_ms", rounded(at_swap, 1));
    say(&format!(
        "  rebuilt {rebuilt} events in {took:.1?}; at the swap live paused for {at_swap:.1} ms"
    ));
    Ok(measured)
}

/// Measures how long a projection takes to apply an event after its append, at a steady rate of
/// appends. Returns the median and the 99th percentile in milliseconds.
async fn measure_lag(bench: &Bench, client: &Client) -> Result<(f64, f64)> {
    let watch = Watch::begin(bench).await?;
    let appending = Appending::begin(client, LAG_RATE);
    let lasting = Duration::from_secs_f64(bench.count(LAG_EVENTS).max(50) as f64 / LAG_RATE as f64);
    tokio::time::sleep(lasting).await;
    let appended = appending.end().await?;
    let followed = watch.end_at(client, &appended).await?;
    let lags = lags(&appended, &followed);
    let (lag_p50, lag_p99) = (percentile(&lags, 50.0), percentile(&lags, 99.0));
    say(&format!(
        "  {} events at {LAG_RATE}/s: lag p50 {lag_p50:.1} ms, p99 {lag_p99:.1} ms",
        lags.len()
    ));
    Ok((lag_p50, lag_p99))
}

/// Appends events to a log before any projection reads the log.
async fn fill(bench: &Bench, count: u64) -> Result<()> {
    empty(bench).await?;
    let text = format!(
        "insert into {SCHEMA}.event_heads values ('t');
         insert into {SCHEMA}.events (tenant, name, payload, position)
         select 't', 'sale', jsonb_build_object('n', n, 'at_nanos', 0), n from generate_series(1, {count}) n;"
    );
    bench.sql.batch_execute(&text).await?;
    bench.at_rest(&format!("{SCHEMA}.events")).await
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// An appended event, with the time of the call and the time when Postgres confirmed its commit.
#[derive(Debug, Clone, Copy)]
struct Appended {
    position: i64,
    called: Instant,
    committed: Instant,
}

/// A task that appends events at a steady rate, independent of the duration of each append.
struct Appending {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Vec<Appended>>>,
}

impl Appending {
    fn begin(client: &Client, per_second: u64) -> Appending {
        let (stop, mut stopped) = oneshot::channel();
        let client = client.clone();
        let task = tokio::spawn(async move {
            let mut every = tokio::time::interval(Duration::from_secs_f64(1.0 / per_second as f64));
            let (mut calls, mut n) = (JoinSet::new(), 0);
            loop {
                tokio::select! {
                    _ = &mut stopped => break,
                    _ = every.tick() => {}
                }
                let client = client.clone();
                n += 1;
                calls.spawn(async move {
                    let called = Instant::now();
                    let position = client.record("t", Sale { n, at_nanos: 0 }).await?;
                    anyhow::Ok(Appended {
                        position,
                        called,
                        committed: Instant::now(),
                    })
                });
            }
            let mut appended = calls
                .join_all()
                .await
                .into_iter()
                .collect::<Result<Vec<_>>>()?;
            appended.sort_unstable_by_key(|one| one.position);
            Ok(appended)
        });
        Appending { stop, task }
    }

    async fn end(self) -> Result<Vec<Appended>> {
        drop(self.stop);
        self.task.await?
    }
}

fn rate(appended: &[Appended]) -> f64 {
    let first = appended.iter().map(|one| one.called).min();
    let last = appended.iter().map(|one| one.committed).max();
    let lasting = first
        .zip(last)
        .map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    appended.len() as f64 / lasting.max(1e-3)
}

/// A log position of the projection's cursor, and the time when the bench first observed this
/// position.
#[derive(Debug, Clone, Copy)]
struct Observed {
    at: Instant,
    position: i64,
    generation: i32,
}

/// A task that polls the cursor of the projection.
struct Watch {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Vec<Observed>>>,
}

impl Watch {
    async fn begin(bench: &Bench) -> Result<Watch> {
        let sql = connect(&bench.url).await?;
        let query = format!(
            "select position, generation from {SCHEMA}.projections where (tenant, projection) = ('t', 'sums')"
        );
        let query = sql.prepare(&query).await?;
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut every = tokio::time::interval(POLL);
            let mut observed: Vec<Observed> = Vec::new();
            loop {
                tokio::select! {
                    _ = &mut stopped => return Ok(observed),
                    _ = every.tick() => {}
                }
                let row = sql.query_one(&query, &[]).await?;
                let now = Observed {
                    at: Instant::now(),
                    position: row.try_get(0)?,
                    generation: row.try_get(1)?,
                };
                if observed.last().is_none_or(|last| {
                    (last.position, last.generation) != (now.position, now.generation)
                }) {
                    observed.push(now);
                }
            }
        });
        Ok(Watch { stop, task })
    }

    /// Waits until the projection has applied all appended events, and returns the observed
    /// positions of its cursor.
    async fn end_at(self, client: &Client, appended: &[Appended]) -> Result<Vec<Observed>> {
        let last = appended.last().context("nothing was appended")?.position;
        if client.sync::<Sums>("t", last, TIMEOUT).await? < last {
            bail!("the projection did not catch up within {TIMEOUT:?}");
        }
        tokio::time::sleep(POLL * 10).await;
        drop(self.stop);
        self.task.await?
    }
}

/// Returns for each event the milliseconds from its confirmed commit to the first observation that
/// the projection has applied the event.
fn lags(appended: &[Appended], followed: &[Observed]) -> Vec<f64> {
    let lag = |one: &Appended| {
        let observed =
            followed.get(followed.partition_point(|observed| observed.position < one.position))?;
        Some(milliseconds(
            observed.at.saturating_duration_since(one.committed),
        ))
    };
    appended.iter().filter_map(lag).collect()
}

/// Returns the longest time without a change of the projection's cursor, and the longest such time
/// near the moment when a rebuild made its generation the current one, in milliseconds.
fn pauses(followed: &[Observed]) -> (f64, f64) {
    let first = followed.first().map(|observed| observed.generation);
    let swap = followed
        .iter()
        .find(|observed| Some(observed.generation) != first)
        .map(|observed| observed.at);
    let mut moves: Vec<Observed> = followed.to_vec();
    moves.dedup_by_key(|observed| observed.position);
    let (mut longest, mut at_swap) = (0.0_f64, 0.0_f64);
    for (from, to) in moves.iter().zip(moves.iter().skip(1)) {
        let pause = milliseconds(to.at - from.at);
        longest = longest.max(pause);
        if swap.is_some_and(|swap| from.at <= swap + NEAR && swap <= to.at + NEAR) {
            at_swap = at_swap.max(pause);
        }
    }
    (longest, at_swap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_of_a_projection_is_computed_overall_and_near_the_swap_of_a_rebuild() {
        let begun = Instant::now();
        let seen = |ms, position, generation| Observed {
            at: begun + Duration::from_millis(ms),
            position,
            generation,
        };
        let followed = [
            seen(0, 1, 1),
            seen(700, 2, 1),
            seen(1_000, 3, 1),
            seen(1_010, 3, 2),
            seen(1_050, 4, 2),
            seen(1_060, 5, 2),
        ];
        assert_eq!(pauses(&followed), (700.0, 300.0));
        assert_eq!(pauses(&followed[..3]), (700.0, 0.0));
        let appended = |ms, position| Appended {
            position,
            called: begun,
            committed: begun + Duration::from_millis(ms),
        };
        assert_eq!(
            lags(
                &[appended(0, 1), appended(100, 2), appended(1_050, 4)],
                &followed
            ),
            [0.0, 600.0, 0.0]
        );
    }
}
