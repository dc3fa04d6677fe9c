//! `durable show`: shows one instance.

use std::{collections::BTreeMap, fmt::Display};

use anyhow::bail;
use gen_durable::{
    inspect::{HistoryEntry, Instance, Relations, Status},
    schedule::Timestamp,
};
use serde::Serialize;
use serde_json::Value;

use super::watch::Watch;
use crate::{
    connect::Database,
    table::{print, print_json},
    text::{indented, relative, safe, safe_json},
    timeline::{Before, Timeline},
};

/// Show one instance: its step and status, its times, its state, and its history
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The id of the instance, as `durable ls` shows it
    #[arg(value_name = "ID")]
    id: i64,
    /// The number of history entries
    #[arg(long, value_name = "LINES", default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=999))]
    history: u16,
    /// Only history before this cursor, as printed below the previous page
    #[arg(long, value_name = "COMMITS.CLAIMS")]
    before: Option<Before>,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: ShowArgs, json: bool) -> anyhow::Result<()> {
    let ShowArgs {
        id,
        history,
        before,
        database,
        ..
    } = args;
    let inspect = database.client().await?.inspect();
    let Some(row) = inspect.show(id).await? else {
        bail!(
            "there is no instance {id} in the schema {}: it never existed, or it settled and its retention is over (`durable ls` lists the instances)",
            database.schema
        );
    };
    let relations = inspect.relations(id).await?;
    let history = Timeline::read(&inspect, id, before, history.into()).await?;
    if json {
        print_json(&whole(&row, &relations, &history)?)
    } else {
        print(for_people(&row, &relations) + &history.for_people(&row))
    }
}

/// Formats pairs of a name and a count as "2 paid, 1 noise".
fn counted<N: Display>(counts: &BTreeMap<N, i64>) -> String {
    let counts: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    counts.join(", ")
}

/// Formats an instance for people.
fn for_people(row: &Instance, relations: &Relations) -> String {
    let now = Timestamp::now();
    let mut lines = lines_of_step(row, now);
    lines.extend(lines_of_keys(row));
    lines.extend(lines_of_waits(row, relations, now));
    lines.extend(row.traceparent.clone().map(|trace| ("trace", trace)));
    lines.extend(row.last_error.clone().map(|error| ("error", error)));
    let mut shown = format!("instance {}\n", row.id);
    for (name, value) in &lines {
        shown.push_str(&format!("  {name:11} {}\n", safe(value)));
    }
    let bodies = [
        ("state", Some(&row.state)),
        ("data", row.data.as_ref()),
        ("result", row.result.as_ref()),
    ];
    for (name, body) in bodies {
        if let Some(body) = body {
            let body = safe_json(&indented(body)).replace('\n', "\n              ");
            shown.push_str(&format!("  {name:11} {body}\n"));
        }
    }
    shown
}

/// A line of `durable show`: the name of a column, and its value.
type Line = (&'static str, String);

/// Formats a time with its distance from now.
fn time(then: Timestamp, now: Timestamp) -> String {
    format!("{then:.3}  ({})", relative(then, now))
}

/// Describes where an instance stands, its times, and its claim.
fn lines_of_step(row: &Instance, now: Timestamp) -> Vec<Line> {
    let mut lines = vec![
        ("machine", format!("{} v{}", row.machine, row.version)),
        ("status", row.status.name().to_owned()),
        ("step", step(row)),
        ("queue", format!("{}, priority {}", row.queue, row.priority)),
        (
            "attempt",
            format!(
                "{} earlier runs of this step, {} of them failed",
                row.attempt, row.failures
            ),
        ),
        ("commits", row.step_seq.to_string()),
        ("enqueued", time(row.inserted_at, now)),
        ("due", time(row.eligible_at, now)),
        ("changed", time(row.updated_at, now)),
    ];
    lines.extend(row.settled_at.map(|then| ("settled", time(then, now))));
    lines.extend(row.locked_by.clone().map(|worker| ("held by", worker)));
    lines.extend(row.lease_expires_at.map(|then| ("lease", time(then, now))));
    if row.crash_count > 0 {
        lines.push((
            "crashes",
            format!("{} workers crashed while they ran it", row.crash_count),
        ));
    }
    lines
}

/// Describes the tenant, the key, the lane, the partition key and the parent of an instance.
fn lines_of_keys(row: &Instance) -> Vec<Line> {
    let mut lines = Vec::new();
    if !row.tenant.is_empty() {
        lines.push(("tenant", row.tenant.clone()));
    }
    lines.extend(row.key.clone().map(|key| ("key", key)));
    lines.extend(
        row.lane
            .clone()
            .map(|lane| ("lane", format!("{lane}, {}", lane_state(row)))),
    );
    if let Some(key) = &row.partition {
        let waiting = if row.partition_waiting {
            ", waits for the partition"
        } else {
            ""
        };
        lines.push(("partition", format!("{key}{waiting}")));
    }
    lines.extend(row.parent_id.map(|parent| ("parent", parent.to_string())));
    lines
}

/// Describes the signals and children for which an instance waits, and its deadline.
fn lines_of_waits(row: &Instance, relations: &Relations, now: Timestamp) -> Vec<Line> {
    let mut lines = Vec::new();
    if let (Some(names), false) = (&row.awaits, row.status.is_settled()) {
        lines.push(("awaits", names.join(" or ")));
    }
    if let (Some(then), Some(step)) = (row.deadline_at, &row.deadline_step) {
        lines.push(("deadline", format!("{}, then {step}", time(then, now))));
    }
    if !relations.signals.is_empty() {
        let name = if row.status.is_settled() {
            "undelivered"
        } else {
            "inbox"
        };
        lines.push((name, counted(&relations.signals)));
    }
    if !relations.children.is_empty() {
        let pending = match row.children_pending {
            0 => String::new(),
            pending => format!("; {pending} of its last spawn have not settled"),
        };
        lines.push((
            "children",
            format!("{}{pending}", counted(&relations.children)),
        ));
    }
    lines
}

/// Describes the step of an instance. While the instance waits, this is the step after the wait.
fn step(row: &Instance) -> String {
    match row.status {
        Status::AwaitingSignal | Status::AwaitingChildren => {
            format!("{}, after the wait", row.step)
        }
        _ => row.step.clone(),
    }
}

/// Describes the position of an instance in its lane.
fn lane_state(row: &Instance) -> String {
    let position = row
        .lane_position
        .map_or_else(String::new, |position| format!(", position {position}"));
    match (row.is_lane_head(), row.in_lane) {
        _ if row.blocks_its_lane() => format!("which it blocks{position}"),
        (true, _) => format!("its head{position}"),
        (_, true) => format!("behind its head{position}"),
        _ if row.status.is_settled() => "which it has left".to_owned(),
        _ => "awaiting placement".to_owned(),
    }
}

/// The JSON output of `durable show`: an instance with its inbox, children and history. Signals in
/// the inbox of a settled instance are undelivered.
#[derive(Debug, Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    row: &'a Instance,
    #[serde(flatten)]
    relations: Value,
    history: &'a [HistoryEntry],
    history_before: Option<String>,
}

fn whole<'a>(
    row: &'a Instance,
    relations: &Relations,
    history: &'a Timeline,
) -> anyhow::Result<Whole<'a>> {
    let mut relations = serde_json::to_value(relations)?;
    if let (Value::Object(fields), true) = (&mut relations, row.status.is_settled()) {
        let signals = fields.remove("signals").unwrap_or_default();
        fields.insert("undelivered".to_owned(), signals);
    }
    Ok(Whole {
        row,
        relations,
        history: history.entries(),
        history_before: history.older(),
    })
}
