//! `durable ls`: lists instances, newest first.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gen_durable::{
    inspect::{Filter, Status},
    schedule::Timestamp,
};

use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::{relative, safe, short},
};

/// The maximum number of characters of an error in the table that `durable ls` prints.
const ERROR_CHARS: usize = 60;

/// List instances, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// Only this machine
    #[arg(long)]
    machine: Option<String>,
    /// Only this status
    #[arg(long, value_parser = statuses())]
    status: Option<Status>,
    /// Only this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only this lane, including instances that have left it
    #[arg(long, value_name = "KEY")]
    lane: Option<String>,
    /// Only this partition key
    #[arg(long, value_name = "KEY")]
    partition: Option<String>,
    /// Maximum number of rows, up to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    /// Only instances with a lower id, for the next page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    #[command(flatten)]
    database: Database,
}

fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::ALL.map(Status::name)).try_map(|name| name.parse::<Status>())
}

pub(crate) async fn run(args: LsArgs, json: bool) -> anyhow::Result<()> {
    let limit = usize::from(args.limit);
    let LsArgs {
        machine,
        status,
        queue,
        tenant,
        lane,
        partition,
        before,
        ..
    } = args;
    let filter = Filter {
        machine,
        status,
        queue,
        tenant,
        lane,
        partition,
        before,
        limit,
    };
    let instances = args.database.client().await?.inspect().list(filter).await?;
    if json {
        return print_json(&instances);
    }
    if instances.is_empty() {
        return print("no instances match");
    }
    let now = Timestamp::now();
    let mut rows = Rows::new([
        "id", "machine", "step", "status", "queue", "attempt", "enqueued", "changed", "error",
    ])
    .right([0, 5]);
    for row in &instances {
        rows.add([
            row.id.to_string(),
            row.machine.clone(),
            row.step.clone(),
            row.status.name().to_owned(),
            row.queue.clone(),
            row.attempt.to_string(),
            relative(row.inserted_at, now),
            relative(row.updated_at, now),
            short(
                &safe(row.last_error.as_deref().unwrap_or_default()),
                ERROR_CHARS,
            ),
        ]);
    }
    let more = match instances.last() {
        Some(last) if instances.len() == limit => format!("\nolder: --before {}", last.id),
        _ => String::new(),
    };
    print(format!("{rows}{more}"))
}
