//! `durable wait`: waits until an instance has settled.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use gen_durable::inspect::Status;
use serde_json::json;
use tokio::time::Instant;

use super::target::TargetArgs;
use crate::{
    connect::{Database, Usage},
    table::{print, print_json},
    text::{safe, safe_json},
};

/// The interval between two reads of the instance.
const EVERY: Duration = Duration::from_millis(250);
/// The exit code if the instance has not settled in time.
const LATE: u8 = 3;

/// Wait until an instance has settled, and print its result
///
/// The exit code is 0 if it is done, 1 if it failed or was cancelled, and 3 if it has not settled
/// within the time limit.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// The id of the instance
    #[arg(
        value_name = "ID",
        required_unless_present = "key",
        conflicts_with = "key"
    )]
    id: Option<i64>,
    #[command(flatten)]
    whom: TargetArgs,
    /// The time limit in seconds [default: none]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: WaitArgs, json: bool) -> anyhow::Result<ExitCode> {
    let address = args
        .whom
        .address(args.id)
        .ok_or_else(|| Usage::new("no instance given: pass its id, or --key KEY"))?;
    let inspect = args.database.client().await?.inspect();
    let Some(id) = inspect.holder(address).await? else {
        bail!("no instance holds this key: it never existed, or it has settled");
    };
    let limit = args
        .timeout
        .map(|seconds| Duration::from_secs(seconds.into()));
    let began = Instant::now();
    loop {
        let Some(row) = inspect.show(id).await? else {
            bail!(
                "there is no instance {id} in the schema {}",
                args.database.schema
            );
        };
        let is_late = limit.is_some_and(|limit| began.elapsed() >= limit);
        if !row.status.is_settled() && !is_late {
            tokio::time::sleep(EVERY).await;
            continue;
        }
        if json {
            let result: serde_json::Value = match &row.result {
                Some(result) => serde_json::from_str(result)?,
                None => serde_json::Value::Null,
            };
            print_json(
                &json!({"id": row.id.to_string(), "status": row.status, "settled": row.status.is_settled(),
                "result": result, "last_error": row.last_error}),
            )?;
        } else if let (Status::Done, Some(result)) = (row.status, &row.result) {
            print(safe_json(result))?;
        } else {
            let error = row
                .last_error
                .as_deref()
                .map(|error| format!(": {}", safe(error)));
            print(format!(
                "instance {id} is {}{}",
                row.status,
                error.unwrap_or_default()
            ))?;
        }
        return Ok(match row.status {
            Status::Done => ExitCode::SUCCESS,
            status if status.is_settled() => ExitCode::FAILURE,
            _ => ExitCode::from(LATE),
        });
    }
}
