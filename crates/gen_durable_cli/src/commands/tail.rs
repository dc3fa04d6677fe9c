//! `durable tail`: prints instances as they settle, or the history of one instance as it grows.

use std::{collections::HashSet, time::Duration};

use anyhow::bail;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gen_durable::{
    inspect::{
        HistoryCursor, HistoryEntry, Inspect, SearchHit, SettledCursor, SettledFilter, Status,
    },
    schedule::Timestamp,
};
use serde_json::{Value, json};

use super::{
    asked_to_end,
    filter::{in_time, is_transient, time},
};
use crate::{
    connect::Database,
    table::print_line,
    text::{chain, safe, safe_json, short, span},
};

/// The interval between two reads.
const EVERY: Duration = Duration::from_millis(500);
/// A commit may be visible this long after the `settled_at` of its instances. Each read begins this
/// long before the last instance that was printed.
const COMMIT_MAX: Duration = Duration::from_secs(5);
/// How far back the output begins without `--since`.
const RECENT: Duration = Duration::from_secs(60);
/// The number of rows that one statement reads.
const PAGE: usize = 500;
/// The number of history entries that the output begins with.
const ENTRIES: usize = 20;
/// The maximum number of characters of an error in a line.
const ERROR_CHARS: usize = 100;

/// Print instances as they settle, or the history of one instance
///
/// The command polls with a cursor: a line is printed once, in the order of settling. An instance
/// is not printed if its commit took longer than 5 s.
#[derive(Debug, clap::Args)]
pub(crate) struct TailArgs {
    /// Print the history of this instance, until it has settled
    #[arg(value_name = "ID", conflicts_with_all = ["machine", "queue", "status", "since"])]
    id: Option<i64>,
    /// Wait for more, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Only this machine
    #[arg(long)]
    machine: Option<String>,
    /// Only this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only this status
    #[arg(long, value_parser = settled_statuses())]
    status: Option<Status>,
    /// Begin at this time: 2026-01-31T12:00:00Z, or 90s, 30m, 12h or 7d ago [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    #[command(flatten)]
    database: Database,
}

fn settled_statuses() -> impl TypedValueParser<Value = Status> {
    let settled = [Status::Done, Status::Failed, Status::Cancelled];
    PossibleValuesParser::new(settled.map(Status::name)).try_map(|name| name.parse::<Status>())
}

pub(crate) async fn run(args: TailArgs, json: bool) -> anyhow::Result<()> {
    let inspect = args.database.client().await?.inspect();
    tokio::select! {
        ended = asked_to_end() => Ok(ended?),
        ended = async {
            match args.id {
                Some(id) => history(&inspect, id, args.follow, json).await,
                None => settled(&inspect, args, json).await,
            }
        } => ended,
    }
}

