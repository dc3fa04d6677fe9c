//! The workload `lanes`: an engine runs lanes of jobs until all have settled. The bench measures
//! jobs per second, with one producer, with many producers, and beside one very long lane.

use std::time::Instant;

use anyhow::Result;
use futures_util::future::try_join_all;
use gen_durable::Client;

use crate::{
    bench::{Bench, LARGE_SCHEMA, SCHEMA, connect, say},
    floors::loops,
    jobs::{InLane, Probe},
    report::Measured,
    statistics::{median, rounded},
};

const LANES: u64 = 100;
const JOBS_EACH: u64 = 100;
/// The number of concurrent producers, each on a connection of its own, and the number of jobs that
/// each producer enqueues.
const PRODUCERS: u64 = 8;
const JOBS_OF_A_PRODUCER: u64 = 2_000;
/// The sizes for `--long`: many short lanes beside one very long lane.
const FRESH_LANES: u64 = 1_000;
const FRESH_JOBS_EACH: u64 = 20;
const LONG_LANE: u64 = 1_000_000;
const LONG_LANE_KEY: u64 = u64::MAX >> 1;
const WINDOWS: u32 = 5;

pub(super) async fn measure(bench: &Bench) -> Result<Measured> {
    let each = bench.count(JOBS_EACH);
    let jobs = LANES * each;
    let (mut alternating, mut together, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        bench.empty(SCHEMA).await?;
        bench.fill_jobs(SCHEMA, jobs).await?;
        floors.push(loops::drain(bench, loops::Work::Jobs).await?);
        alternating.push(drain(bench, (0..jobs).map(|n| n % LANES)).await?);
        together.push(drain(bench, (0..jobs).map(|n| n / each)).await?);
        one.push(produce(bench, 1).await?);
        many.push(produce(bench, PRODUCERS).await?);
        say(&format!(
            "  round {round}: keys alternating {:.0} jobs/s, each key's jobs together {:.0}; bare loop without lanes {:.0}",
            last(&alternating),
            last(&together),
            last(&floors)
        ));
        for (producers, produced) in [(1, one.last()), (PRODUCERS, many.last())] {
            say(&produced
                .map(|produced| format!("    {producers} producing: {produced}"))
                .unwrap_or_default());
        }
    }
    let slower = median(&alternating).min(median(&together));
    let measured = Measured::new("lanes", "jobs/s", slower, median(&floors), loops::KIND)
        .with("lanes", LANES)
        .with("jobs", jobs)
        .with("alternating", median(&alternating).round())
        .with("together", median(&together).round())
        .with("producers", PRODUCERS)
        .with("one_producer", Produced::medians(&one))
        .with("many_producers", Produced::medians(&many));
    if bench.long {
        beside_a_long_one(bench, measured).await
    } else {
        Ok(measured)
    }
}

fn last(rates: &[f64]) -> f64 {
    rates.last().copied().unwrap_or_default()
}

async fn drain(bench: &Bench, keys: impl Iterator<Item = u64>) -> Result<f64> {
    bench.empty(SCHEMA).await?;
    bench.fill_keyed(SCHEMA, "in_lane", "lane", keys).await?;
    super::partitions::drain(bench, SCHEMA, None).await
}

/// The measured rates in jobs per second, while producers enqueue single jobs into lanes and an
/// engine runs these jobs.
struct Produced {
    /// The rate in jobs per second from the start of the producers until the commit of their last
    /// enqueue.
    enqueued: f64,
    /// The rate in jobs per second from the start of the producers until the last job has settled.
    settled: f64,
}

impl std::fmt::Display for Produced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.0} enqueued/s, {:.0} settled/s",
            self.enqueued, self.settled
        )
    }
}

impl Produced {
    fn medians(all: &[Produced]) -> serde_json::Value {
        let of = |field: fn(&Produced) -> f64| {
            median(&all.iter().map(field).collect::<Vec<_>>()).round()
        };
        serde_json::json!({"enqueued": of(|produced| produced.enqueued), "settled": of(|produced| produced.settled)})
    }
}

