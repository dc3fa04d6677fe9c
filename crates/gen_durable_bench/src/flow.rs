//! The command `durable bench flow`: a steady flow of jobs from producers in one process to workers
//! in processes of their own, as in production. It compares many worker processes with one, and
//! lanes and partition keys with plain jobs.

mod job;
mod producer;
mod report;
mod worker;

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, bail};

pub(crate) use job::Kind;
pub(crate) use producer::{PRODUCERS, Produce, fill};
pub(crate) use worker::Work;

use crate::{
    Common,
    bench::{Bench, SCHEMA, connect, say},
    caller::Task,
    child, delay,
    fleet::{Figures, Fleet, System},
};
use report::{Idle, Report};

/// The time between the start of the workers and the producers. Workers count each other once a
/// second.
const SETTLE: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_secs(1);
const LASTING: Duration = Duration::from_secs(5);
/// The time without jobs before the bench measures idle workers, and the time of that measurement.
const QUIET: Duration = Duration::from_secs(62);
const IDLE: Duration = Duration::from_secs(10);
/// The time in which the workers must run all jobs that the producers have left.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The number of worker processes that only `--long` measures.
const MANY: usize = 100;
/// The largest number of connections to the private Postgres.
const CONNECTIONS_MAX: u32 = 1_500;

/// The options of `durable bench flow`.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct FlowArgs {
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
    /// Also measure 100 worker processes, and the load of idle worker processes (a minute for each
    /// number of processes)
    #[arg(long)]
    pub long: bool,
    /// The numbers of worker processes; the first is the base of the ratios
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,32",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=200))]
    pub processes: Vec<usize>,
    /// The jobs per second of all producers together, for latency and CPU time
    #[arg(long, value_name = "JOBS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Add this round trip time between all processes and Postgres, with a proxy
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0.0,
        conflicts_with = "database_url"
    )]
    pub round_trip_ms: f64,
    /// Insert this many jobs that are due tomorrow before each case
    #[arg(long, value_name = "JOBS", default_value_t = 0)]
    pub backlog: u64,
    /// Add this many bytes to the state of each job
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub payload: usize,
    /// Spread the jobs over this many queues
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub queues: u32,
    /// Let another connection hold a snapshot from before each case until its end
    #[arg(long)]
    pub old_snapshot: bool,
}

/// Measures the flow and prints the report.
///
/// # Errors
/// Returns an error if there is no Postgres to measure on, if the connection to Postgres breaks, or
/// if the workers do not run all jobs.
pub(crate) async fn run(args: &FlowArgs) -> Result<()> {
    let report = measure(args).await?;
    if args.common.json {
        println!("{}", serde_json::to_string(&report.json())?);
    } else {
        println!("{}", report.table());
    }
    Ok(())
}

pub(crate) async fn measure(args: &FlowArgs) -> Result<Report> {
    let Some(base) = args.processes.first().copied() else {
        bail!("--processes needs at least one number");
    };
    if !(0.0..=1_000.0).contains(&args.round_trip_ms) {
        bail!("--round-trip-ms must be at least 0 and at most 1000");
    }
    let bench = Bench::open(&args.common, args.long, CONNECTIONS_MAX).await?;
    let mut processes = args.processes.clone();
    if args.long && !processes.contains(&MANY) {
        processes.push(MANY);
    }
    let plain = processes.iter().map(|processes| (Kind::Plain, *processes));
    let keyed = [(Kind::Lane, base), (Kind::Partition, base)];
    let cases: Vec<(Kind, usize)> = plain.chain(keyed).collect();
    let url = if args.round_trip_ms > 0.0 {
        delayed(
            &bench,
            Duration::from_secs_f64(args.round_trip_ms / 1_000.0),
        )?
    } else {
        bench.url.clone()
    };
    let ours = |kind| Ours {
        program: args.common.caller.clone(),
        url: url.clone(),
        kind,
        payload: args.payload,
        queues: args.queues,
    };
    let mut report = Report::new(args, base, bench.server_version().await?);
    for round in 1..=args.common.rounds {
        // The order alternates, because the state of the computer changes during a round.
        let mut order = cases.clone();
        if round % 2 == 0 {
            order.reverse();
        }
        for (kind, processes) in order {
            let measured = case(&bench, args, &ours(kind), processes).await?;
            say(&format!(
                "round {round}: {} jobs, {processes} worker processes, {} connections\n  {} jobs/s offered: {}\n  full speed: {}",
                kind.name(),
                measured.connections,
                args.rate,
                measured.offered,
                measured.full
            ));
            report.add(kind, processes, measured);
        }
    }
    if args.long {
        for processes in processes {
            let idle = idle(&bench, &ours(Kind::Plain), processes).await?;
            say(&format!("idle: {idle}"));
            report.add_idle(idle);
        }
    }
    bench.close().await?;
    Ok(report)
}

