//! `durable cancel`: end an instance from outside.

use serde_json::json;

use super::whom::{Whom, named};
use crate::{
    connect::{Database, Usage},
    table::{print, print_json},
};

/// End an instance, whatever it waits for; a step that runs loses its claim
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its number
    #[arg(
        value_name = "ID",
        required_unless_present = "key",
        conflicts_with = "key"
    )]
    id: Option<i64>,
    #[command(flatten)]
    whom: Whom,
    /// Everything below it that lives as well
    #[arg(long)]
    subtree: bool,
    /// Why: it becomes the error of the row
    #[arg(long, default_value = "cancelled")]
    reason: String,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let Args {
        id,
        whom,
        subtree,
        reason,
        database,
    } = args;
    let to = whom
        .address(id)
        .ok_or_else(|| Usage::new("which instance? Give its id, or --key KEY"))?;
    let client = database.client_for("cancel", named(&to)).await?;
    let cancelled = client.operate().cancel(to, &reason, subtree).await?;
    if json {
        return print_json(&json!({"cancelled": cancelled}));
    }
    print(match cancelled {
        true => "it is cancelled",
        false => "too late: it had settled",
    })
}
