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
    let was_open = database
        .client_for("pause", format!("queue {queue}"))
        .await?
        .pause_queue(&queue, &user())
        .await?;
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
