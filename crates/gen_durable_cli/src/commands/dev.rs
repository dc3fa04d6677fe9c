//! `durable dev`: runs a private Postgres for development. The data stays on disk for the next
//! `durable dev`.

use std::{path::PathBuf, pin::pin};

use gen_durable::{DEFAULT_SCHEMA, Pool};
use gen_durable_postgres::{Options, default_dir};
use serde_json::json;

use super::{asked_to_end, start_postgres, stop_postgres};
use crate::table::{print, print_json};

/// Run a private Postgres for development, until Ctrl-C
///
/// The schema is migrated. The data is kept for the next `durable dev`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory of the data [default: a directory in this user's data directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The schema to migrate
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SCHEMA)]
    schema: String,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let dir = match args.dir {
        Some(dir) => dir,
        None => default_dir()?,
    };
    let shown = dir.display().to_string();
    // Registers the handler of SIGINT and SIGTERM once for the whole command, so that the process
    // misses no signal between two waits.
    let mut end = pin!(asked_to_end());
    let cluster = tokio::select! {
        cluster = start_postgres(move || Options::new().kept(dir)) => cluster?,
        _ = &mut end => return Ok(()),
    };
    let url = cluster.url();
    let pool = Pool::connect_to(&url, &args.schema).await?;
    pool.migrate().await?;
    drop(pool);
    if json {
        print_json(&json!({"database_url": url, "schema": args.schema, "dir": shown}))?;
    } else {
        eprintln!(
            "Postgres {} is running with the data in {shown}; the schema {} is up to date.",
            cluster.version(),
            args.schema
        );
        if cluster.is_joined() {
            eprintln!("(Another process started this server and stops it when it ends.)");
        }
        eprintln!("In another terminal:\n");
        print(format!("  export DATABASE_URL='{url}'"))?;
        eprintln!("\nPress Ctrl-C to stop.");
    }
    end.await?;
    stop_postgres(cluster).await
}
