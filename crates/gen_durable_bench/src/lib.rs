//! The workloads of `durable bench`. Computers differ, and their load varies. Therefore the bench
//! measures every workload alternately with its floor (the least time that plain SQL needs for the
//! same work). Compare the ratios to the floor between computers, not the absolute numbers.

// The workloads of the bench, one module each.
mod workloads;

// The floors of the bench: the work of the workloads in plain SQL, for comparison.
mod floors;

// The infrastructure that all workloads of the bench share.
mod bench;
mod caller;
mod cpu;
mod jobs;
mod process;
mod report;
mod slow;
mod statistics;

use std::path::PathBuf;

use anyhow::Result;

pub use workloads::Workload;

use bench::{Bench, say};

/// The options of the bench.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Args {
    /// The workloads to measure; all of them if none is given
    #[arg(value_enum, value_name = "WORKLOAD")]
    pub workloads: Vec<Workload>,
    /// Print one JSON object as the last line, instead of a table
    #[arg(long)]
    pub json: bool,
    /// Measure longer: a minute of idle time, a backlog of a million rows, an old snapshot for
    /// three minutes
    #[arg(long)]
    pub long: bool,
    /// Measure each workload and its floor this many times, alternating, and report the medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// For `timers`: the number of pending timers when an engine starts; the default is 1,000,000
    /// with --long and 100,000 otherwise
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub pending: Option<u64>,
    /// Measure on this database, in schemas of the bench's own; without it the bench starts a
    /// private Postgres
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// Multiply all counts and durations, for a quick check without valid numbers
    #[arg(long, value_name = "FACTOR", hide = true, default_value_t = 1.0)]
    pub scale: f64,
    /// The program to start as the calling process; the default is this program
    #[arg(long, value_name = "PATH", hide = true)]
    pub caller: Option<PathBuf>,
}

/// Measures the chosen workloads and prints the report of the bench.
///
/// # Errors
/// Returns an error if there is no Postgres to measure on, or if the connection to Postgres breaks.
pub async fn run(args: Args) -> Result<()> {
    if let Some(task) = caller::task()? {
        return caller::serve(task).await;
    }
    let report = measure(&args).await?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.table());
    }
    Ok(())
}

/// Measures the chosen workloads and returns the value that `durable bench --json` would print.
///
/// # Errors
/// Same as [`run`].
pub async fn measure_json(args: &Args) -> Result<serde_json::Value> {
    Ok(serde_json::to_value(measure(args).await?)?)
}

async fn measure(args: &Args) -> Result<report::Report> {
    let bench = Bench::open(args).await?;
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
