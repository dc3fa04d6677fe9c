//! `durable enqueue`: inserts an instance by the names of its machine and step.

use std::time::Duration;

use gen_durable::{operate::UntypedInstance, schedule::Timestamp};
use serde_json::json;

use crate::{
    connect::Database,
    table::{print, print_json},
};

/// Enqueue an instance: `durable enqueue checkout --step reserve --state '{"order": 42}'`
#[derive(Debug, clap::Args)]
pub(crate) struct EnqueueArgs {
    /// The name of the machine or job
    machine: String,
    /// The state as JSON
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    state: String,
    /// The first step: required for machines; a job has only `run`
    #[arg(long, default_value = "run")]
    step: String,
    /// The data of that step as JSON
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    data: Option<String>,
    /// The version of the machine
    #[arg(long, value_name = "N", default_value_t = 1)]
    machine_version: u16,
    /// The queue
    #[arg(long, default_value = "default")]
    queue: String,
    /// The priority; lower values run first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i16,
    /// Run only after this number of seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    after: Option<Duration>,
    /// Run only after this time: 2026-11-15T10:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "after")]
    at: Option<Timestamp>,
    /// The tenant
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// The key of the instance, unique until the instance settles
    #[arg(long)]
    key: Option<String>,
    /// The lane of the instance: one instance after the other, in order of enqueueing
    #[arg(long, value_name = "KEY")]
    lane: Option<String>,
    /// Block the lane if the instance fails permanently
    #[arg(long, requires = "lane")]
    lane_blocks: bool,
    /// The partition key: at most one running step per key
    #[arg(long, value_name = "KEY")]
    partition: Option<String>,
    #[command(flatten)]
    database: Database,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

pub(crate) async fn run(args: EnqueueArgs, json: bool) -> anyhow::Result<()> {
    let mut new = UntypedInstance::new(args.machine, args.step, args.state);
    new.data = args.data;
    new.version = args.machine_version;
    new.queue = args.queue;
    new.priority = args.priority;
    new.delay = args.after.unwrap_or_default();
    new.due_at = args.at;
    new.tenant = args.tenant;
    new.key = args.key;
    (new.lane, new.lane_blocks, new.partition) = (args.lane, args.lane_blocks, args.partition);
    let client = args
        .database
        .client_for("enqueue", format!("machine {}", new.machine))
        .await?;
    let enqueued = client.operate().enqueue(new).await?;
    let (id, is_new) = (enqueued.id.raw(), enqueued.is_new);
    if json {
        return print_json(&json!({"id": id.to_string(), "is_new": is_new}));
    }
    print(match is_new {
        true => format!("instance {id} was enqueued"),
        false => format!("the key is taken by instance {id}: nothing was enqueued"),
    })
}
