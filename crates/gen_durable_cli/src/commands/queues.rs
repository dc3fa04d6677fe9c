//! `durable queues`: shows the number of waiting and running instances of each queue.

use super::watch::Watch;
use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::thousands,
};

/// `durable queues` counts at most this number of due instances per queue.
const DUE_COUNTED_MAX: i64 = 10_000;

/// List the queues that have instances or workers, or are paused
#[derive(Debug, clap::Args)]
pub(crate) struct QueuesArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: QueuesArgs, json: bool) -> anyhow::Result<()> {
    let queues = args.database.client().await?.inspect().queues().await?;
    if json {
        return print_json(&queues);
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
        let paused = if queue.is_paused() { "paused" } else { "" };
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
        print("no queue has instances or workers, or is paused")
    } else {
        print(rows)
    }
}
