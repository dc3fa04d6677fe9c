//! `durable cancel`: cancels one instance, or all that meet some conditions.

use gen_durable::operate::BulkKind;
use serde_json::json;

use super::{
    bulk::{Action, BulkArgs, run_where},
    target::{TargetArgs, named},
};
use crate::{
    connect::{Database, Usage},
    table::{print, print_json},
};

/// Cancel an instance that has not settled, or all that meet some conditions; the result of a
/// running step is rejected
#[derive(Debug, clap::Args)]
pub(crate) struct CancelArgs {
    /// The id of the instance
    #[arg(
        value_name = "ID",
        required_unless_present_any = ["key", "conditions"],
        conflicts_with_all = ["key", "conditions"]
    )]
    id: Option<i64>,
    #[command(flatten)]
    whom: TargetArgs,
    #[command(flatten)]
    bulk: BulkArgs,
    /// Also cancel all its descendants that have not settled
    #[arg(long, conflicts_with = "conditions")]
    subtree: bool,
    /// The reason, stored as the error of the instance
    #[arg(long, default_value = "cancelled")]
    reason: String,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: CancelArgs, json: bool) -> anyhow::Result<()> {
    let CancelArgs {
        id,
        whom,
        bulk,
        subtree,
        reason,
        database,
    } = args;
    if bulk.is_given()? {
        if whom.is_by_key() {
            return Err(Usage::new("--key names one instance: use --where key=KEY").into());
        }
        let action = Action {
            kind: BulkKind::Cancel,
            retry_step: None,
            reason: Some(reason),
        };
        return run_where(bulk, action, &database, json).await;
    }
    let to = whom
        .address(id)
        .ok_or_else(|| Usage::new("no instance given: pass its id, or --key KEY"))?;
    let client = database.client_for("cancel", named(&to)).await?;
    let mut request = client.operate().cancel(to, &reason);
    if subtree {
        request = request.subtree();
    }
    let cancelled = request.await?;
    if json {
        return print_json(&json!({"cancelled": cancelled}));
    }
    print(match cancelled {
        true => "the instance was cancelled",
        false => "too late: the instance has already settled",
    })
}
