//! `durable cancel`: cancels an instance.

use serde_json::json;

use super::target::{TargetArgs, named};
use crate::{
    connect::{Database, Usage},
    table::{print, print_json},
};

/// Cancel an instance that has not settled; the result of a running step is rejected
#[derive(Debug, clap::Args)]
pub(crate) struct CancelArgs {
    /// The id of the instance
    #[arg(
        value_name = "ID",
        required_unless_present = "key",
        conflicts_with = "key"
    )]
    id: Option<i64>,
    #[command(flatten)]
    whom: TargetArgs,
    /// Also cancel all its descendants that have not settled
    #[arg(long)]
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
        subtree,
        reason,
        database,
    } = args;
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