/// Prints instances in the order in which they settle.
async fn settled(inspect: &Inspect, args: TailArgs, json: bool) -> anyhow::Result<()> {
    let begin = match args.since {
        Some(since) => since,
        None => in_time(inspect.estimate()).await?.now - RECENT,
    };
    let mut filter = SettledFilter {
        machine: args.machine,
        queue: args.queue,
        status: args.status,
        limit: PAGE,
        ..SettledFilter::since(begin)
    };
    let mut printed: HashSet<SettledCursor> = HashSet::new();
    loop {
        let page = match in_time(inspect.settled_after(filter.clone())).await {
            Ok(page) => page,
            Err(error) if args.follow && is_transient(&error) => {
                eprintln!("error: {}; trying again", safe(&chain(&error)));
                tokio::time::sleep(EVERY).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        for found in &page.instances {
            let at = found.settled_at.unwrap_or(found.updated_at);
            let cursor = SettledCursor {
                settled_at: at,
                id: found.id,
            };
            if printed.insert(cursor) && !print_line(settled_line(found, at, json)?)? {
                return Ok(());
            }
        }
        filter.after = page.next;
        if !page.is_last {
            continue;
        }
        if !args.follow {
            return Ok(());
        }
        // Reads the last seconds again: a transaction that was open may have committed meanwhile.
        let from = (page.next.settled_at - COMMIT_MAX).max(begin);
        filter.after = SettledCursor {
            settled_at: from,
            id: 0,
        };
        printed.retain(|cursor| cursor.settled_at >= from);
        tokio::time::sleep(EVERY).await;
    }
}

fn settled_line(found: &SearchHit, at: Timestamp, json: bool) -> anyhow::Result<String> {
    if json {
        return Ok(safe_json(&serde_json::to_string(found)?));
    }
    let took = at.duration_since(found.inserted_at).as_secs_f64().max(0.0);
    let error = found
        .last_error
        .as_deref()
        .filter(|_| found.status != Status::Done);
    let line = format!(
        "{at:.3}  {:<9}  {:>8}  {}/{}  {}  after {}  {}",
        found.status.name(),
        found.id,
        safe(&found.machine),
        safe(&found.step),
        safe(&found.queue),
        span(took),
        short(&safe(error.unwrap_or_default()), ERROR_CHARS),
    );
    Ok(line.trim_end().to_owned())
}

/// Prints the history of an instance, and with `follow` also new entries until it has settled.
async fn history(inspect: &Inspect, id: i64, follow: bool, json: bool) -> anyhow::Result<()> {
    if in_time(inspect.show(id)).await?.is_none() {
        bail!("there is no instance {id}");
    }
    let mut last = None;
    loop {
        let entries = match new_entries(inspect, id, last).await {
            Ok(entries) => entries,
            Err(error) if follow && is_transient(&error) => {
                eprintln!("error: {}; trying again", safe(&chain(&error)));
                tokio::time::sleep(EVERY).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        for entry in &entries {
            last = Some(entry.cursor);
            if !print_line(entry_line(id, entry, json)?)? {
                return Ok(());
            }
        }
        let is_settled = entries
            .last()
            .is_some_and(|entry| entry.status.is_settled());
        let is_deleted = || async { matches!(in_time(inspect.show(id)).await, Ok(None)) };
        if !follow || is_settled || is_deleted().await {
            return Ok(());
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Reads the entries of a history after `last`, the oldest first; without `last`, the newest ones.
async fn new_entries(
    inspect: &Inspect,
    id: i64,
    last: Option<HistoryCursor>,
) -> anyhow::Result<Vec<HistoryEntry>> {
    let limit = if last.is_some() { PAGE } else { ENTRIES };
    let (mut entries, mut before) = (Vec::new(), None);
    loop {
        let page = in_time(inspect.history(id, before, limit)).await?;
        let is_full = page.len() == limit;
        before = page.last().map(|entry| entry.cursor);
        let is_new = |entry: &HistoryEntry| last.is_none_or(|last| entry.cursor > last);
        let count = entries.len() + page.len();
        entries.extend(page.into_iter().filter(is_new));
        if last.is_none() || !is_full || entries.len() < count {
            entries.reverse();
            return Ok(entries);
        }
    }
}

fn entry_line(id: i64, entry: &HistoryEntry, json: bool) -> anyhow::Result<String> {
    if json {
        let mut shown = json!(entry);
        if let Value::Object(fields) = &mut shown {
            fields.insert("instance_id".to_owned(), json!(id.to_string()));
        }
        return Ok(safe_json(&shown.to_string()));
    }
    let step = if entry.from == entry.to {
        safe(&entry.from)
    } else {
        format!("{} → {}", safe(&entry.from), safe(&entry.to))
    };
    let line = format!(
        "{:.3}  {:<14}  {step}  {}  {}",
        entry.at,
        entry.outcome.name(),
        entry.status.name(),
        short(
            &safe(entry.error.as_deref().unwrap_or_default()),
            ERROR_CHARS
        ),
    );
    Ok(line.trim_end().to_owned())
}
