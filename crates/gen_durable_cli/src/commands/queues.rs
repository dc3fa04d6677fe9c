//! `durable queues`: shows the number of waiting and running instances of each queue.

use serde_json::{Value, json};

use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::thousands,
};

/// `durable queues` counts at most this number of due instances per queue.
const DUE_COUNTED_MAX: i64 = 10_000;

/// List the queues that have instances or are paused
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let queues = args.database.client().await?.inspect().queues().await?;
    if json {
        let rows: Vec<Value> = queues
            .iter()
            .map(|q| {
                json!({
                    "name": q.name, "paused": q.paused, "due": q.due, "executing": q.executing,
                    "queued": q.queued, "partition_waiting": q.partition_waiting,
                })
            })
            .collect();
        return print_json(&rows);
    }
    let mut rows = Rows::new([
        "queue",
        "due",
        "executing",
        "in lanes",
        "partition waiting",
        "",
    ])
    .right([1, 2, 3, 4]);
    for queue in queues {
        let counted = |count| {
            if count > DUE_COUNTED_MAX {
                "over 10,000".to_owned()
            } else {
                thousands(count)
            }
        };
        let (due, queued, partition_waiting) = (
            counted(queue.due),
            counted(queue.queued),
            counted(queue.partition_waiting),
        );
        let paused = if queue.paused { "paused" } else { "" };
        rows.add([
            queue.name,
            due,
            thousands(queue.executing),
            queued,
            partition_waiting,
            paused.to_owned(),
        ]);
    }
    if rows.is_empty() {
        print("no queue has instances or is paused")
    } else {
        print(rows)
    }
}
