//! The bench on its own; people meet it as `durable bench`.

use clap::Parser;

#[derive(Parser)]
#[command(about = "Measure the engine, and beside it what Postgres can do here at all")]
struct Cli {
    #[command(flatten)]
    args: gen_durable_bench::Args,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    gen_durable_bench::run(Cli::parse().args).await
}
