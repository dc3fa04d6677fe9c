//! Runs one process of another system for `durable bench compare`: `compare SYSTEM ROLE [ARGUMENT]`,
//! on `DATABASE_URL`.
//!
//! | role | |
//! |---|---|
//! | `setup` | creates the tables |
//! | `fill COUNT` | enqueues jobs in batches |
//! | `worker [drain]` | runs jobs of a flow, or a backlog, until the standard input is closed |
//! | `produce RATE` | enqueues by ten producers until the standard input is closed; 0: as fast as the calls return |
//! | `chain COUNT` | runs workflows of ten steps and prints the seconds that it took |

mod dbos;
mod graphile;
mod process;
mod river;

use anyhow::{Context, Result, bail};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [system, role, rest @ ..] = arguments.as_slice() else {
        bail!("usage: compare SYSTEM ROLE [ARGUMENT]");
    };
    let argument = rest.first().map_or("0", String::as_str);
    let drains = argument == "drain";
    let count = argument.parse::<u64>().unwrap_or(0);
    match (system.as_str(), role.as_str()) {
        ("graphile_worker", "setup") => graphile::setup(&url).await?,
        ("graphile_worker", "fill") => graphile::fill(&url, count).await?,
        ("graphile_worker", "worker") => graphile::work(&url, drains).await?,
        ("graphile_worker", "produce") => graphile::produce(&url, count).await?,
        ("dbos", "setup") => dbos::setup(&url).await?,
        ("dbos", "fill") => dbos::fill(&url, count).await?,
        ("dbos", "worker") => dbos::work(&url).await?,
        ("dbos", "produce") => dbos::produce(&url, count).await?,
        ("dbos", "chain") => dbos::chain(&url, count).await?,
        ("riverqueue", "setup") => river::setup(&url).await?,
        ("riverqueue", "fill") => river::fill(&url, count).await?,
        ("riverqueue", "worker") => river::work(&url).await?,
        ("riverqueue", "produce") => river::produce(&url, count).await?,
        _ => bail!("{system} has no role {role}"),
    }
    // A system whose tasks still run does not delay the end of this process.
    std::process::exit(0);
}
