//! `durable top`: a screen of queues, machines and workers with their rates, which refreshes
//! itself.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    pin::pin,
    time::{Duration, Instant},
};

use gen_durable::{
    inspect::{Backlog, Count, Inspect, SettledCount, Status, WorkerInfo},
    schedule::Timestamp,
};
use serde::Serialize;

use super::{asked_to_end, filter::in_time};
use crate::{
    connect::Database,
    table::{CLEAR, Rows, print, print_json, print_raw},
    text::{chain, relative, safe, thousands},
};

/// The period over which the rates are averages.
const PERIOD: Duration = Duration::from_secs(60);
/// `Inspect::settled` reads at most this many instances.
const SETTLED_MAX: i64 = 20_000;
/// `Inspect::status_counts` and `Inspect::backlog` count up to this number.
const COUNTED_MAX: i64 = 10_001;
/// The number of rows of each table on the screen.
const ROWS_MAX: usize = 20;

/// Show queues, machines, workers and their rates
///
/// On a terminal the screen refreshes until Ctrl-C. With --json, or to a pipe or a file, the
/// command prints once.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    #[command(flatten)]
    database: Database,
}

/// One reading of all numbers.
#[derive(Debug, Serialize)]
struct Reading {
    /// The time of the schema's clock.
    at: Timestamp,
    /// The approximate number of instances.
    instances: i64,
    /// The period of the rates, in seconds.
    period_seconds: f64,
    settled_per_second: f64,
    failed_per_second: f64,
    /// The statuses with numbers that are lower bounds.
    capped: Vec<Status>,
    queues: Vec<Backlog>,
    machines: Vec<MachineRates>,
    workers: Vec<WorkerInfo>,
}

/// The instances of a machine that have not settled, and its rates.
#[derive(Debug, Serialize)]
struct MachineRates {
    machine: String,
    statuses: BTreeMap<&'static str, i64>,
    settled_per_second: f64,
    failed_per_second: f64,
}

pub(crate) async fn run(args: TopArgs, json: bool) -> anyhow::Result<()> {
    let inspect = args.database.client().await?.inspect();
    if json {
        return print_json(&in_time(read(&inspect)).await?);
    }
    if !std::io::stdout().is_terminal() {
        return print(screen(&in_time(read(&inspect)).await?));
    }
    let mut end = pin!(asked_to_end());
    let mut last: Option<(String, Instant)> = None;
    loop {
        let reading = tokio::select! {
            reading = in_time(read(&inspect)) => reading,
            ended = &mut end => return Ok(ended?),
        };
        let shown = match (reading, &last) {
            (Ok(reading), _) => {
                let shown = screen(&reading);
                last = Some((shown.clone(), Instant::now()));
                shown
            }
            (Err(error), Some((old, at))) => format!(
                "error: {}; these numbers are {} s old\n\n{old}",
                safe(&chain(&error)),
                at.elapsed().as_secs()
            ),
            (Err(error), None) => return Err(error),
        };
        print_raw(CLEAR)?;
        print(shown)?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(args.interval)) => {}
            ended = &mut end => return Ok(ended?),
        }
    }
}

async fn read(inspect: &Inspect) -> Result<Reading, gen_durable::Error> {
    let estimate = inspect.estimate().await?;
    let settled = inspect.settled(estimate.now - PERIOD).await?;
    let counts = inspect.status_counts().await?;
    let period = period(&settled, estimate.now);
    let of_status = |status: Status| {
        let counts = counts.iter().filter(|count| count.status == status);
        counts.map(|count| count.count).sum::<i64>()
    };
    let capped = Status::ALL.into_iter();
    Ok(Reading {
        at: estimate.now,
        instances: estimate.instances,
        period_seconds: period,
        settled_per_second: rate(&settled, period, |_| true),
        failed_per_second: rate(&settled, period, |count| count.status == Status::Failed),
        capped: capped
            .filter(|status| of_status(*status) >= COUNTED_MAX)
            .collect(),
        queues: inspect.backlog().await?,
        machines: machines(&settled, &counts, period),
        workers: inspect.workers().await?,
    })
}

/// Returns the seconds that the settled instances cover: the whole period, or less if there were
/// more of them than one statement reads.
fn period(settled: &[SettledCount], now: Timestamp) -> f64 {
    let count: i64 = settled.iter().map(|count| count.count).sum();
    let first = settled.iter().map(|count| count.second).min();
    match first {
        Some(first) if count >= SETTLED_MAX => {
            let seconds = now.as_second().saturating_sub(first).max(1);
            f64::from(i32::try_from(seconds).unwrap_or(i32::MAX))
        }
        _ => PERIOD.as_secs_f64(),
    }
}