/// The figures of one case in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) offered: Figures,
    pub(crate) full: Figures,
    pub(crate) connections: i64,
}

async fn case(bench: &Bench, args: &FlowArgs, ours: &Ours, processes: usize) -> Result<Case> {
    bench.empty(SCHEMA).await?;
    bench.fill_later(SCHEMA, args.backlog).await?;
    let holder = connect(&bench.url).await?;
    if args.old_snapshot {
        let snapshot = format!("begin isolation level repeatable read; table {SCHEMA}.queues");
        holder.batch_execute(&snapshot).await?;
    }
    let fleet = Fleet::start(bench.server(), ours, processes).await?;
    tokio::time::sleep(bench.duration(SETTLE)).await;
    let (warm_up, lasting) = (bench.duration(WARM_UP), bench.duration(LASTING));
    let offered = fleet.flow(args.rate, warm_up, lasting).await?;
    settle(&fleet).await?;
    let full = fleet.flow(0, warm_up, lasting).await?;
    settle(&fleet).await?;
    let connections = fleet.connections().await?;
    let starts = fleet.stop().await?;
    Ok(Case {
        offered: offered.figures(&starts),
        full: full.figures(&starts),
        connections,
    })
}

async fn settle(fleet: &Fleet<'_>) -> Result<()> {
    if !fleet.settle(TIMEOUT).await? {
        bail!("the workers did not run all jobs within {TIMEOUT:?}");
    }
    Ok(())
}

/// Measures worker processes that have had no work for a minute.
async fn idle(bench: &Bench, ours: &Ours, processes: usize) -> Result<Idle> {
    bench.empty(SCHEMA).await?;
    let fleet = Fleet::start(bench.server(), ours, processes).await?;
    tokio::time::sleep(bench.duration(QUIET)).await;
    let window = fleet.watch(bench.duration(IDLE)).await?;
    let connections = fleet.connections().await?;
    fleet.stop().await?;
    Ok(Idle::new(processes, &window, connections))
}

/// gen_durable as a system under measurement: this program, started again.
pub(crate) struct Ours {
    pub(crate) program: Option<PathBuf>,
    pub(crate) url: String,
    pub(crate) kind: Kind,
    pub(crate) payload: usize,
    pub(crate) queues: u32,
}

/// Starts a proxy in front of the private Postgres, and returns the URL of the proxy.
fn delayed(bench: &Bench, round_trip: Duration) -> Result<String> {
    let url = bench
        .tcp_url()
        .context("a round trip time needs the private Postgres of the bench")?;
    let config: tokio_postgres::Config = url.parse()?;
    let port = config.get_ports().first().copied();
    let port = port.context("the private Postgres has no TCP port")?;
    let proxy = delay::proxy(port, round_trip)?;
    let (own, proxied) = (format!(":{port}/"), format!(":{proxy}/"));
    Ok(format!("{}?sslmode=disable", url.replace(&own, &proxied)))
}

impl System for Ours {
    fn worker(&self, _drains: bool) -> Result<Command> {
        let work = Work {
            url: self.url.clone(),
            schema: SCHEMA.to_owned(),
            queues: self.queues,
        };
        child::this_program(self.program.as_deref(), &Task::Work(work))
    }

    fn producer(&self, rate: u32) -> Result<Command> {
        let produce = Produce {
            url: self.url.clone(),
            schema: SCHEMA.to_owned(),
            kind: self.kind,
            rate,
            payload: self.payload,
            queues: self.queues,
        };
        child::this_program(self.program.as_deref(), &Task::Produce(produce))
    }

    fn unfinished(&self) -> String {
        format!(
            "select exists (select from {SCHEMA}.instances
             where settled_at is null and eligible_at < now() + interval '1 hour')"
        )
    }
}
