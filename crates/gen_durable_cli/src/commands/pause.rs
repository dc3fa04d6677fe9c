//! `durable pause` and `durable resume`: pause and resume a queue.

use serde_json::json;

use crate::{
    connect::{Database, user},
    table::{print, print_json},
    text::safe,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The queue
    queue: String,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn pause(args: Args, json: bool) -> anyhow::Result<()> {
    let Args { queue, database } = args;
    database
        .client_for("pause", format!("queue {queue}"))
        .await?
        .pause(&queue, &user())
        .await?;
    if json {
        return print_json(&json!({"queue": queue, "paused": true}));
    }
    let queue = safe(&queue);
    print(format!(
        "{queue} is paused: running steps continue, and nothing is claimed until `durable resume {queue}`"
    ))
}

pub(crate) async fn resume(args: Args, json: bool) -> anyhow::Result<()> {
    let Args { queue, database } = args;
    let was_paused = database
        .client_for("resume", format!("queue {queue}"))
        .await?
        .resume(&queue)
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
