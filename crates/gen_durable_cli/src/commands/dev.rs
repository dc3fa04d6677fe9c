//! `durable dev`: runs a private Postgres and a dashboard for development. The data stays on disk
//! for the next `durable dev`.

use std::{path::PathBuf, pin::pin};

use gen_durable::{Client, Pool, migrate::DEFAULT_SCHEMA};
use gen_durable_dash::Access;
use gen_durable_postgres::{Options, default_dir};
use serde_json::json;

use super::{asked_to_end, serve, start_postgres, stop_postgres};
use crate::{
    connect::user,
    table::{print, print_json},
};

/// Run a private Postgres and a dashboard for development, until Ctrl-C
///
/// The schema is migrated. The data is kept for the next `durable dev`. Only this computer can
/// reach the dashboard, and it needs no token.
#[derive(Debug, clap::Args)]
pub(crate) struct DevArgs {
    /// The directory of the data [default: a directory in this user's data directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The schema to migrate
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SCHEMA)]
    schema: String,
    /// The port of the dashboard; another free port if it is in use
    #[arg(long, value_name = "PORT", default_value_t = 7070)]
    port: u16,
}

pub(crate) async fn run(args: DevArgs, json: bool) -> anyhow::Result<()> {
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
    let listener = serve::bind_local(args.port).await?;
    let dashboard = serve::address(&listener)?;
    if json {
        print_json(&json!({
            "database_url": url, "schema": args.schema, "dir": shown, "dashboard": dashboard
        }))?;
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
        eprintln!("\nDashboard: {dashboard}\nPress Ctrl-C to stop.");
    }
    let access = Access::only_local(user());
    let options = gen_durable_dash::Options::new().title("durable dev");
    let ended = tokio::select! {
        served = serve::serve(listener, Client::new(pool), access, options) => served,
        ended = end => ended.map_err(Into::into),
    };
    // Stops the server even if the dashboard failed. If both fail, the command reports the error of
    // the dashboard.
    let stopped = stop_postgres(cluster).await;
    ended.and(stopped)
}
