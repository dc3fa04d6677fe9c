//! `durable retry`: runs a settled or stuck instance again.

use serde_json::json;

use crate::{
    connect::Database,
    table::{print, print_json},
};

/// Run a failed, cancelled or stuck instance again, from its current step or from another
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    /// The id of the instance
    #[arg(value_name = "ID")]
    id: i64,
    /// Start from this step instead of the current one. The current step of an instance that was
    /// cancelled during a wait is the step after the wait: to wait again, name the step that waits
    #[arg(long)]
    step: Option<String>,
    /// The data of that step as JSON
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

pub(crate) async fn run(args: RetryArgs, json: bool) -> anyhow::Result<()> {
    let RetryArgs {
        id,
        step,
        data,
        database,
    } = args;
    let subject = step.as_ref().map_or_else(
        || format!("instance {id}"),
        |step| format!("instance {id}, from {step}"),
    );
    let client = database.client_for("retry", subject).await?;
    let mut request = client.operate().retry(id);
    if let Some(step) = step {
        request = request.at_step(step);
    }
    if let Some(data) = data {
        request = request.with_data(data);
    }
    request.await?;
    if json {
        print_json(&json!({"id": id.to_string(), "runs_again": true}))
    } else {
        print(format!("instance {id} runs again"))
    }
}
