//! `durable ls`: lists instances, newest first.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gen_durable::{
    Address,
    inspect::{Filter, Inspect, Instance, Search, Status},
    schedule::Timestamp,
};

use super::watch::Watch;
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
    /// Only this step
    #[arg(long)]
    step: Option<String>,
    /// Only instances with this text in their error
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only instances with this key
    #[arg(long)]
    key: Option<String>,
    /// Only instances enqueued since this time: 2026-01-31T12:00:00Z, or 90s, 30m, 12h or 7d ago
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Only instances enqueued before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only this lane, including instances that have left it
    #[arg(long, value_name = "KEY", conflicts_with_all = SEARCHES)]
    lane: Option<String>,
    /// Only this partition key
    #[arg(long, value_name = "KEY", conflicts_with_all = SEARCHES)]
    partition: Option<String>,
    /// Maximum number of rows, up to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    /// Only instances with a lower id, for the next page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

/// The options that search. A list of a lane or of a partition key has an index of its own, and
/// does not combine with them.
const SEARCHES: [&str; 5] = ["step", "error", "key", "since", "until"];

/// Parses a time: a timestamp, or a number of seconds, minutes, hours or days ago.
fn time(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let wrong = || {
        format!(
            "{text:?} is neither a timestamp such as 2026-01-31T12:00:00Z nor a time ago such as 90s, 30m, 12h or 7d"
        )
    };
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let ago = number
        .checked_mul(seconds)
        .filter(|ago| *ago >= 0)
        .ok_or_else(wrong)?;
    Timestamp::from_second(Timestamp::now().as_second().saturating_sub(ago)).map_err(|_| wrong())
}

fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::ALL.map(Status::name)).try_map(|name| name.parse::<Status>())
}

pub(crate) async fn run(args: LsArgs, json: bool) -> anyhow::Result<()> {
    let inspect = args.database.client().await?.inspect();
    let (instances, next) = match args.searches() {
        true => search(&inspect, args).await?,
        false => list(&inspect, args).await?,
    };
    if json {
        return print_json(&instances);
    }
    if instances.is_empty() {
        let found = if next.is_some() {
            "no instances match so far"
        } else {
            "no instances match"
        };
        return print(format!("{found}{}", older(next)));
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
    print(format!("{rows}{}", older(next)))
}

fn older(next: Option<i64>) -> String {
    next.map(|id| format!("\nolder: --before {id}"))
        .unwrap_or_default()
}

impl LsArgs {
    /// Returns whether the options include one that searches.
    fn searches(&self) -> bool {
        self.step.is_some()
            || self.error.is_some()
            || self.key.is_some()
            || self.since.is_some()
            || self.until.is_some()
    }
}

/// Lists instances by the columns that have an index. Returns them and the cursor of the next page.
async fn list(inspect: &Inspect, args: LsArgs) -> anyhow::Result<(Vec<Instance>, Option<i64>)> {
    let limit = usize::from(args.limit);
    let filter = Filter {
        machine: args.machine,
        status: args.status,
        queue: args.queue,
        tenant: args.tenant,
        lane: args.lane,
        partition: args.partition,
        before: args.before,
        limit,
    };
    let instances = inspect.list(filter).await?;
    let last = instances.last().filter(|_| instances.len() == limit);
    let next = last.map(|last| last.id);
    Ok((instances, next))
}

/// Searches instances. One search reads a bounded number of rows, so there may be a next page
/// although this one has fewer rows than the limit.
async fn search(inspect: &Inspect, args: LsArgs) -> anyhow::Result<(Vec<Instance>, Option<i64>)> {
    let others = [&args.machine, &args.step, &args.queue, &args.error];
    let is_by_key_alone = others.iter().all(|other| other.is_none())
        && args.status.is_none()
        && args.since.is_none()
        && args.until.is_none()
        && args.before.is_none();
    let search = Search {
        machine: args.machine,
        version: None,
        step: args.step,
        status: args.status,
        queue: args.queue,
        tenant: args.tenant.clone(),
        key: args.key.clone(),
        error: args.error,
        since: args.since,
        until: args.until,
        before: args.before,
        limit: usize::from(args.limit),
    };
    let page = inspect.search(search).await?;
    let mut ids: Vec<i64> = page.instances.iter().map(|found| found.id).collect();
    // The instance that holds the key is found by an index, however old it is.
    if let (Some(key), true) = (args.key, is_by_key_alone) {
        let holder = Address::keyed(key).of(args.tenant.unwrap_or_default());
        let holder = inspect.holder(holder).await?;
        ids.extend(holder.filter(|id| !ids.contains(id)));
    }
    let mut instances = Vec::new();
    for id in ids {
        instances.extend(inspect.show(id).await?);
    }
    Ok((instances, page.next))
}
