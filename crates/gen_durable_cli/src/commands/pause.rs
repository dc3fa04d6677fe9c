//! `durable pause` and `durable resume`: pause and resume a queue.

use serde_json::json;

use crate::{
    connect::{Database, user},
    table::{print, print_json},
    text::safe,
};

#[derive(Debug, clap::Args)]
pub(crate) struct PauseArgs {
    /// The queue
    queue: String,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn pause(args: PauseArgs, json: bool) -> anyhow::Result<()> {
    let PauseArgs { queue, database } = args;
    let client = database
        .client_for("pause", format!("queue {queue}"))
        .await?;
    let known = client.inspect().queues().await?;
    let was_open = client.pause_queue(&queue, &user()).await?;
    // A queue may be paused before its first instance. A name with a typing error looks the same,
    // so the command names the queues that exist.
    if known.iter().all(|known| known.name != queue) {
        let names: Vec<String> = known.iter().map(|known| safe(&known.name)).collect();
        let names = match names.is_empty() {
            true => "no queue has instances or workers".to_owned(),
            false => format!("the queues are: {}", names.join(", ")),
        };
        eprintln!(
            "warning: no worker serves the queue {} and it has no instances; {names} (`durable resume` undoes this)",
            safe(&queue)
        );
    }
    if json {
        return print_json(&json!({"queue": queue, "paused": true, "was_paused": !was_open}));
    }
    let queue = safe(&queue);
    let verb = if was_open { "is" } else { "was already" };
    print(format!(
        "{queue} {verb} paused: running steps continue, and nothing is claimed until `durable resume {queue}`"
    ))
}

pub(crate) async fn resume(args: PauseArgs, json: bool) -> anyhow::Result<()> {
    let PauseArgs { queue, database } = args;
    let was_paused = database
        .client_for("resume", format!("queue {queue}"))
        .await?
        .resume_queue(&queue)
        .await?;
    if json {
        return print_json(&json!({"queue": queue, "paused": false, "was_paused": was_paused}));
    }
    let queue = safe(&queue);
    print(if was_paused {
        format!("{queue} is resumed")
    } else {
        format!("{queue} was not paused")
    })
}
