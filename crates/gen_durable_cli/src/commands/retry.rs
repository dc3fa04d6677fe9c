//! `durable retry`: runs one settled or stuck instance again, or all that meet some conditions.

use gen_durable::operate::BulkKind;
use serde_json::json;

use super::bulk::{Action, BulkArgs, run_where};
use crate::{
    connect::{Database, Usage},
    table::{print, print_json},
};

/// Run a failed, cancelled or stuck instance again, from its current step or from another; or all
/// that meet some conditions
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    /// The id of the instance
    #[arg(value_name = "ID", conflicts_with = "conditions")]
    id: Option<i64>,
    #[command(flatten)]
    bulk: BulkArgs,
    /// Start from this step instead of the current one. The current step of an instance that was
    /// cancelled during a wait is the step after the wait: to wait again, name the step that waits
    #[arg(long)]
    step: Option<String>,
    /// The data of that step as JSON
    #[arg(
        long,
        value_name = "JSON",
        requires = "step",
        conflicts_with = "conditions",
        allow_negative_numbers = true
    )]
    data: Option<String>,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: RetryArgs, json: bool) -> anyhow::Result<()> {
    let RetryArgs {
        id,
        bulk,
        step,
        data,
        database,
    } = args;
    if bulk.is_given()? {
        let action = Action {
            kind: BulkKind::Retry,
            retry_step: step,
            reason: None,
        };
        return run_where(bulk, action, &database, json).await;
    }
    let id = id.ok_or_else(|| {
        Usage::new("no instance given: pass its id, or conditions: --where status=failed")
    })?;
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
