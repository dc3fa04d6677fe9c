//! The workloads of `durable bench`. Machines are noisy and differ: every number is measured together with its floor
//! (the least that plain SQL needs for the same work), interleaved with it in the same run, and the ratio is what holds.

// What is measured, one file each.
mod workloads;

// What it is measured against.
mod floors;

// What all of them stand on.
mod bench;
mod caller;
mod jobs;
mod process;
mod report;
mod slow;
mod statistics;

use std::path::PathBuf;

use anyhow::Result;

pub use workloads::Workload;

use bench::{Bench, say};

/// What to measure, and how.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Args {
    /// Which workloads; all of them if none is named
    #[arg(value_enum, value_name = "WORKLOAD")]
    pub workloads: Vec<Workload>,
    /// Print one JSON object as the last line, instead of a table
    #[arg(long)]
    pub json: bool,
    /// The long forms: a quiet minute, a backlog of a million, an old snapshot for three minutes
    #[arg(long)]
    pub long: bool,
    /// Measure each workload and its floor this often, in turns, and take the medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// In `timers`: how many are pending when an engine starts; 1,000,000 in the long form, 100,000 otherwise
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub pending: Option<u64>,
    /// Measure on this database, in schemas of the bench's own; without it a Postgres is started for the occasion
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// Multiply all counts and durations: a quick look, not a measurement
    #[arg(long, value_name = "FACTOR", hide = true, default_value_t = 1.0)]
    pub scale: f64,
    /// The program that calls from another process; without it this one, started again
    #[arg(long, value_name = "PATH", hide = true)]
    pub caller: Option<PathBuf>,
}

/// Measure, and print what was found.
///
/// # Errors
/// When there is no Postgres to measure on, or it goes away meanwhile.
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

/// Measure, and answer what would be printed with `--json`.
///
/// # Errors
/// As [`run`].
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