/// Returns how many of the settled instances that `is` accepts settled in a second.
fn rate(settled: &[SettledCount], period: f64, is: impl Fn(&SettledCount) -> bool) -> f64 {
    let counts = settled.iter().filter(|count| is(count));
    let count: i64 = counts.map(|count| count.count).sum();
    f64::from(i32::try_from(count).unwrap_or(i32::MAX)) / period
}

/// Returns the machines that have instances or settled some, the busiest first.
fn machines(settled: &[SettledCount], counts: &[Count], period: f64) -> Vec<MachineRates> {
    let mut statuses: BTreeMap<&str, BTreeMap<&'static str, i64>> = BTreeMap::new();
    for count in counts {
        let of_machine = statuses.entry(&count.machine).or_default();
        *of_machine.entry(count.status.name()).or_default() += count.count;
    }
    for count in settled {
        statuses.entry(&count.machine).or_default();
    }
    let mut machines: Vec<MachineRates> = statuses
        .into_iter()
        .map(|(machine, statuses)| MachineRates {
            settled_per_second: rate(settled, period, |count| count.machine == machine),
            failed_per_second: rate(settled, period, |count| {
                count.machine == machine && count.status == Status::Failed
            }),
            machine: machine.to_owned(),
            statuses,
        })
        .collect();
    machines.sort_by(|a, b| b.settled_per_second.total_cmp(&a.settled_per_second));
    machines
}

/// Formats a count that stops at [`COUNTED_MAX`].
fn counted(count: i64) -> String {
    if count >= COUNTED_MAX {
        format!("{}+", thousands(count - 1))
    } else {
        thousands(count)
    }
}

fn screen(reading: &Reading) -> String {
    let alive = reading.workers.iter().filter(|worker| worker.alive);
    let head = format!(
        "{}   about {} instances   {:.1} settled/s   {:.1} failed/s   {} workers\n\n",
        reading.at,
        thousands(reading.instances),
        reading.settled_per_second,
        reading.failed_per_second,
        alive.count(),
    );
    let [queues, machines, workers] = [
        queue_rows(reading),
        machine_rows(reading),
        worker_rows(reading),
    ];
    format!("{head}{queues}\n{machines}\n{workers}")
}

fn queue_rows(reading: &Reading) -> Rows {
    let mut rows = Rows::new([
        "queue",
        "due",
        "oldest",
        "scheduled",
        "executing",
        "workers",
        "",
    ])
    .right([1, 3, 4, 5]);
    for queue in reading.queues.iter().take(ROWS_MAX) {
        let oldest = queue.oldest_due_at.map(|at| relative(at, reading.at));
        rows.add([
            queue.name.clone(),
            counted(queue.due),
            oldest.unwrap_or_default(),
            counted(queue.scheduled),
            thousands(queue.executing),
            thousands(queue.workers),
            if queue.is_paused() { "paused" } else { "" }.to_owned(),
        ]);
    }
    rows
}

fn machine_rows(reading: &Reading) -> Rows {
    const STATUSES: [&[Status]; 5] = [
        &[Status::Runnable],
        &[Status::Executing],
        &[
            Status::AwaitingSignal,
            Status::AwaitingChildren,
            Status::AwaitingLimit,
        ],
        &[Status::Stuck],
        &[Status::Failed],
    ];
    let mut rows = Rows::new([
        "machine",
        "settled/s",
        "failed/s",
        "runnable",
        "executing",
        "awaiting",
        "stuck",
        "failed",
    ])
    .right([1, 2, 3, 4, 5, 6, 7]);
    for machine in reading.machines.iter().take(ROWS_MAX) {
        let [runnable, executing, awaiting, stuck, failed] = STATUSES.map(|statuses| {
            let counts = statuses
                .iter()
                .filter_map(|status| machine.statuses.get(status.name()));
            let count: i64 = counts.sum();
            let is_capped = statuses
                .iter()
                .any(|status| reading.capped.contains(status));
            let plus = if is_capped { "+" } else { "" };
            format!("{}{plus}", thousands(count))
        });
        rows.add([
            machine.machine.clone(),
            format!("{:.1}", machine.settled_per_second),
            format!("{:.1}", machine.failed_per_second),
            runnable,
            executing,
            awaiting,
            stuck,
            failed,
        ]);
    }
    rows
}

fn worker_rows(reading: &Reading) -> Rows {
    let mut rows = Rows::new(["worker", "started", "lease", "queues", "machines"]);
    for worker in reading.workers.iter().take(ROWS_MAX) {
        let state = if worker.alive { "expires" } else { "expired" };
        rows.add([
            format!("{}/{}", worker.host, worker.pid),
            relative(worker.started_at, reading.at),
            format!("{state} {}", relative(worker.lease_expires_at, reading.at)),
            worker.queues.join(", "),
            worker.machines.join(", "),
        ]);
    }
    rows
}
