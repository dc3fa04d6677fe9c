//! `durable ls`: lists instances, the newest or the oldest first.

use std::time::Duration;

use gen_durable::{
    inspect::{Inspect, SearchOrder, SearchPage},
    schedule::Timestamp,
};
use gen_durable_dash::InstancesQuery;
use tokio::time::Instant;

use super::{
    filter::{FilterArgs, find},
    watch::Watch,
};
use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::{relative, safe, short},
};

/// The maximum number of characters of an error in the table that `durable ls` prints.
const ERROR_CHARS: usize = 60;
/// How long `durable ls` searches for a full page of instances.
const SEARCH_MAX: Duration = Duration::from_secs(10);

/// List instances, the newest or the oldest first
///
/// Conditions that have an index find an instance of any age at once. Others are compared row by
/// row: the command searches for at most 10 s, and prints how far it has come.
#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// The order: newest or oldest first. There is an index for no other order
    #[arg(long, value_name = "ORDER", default_value = "newest")]
    sort: String,
    /// Only instances with a higher id, for the next page with --sort oldest
    #[arg(long, value_name = "ID", conflicts_with = "before")]
    after: Option<i64>,
    /// Maximum number of rows, up to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: LsArgs, json: bool) -> anyhow::Result<()> {
    let inspect = args.database.client().await?.inspect();
    let mut query = args.filter.query();
    query.sort = Some(args.sort.clone());
    query.after = args.after.map(|id| id.to_string());
    let page = search(&inspect, query, args.limit).await?;
    if json {
        return print_json(&page);
    }
    let is_full = page.instances.len() == usize::from(args.limit);
    let now = Timestamp::now();
    let (more, cursor) = match is_oldest_first(&args.sort) {
        true => ("newer", "--sort oldest --after"),
        false => ("older", "--before"),
    };
    let older = match (page.next, page.next_at) {
        (Some(id), _) if is_full => format!("\n{more}: {cursor} {id}"),
        (Some(id), Some(at)) => format!(
            "\nsearched as far as id {id}, enqueued {}; to continue: {cursor} {id}",
            relative(at, now)
        ),
        (Some(id), None) => format!("\nsearched as far as id {id}; to continue: {cursor} {id}"),
        (None, _) => String::new(),
    };
    if page.instances.is_empty() {
        let so_far = if page.next.is_some() { " so far" } else { "" };
        return print(format!("no instances match{so_far}{older}"));
    }
    let mut rows = Rows::new([
        "id", "machine", "step", "status", "queue", "attempt", "enqueued", "changed", "error",
    ])
    .right([0, 5]);
    for row in &page.instances {
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
    print(format!("{rows}{older}"))
}

fn is_oldest_first(sort: &str) -> bool {
    sort == SearchOrder::OldestFirst.name()
}

/// Searches page by page until `limit` instances are found, the whole table has been read, or the
/// time is over.
async fn search(
    inspect: &Inspect,
    mut query: InstancesQuery,
    limit: u16,
) -> anyhow::Result<SearchPage> {
    let began = Instant::now();
    let mut found = Vec::new();
    loop {
        let missing = usize::from(limit).saturating_sub(found.len());
        query.limit = u16::try_from(missing).ok();
        let mut page = find(inspect, &query).await?;
        found.append(&mut page.instances);
        let is_over = found.len() >= usize::from(limit) || began.elapsed() >= SEARCH_MAX;
        if is_over || page.next.is_none() {
            page.instances = found;
            return Ok(page);
        }
        let next = page.next.map(|id| id.to_string());
        match query.sort.as_deref().is_some_and(is_oldest_first) {
            true => query.after = next,
            false => query.before = next,
        }
    }
}
