//! Runs the bench as a separate program. Users call the bench as `durable bench`.

use clap::Parser;

#[derive(Parser)]
#[command(about = "Measure the engine and compare it with plain SQL on the same Postgres")]
struct Cli {
    #[command(flatten)]
    args: gen_durable_bench::Args,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    gen_durable_bench::run(Cli::parse().args).await
}
