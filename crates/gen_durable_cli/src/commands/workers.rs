//! `durable workers`: lists the worker processes.

use gen_durable::Timestamp;
use serde_json::{Value, json};

use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::relative,
};

/// List the worker processes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let workers = args.database.client().await?.inspect().workers().await?;
    if json {
        let rows: Vec<Value> = workers
            .iter()
            .map(|w| {
                json!({
                    "id": w.id, "host": w.host, "pid": w.pid, "queues": w.queues, "machines": w.machines,
                    "started_at": w.started_at.to_string(), "lease_expires_at": w.lease_expires_at.to_string(),
                    "alive": w.alive,
                })
            })
            .collect();
        return print_json(&rows);
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
