//! The workloads of `durable bench`. Computers differ, and their load varies. Therefore the bench
//! measures every workload alternately with its floor (the least time that plain SQL needs for the
//! same work). Compare the ratios to the floor between computers, not the absolute numbers. Two
//! commands measure processes: `flow` a fleet of workers, `compare` other queues and engines.

// The commands of the bench.
mod compare;
mod flow;

// The workloads of the bench, one module each.
mod workloads;

// The floors of the bench: the work of the workloads in plain SQL, for comparison.
mod floors;

// The infrastructure that all workloads of the bench share.
mod bench;
mod caller;
mod child;
mod cpu;
mod delay;
mod fleet;
mod jobs;
mod process;
mod report;
mod slow;
mod statistics;

use std::path::PathBuf;

use anyhow::Result;

pub use compare::CompareArgs;
pub use flow::FlowArgs;
pub use workloads::Workload;

use bench::{Bench, say};

/// The number of connections to the private Postgres of the workloads.
const CONNECTIONS_MAX: u32 = 300;

/// The options of the bench.
#[derive(clap::Args, Debug, Clone, Default)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// The command; without it the bench measures workloads.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The workloads to measure; all of them if none is given
    #[arg(value_enum, value_name = "WORKLOAD")]
    pub workloads: Vec<Workload>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
    /// Measure longer: a minute of idle time, a backlog of a million rows, an old snapshot for
    /// three minutes
    #[arg(long)]
    pub long: bool,
    /// For `timers`: the number of pending timers when an engine starts; the default is 1,000,000
    /// with --long and 100,000 otherwise
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub pending: Option<u64>,
}

/// A command of the bench.
#[derive(clap::Subcommand, Debug, Clone)]
pub enum Command {
    /// Measure a steady flow of no-op jobs with worker processes of their own
    ///
    /// Ten producers with a connection each run in another process. Each round runs every case: the
    /// workers start, the producers enqueue at --rate (latency, transactions, CPU), then as fast as
    /// their calls return (throughput). Latency is the time from just before an enqueue call to the
    /// start of the step. The report contains the medians of all rounds. Ratios such as
    /// `flow_8_over_1` compare 8 worker processes with 1: `flow` is throughput at full speed;
    /// `p50`, `p99` and `cpu` (CPU time per job of Postgres and the workers) are at --rate.
    Flow(FlowArgs),
    /// Compare with other queues and durable engines on the same server
    ///
    /// Runs only in a clone of the repository: its directory tools/compare contains the programs of
    /// the other systems, and cargo and npm install them. The systems take turns. Writes a table
    /// and plots into docs/bench: a steady flow (10 producers, 1 and 8 worker processes), the drain
    /// of 100,000 jobs, and chains of 10 steps for engines with durable steps.
    Compare(CompareArgs),
}

/// The options that workloads and `flow` share.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Common {
    /// Print one JSON object as the last line, instead of a table
    #[arg(long)]
    pub json: bool,
    /// Measure everything this many times, alternating, and report the medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Measure on this database, in schemas of the bench's own; without it the bench starts a
    /// private Postgres
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// Multiply all counts and durations, for a quick check without valid numbers
    #[arg(long, value_name = "FACTOR", hide = true, default_value_t = 1.0)]
    pub scale: f64,
    /// The program to start for other processes; the default is this program
    #[arg(long, value_name = "PATH", hide = true)]
    pub caller: Option<PathBuf>,
}

/// Runs a command of the bench, or measures the chosen workloads, and prints the report.
///
/// # Errors
/// Returns an error if there is no Postgres to measure on, or if the connection to Postgres breaks.
pub async fn run(args: Args) -> Result<()> {
    if let Some(task) = caller::task()? {
        return caller::serve(task).await;
    }
    match &args.command {
        Some(Command::Flow(flow)) => return flow::run(flow).await,
        Some(Command::Compare(compare)) => return compare::run(compare).await,
        None => {}
    }
    let report = measure(&args).await?;
    if args.common.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.table());
    }
    Ok(())
}

/// Measures the flow or the chosen workloads, and returns the value that `--json` would print.
///
/// # Errors
/// Same as [`run`].
pub async fn measure_json(args: &Args) -> Result<serde_json::Value> {
    match &args.command {
        Some(Command::Flow(flow)) => Ok(flow::measure(flow).await?.json()),
        _ => Ok(serde_json::to_value(measure(args).await?)?),
    }
}

async fn measure(args: &Args) -> Result<report::Report> {
    let mut bench = Bench::open(&args.common, args.long, CONNECTIONS_MAX).await?;
    bench.pending = args.pending;
    let mut workloads = args.workloads.clone();
    if workloads.is_empty() {
        workloads = Workload::ALL.to_vec();
    }
    let mut results = Vec::new();
    for workload in workloads {
        say(&format!("{}: {}", workload.name(), workload.about()));
        results.push(workload.measure(&bench).await?);
    }
    let report = report::Report::new(args, bench.server_version().await?, results);
    bench.close().await?;
    Ok(report)
}
