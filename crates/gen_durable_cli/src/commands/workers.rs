//! `durable workers`: lists the worker processes.

use gen_durable::schedule::Timestamp;

use super::watch::Watch;
use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::relative,
};

/// List the worker processes
#[derive(Debug, clap::Args)]
pub(crate) struct WorkersArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: WorkersArgs, json: bool) -> anyhow::Result<()> {
    let workers = args.database.client().await?.inspect().workers().await?;
    if json {
        return print_json(&workers);
    }
    let now = Timestamp::now();
    let mut rows = Rows::new(["host", "pid", "started", "lease", "queues", "machines"]).right([1]);
    for worker in workers {
        let expiry = relative(worker.lease_expires_at, now);
        rows.add([
            worker.host,
            worker.pid.to_string(),
            relative(worker.started_at, now),
            if worker.alive {
                format!("expires {expiry}")
            } else {
                format!("expired {expiry}")
            },
            worker.queues.join(" "),
            worker.machines.join(" "),
        ]);
    }
    if rows.is_empty() {
        print("no worker is registered in this schema")
    } else {
        print(rows)
    }
}
