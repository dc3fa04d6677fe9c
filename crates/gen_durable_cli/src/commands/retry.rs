//! `durable retry`: a settled or stuck instance runs again.

use serde_json::json;

use crate::{
    connect::Database,
    table::{print, print_json},
};

/// Run a failed, cancelled or stuck instance again, from its step or from another
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its number
    #[arg(value_name = "ID")]
    id: i64,
    /// From this step, not from where it stands. One that was cancelled while it waited stands where the wait led to: name
    /// the step that waits
    #[arg(long)]
    step: Option<String>,
    /// What that step carries, as JSON
    #[arg(
        long,
        value_name = "JSON",
        requires = "step",
        allow_negative_numbers = true
    )]
    data: Option<String>,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let Args {
        id,
        step,
        data,
        database,
    } = args;
    let from = step.as_deref().map(|step| (step, data.as_deref()));
    let on = step.as_ref().map_or_else(
        || format!("instance {id}"),
        |step| format!("instance {id}, from {step}"),
    );
    database
        .client_for("retry", on)
        .await?
        .operate()
        .retry(id, from)
        .await?;
    if json {
        print_json(&json!({"id": id, "runs_again": true}))
    } else {
        print(format!("instance {id} runs again"))
    }
}
