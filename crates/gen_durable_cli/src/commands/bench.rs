//! `durable bench`. The workloads live in a crate of their own, `gen_durable_bench`, with the same two items; wired, this
//! file is one line: `pub(crate) use gen_durable_bench::{Args, run};` (and `hide` goes from `main.rs`).

/// Measure what this machine can do
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_: Args) -> anyhow::Result<()> {
    anyhow::bail!("this build has no workloads to measure")
}