/// Lets all producers enqueue jobs into the same lanes, and measures the rates of enqueued and
/// settled jobs. Each producer enqueues one job after the other.
async fn produce(bench: &Bench, producers: u64) -> Result<Produced> {
    bench.empty(SCHEMA).await?;
    let each = bench.count(JOBS_OF_A_PRODUCER);
    let jobs = producers * each;
    let mut clients = Vec::new();
    for _ in 0..producers {
        let client = Client::new(bench.pool(SCHEMA).await?);
        // Makes one call before the measurement, because the first call on a new connection is
        // slower.
        client.inspect().workers().await?;
        clients.push(client);
    }
    let probe = Probe::waiting_for(jobs);
    let mut engine = bench.start_engine(SCHEMA, &probe).await?;
    bench.ready(&engine).await?;
    let begun = Instant::now();
    let calls = clients
        .iter()
        .enumerate()
        .map(|(first, client)| async move {
            for n in 0..each {
                client
                    .enqueue(InLane {
                        key: (n + first as u64) % LANES,
                    })
                    .await?;
            }
            anyhow::Ok(())
        });
    try_join_all(calls).await?;
    let enqueued = begun.elapsed();
    engine.until(probe.all()).await?;
    bench.settled(SCHEMA, jobs).await?;
    let settled = begun.elapsed();
    engine.stop().await?;
    let rate = |took: std::time::Duration| jobs as f64 / took.as_secs_f64().max(1e-6);
    Ok(Produced {
        enqueued: rate(enqueued),
        settled: rate(settled),
    })
}

/// Measures the rate of jobs in new lanes, alternately alone and beside a lane with a million
/// instances that cannot run. Then measures the same rates while a transaction holds an old
/// snapshot, so that vacuum cannot remove dead rows.
async fn beside_a_long_one(bench: &Bench, mut measured: Measured) -> Result<Measured> {
    let entries = bench.count(LONG_LANE);
    // The long lane is in the schema `LARGE_SCHEMA`, so that it stays while the bench empties and
    // fills the schema `SCHEMA` again.
    bench.drop_schema(LARGE_SCHEMA).await?;
    bench.pool(LARGE_SCHEMA).await?.migrate().await?;
    // The head of the long lane is due tomorrow, and all later instances of the lane wait for the
    // head.
    bench
        .fill_blocked_key(
            LARGE_SCHEMA,
            "in_lane",
            "lane",
            &format!("bench:{LONG_LANE_KEY}"),
            entries,
        )
        .await?;
    bench.empty(SCHEMA).await?;
    for held in [false, true] {
        let holder = connect(&bench.url).await?;
        if held {
            holder
                .batch_execute("begin isolation level repeatable read")
                .await?;
            holder
                .execute(&format!("select from {SCHEMA}.queues"), &[])
                .await?;
        }
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for window in 1..=WINDOWS {
            // The order of the two schemas alternates, because the state of the computer differs
            // between the first and the second measurement of a round.
            let schemas = if window % 2 == 0 {
                [LARGE_SCHEMA, SCHEMA]
            } else {
                [SCHEMA, LARGE_SCHEMA]
            };
            for schema in schemas {
                let rate = fresh_lanes(bench, schema).await?;
                if schema == SCHEMA {
                    alone.push(rate)
                } else {
                    beside.push(rate)
                }
            }
            let snapshot = if held { ", an old snapshot held" } else { "" };
            say(&format!(
                "  window {window}{snapshot}: {} lanes alone {:.0} jobs/s, beside one of {entries} {:.0}",
                bench.count(FRESH_LANES),
                last(&alone),
                last(&beside)
            ));
        }
        drop(holder);
        let ratio = rounded(median(&beside) / median(&alone).max(1e-6), 3);
        say(&format!("  beside to alone: {ratio}"));
        let names = if held {
            [
                "fresh_alone_snapshot_held",
                "fresh_beside_snapshot_held",
                "beside_to_alone_snapshot_held",
            ]
        } else {
            ["fresh_alone", "fresh_beside", "beside_to_alone"]
        };
        for (name, value) in
            names
                .into_iter()
                .zip([median(&alone).round(), median(&beside).round(), ratio])
        {
            measured = measured.with(name, value);
        }
    }
    bench.drop_schema(LARGE_SCHEMA).await?;
    Ok(measured.with("long_lane", entries))
}

/// Fills short lanes, waits until an engine has settled all their jobs, then deletes the settled
/// rows. If a transaction holds an old snapshot, the deleted rows stay in the table as dead rows.
/// Returns jobs per second.
async fn fresh_lanes(bench: &Bench, schema: &str) -> Result<f64> {
    let lanes = bench.count(FRESH_LANES);
    let jobs = lanes * FRESH_JOBS_EACH;
    bench
        .fill_keyed(schema, "in_lane", "lane", (0..jobs).map(|n| n % lanes))
        .await?;
    let rate = super::partitions::drain(bench, schema, Some(jobs)).await?;
    bench
        .sql
        .execute(
            &format!("delete from {schema}.instances where settled_at is not null"),
            &[],
        )
        .await?;
    Ok(rate)
}
