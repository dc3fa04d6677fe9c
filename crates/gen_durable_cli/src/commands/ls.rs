//! `durable ls`: instances, the newest first.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gen_durable::{Filter, Status, Timestamp};

use super::show::as_json;
use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::{relative, safe, short},
};

/// The most that is shown of an error in a row of a table.
const ERROR_CHARS: usize = 60;

/// List instances, the newest first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Of this machine only
    #[arg(long)]
    machine: Option<String>,
    /// In this status only
    #[arg(long, value_parser = statuses())]
    status: Option<Status>,
    /// Of this queue only
    #[arg(long)]
    queue: Option<String>,
    /// Of this tenant only
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Of this lane only, whether they have left it or not
    #[arg(long, value_name = "KEY")]
    lane: Option<String>,
    /// Under this partition key only
    #[arg(long, value_name = "KEY")]
    partition: Option<String>,
    /// At most this many, up to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    /// Only those older than this id: the next page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    #[command(flatten)]
    database: Database,
}

fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::ALL.map(Status::name))
        .try_map(|name| Status::named(&name).ok_or("there is no such status"))
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let limit = usize::from(args.limit);
    let Args {
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
        let rows = instances
            .iter()
            .map(as_json)
            .collect::<Result<Vec<_>, _>>()?;
        return print_json(&rows);
    }
    if instances.is_empty() {
        return print("no such instances");
    }
    let now = Timestamp::now();
    let mut rows = Rows::new([
        "id", "machine", "step", "status", "queue", "attempt", "enqueued", "changed", "error",
    ])
    .right([0, 5]);
    for row in &instances {
        rows.add([
            row.id.to_string(),
            row.fsm.clone(),
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
        Some(last) if instances.len() == limit => format!("\nolder ones: --before {}", last.id),
        _ => String::new(),
    };
    print(format!("{rows}{more}"))
}
