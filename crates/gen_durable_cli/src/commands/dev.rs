//! `durable dev`: a private Postgres to develop against. It is kept: what is in it is there again tomorrow.

use std::{path::PathBuf, pin::pin};

use gen_durable::{DEFAULT_SCHEMA, Pool};
use gen_durable_postgres::{Options, default_dir};
use serde_json::json;

use super::{asked_to_end, start_postgres, stop_postgres};
use crate::table::{print, print_json};

/// Run a private Postgres to develop against, until Ctrl-C
///
/// It is migrated, and kept: the next `durable dev` finds everything again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the data is kept [default: a directory of this user's data]
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
    // One ear for the whole time: what is asked between two waits is not missed.
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
            "Postgres {} runs on the data in {shown}, and the schema {} is up to date.",
            cluster.version(),
            args.schema
        );
        if cluster.is_joined() {
            eprintln!("(Another process started it, and will stop it.)");
        }
        eprintln!("In another terminal:\n");
        print(format!("  export DATABASE_URL='{url}'"))?;
        eprintln!("\nCtrl-C stops it.");
    }
    end.await?;
    stop_postgres(cluster).await
}
