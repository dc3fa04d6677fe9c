//! `durable show`: shows one instance.

use std::fmt::Display;

use anyhow::{Context, bail};
use gen_durable::{Instance, Relations, Status, Timestamp};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    connect::Database,
    table::{print, print_json},
    text::{indented, relative, safe, safe_json},
    timeline::{Before, Timeline},
};

/// Show one instance: its step and status, its times, its state, and its history
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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
    database: Database,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let Args {
        id,
        history,
        before,
        database,
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
fn counted<N: Display>(counts: &[(N, i64)]) -> String {
    let counts: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    counts.join(", ")
}

fn for_people(row: &Instance, relations: &Relations) -> String {
    let now = Timestamp::now();
    let time = |then: Timestamp| format!("{then:.3}  ({})", relative(then, now));
    let mut lines = vec![
        (
            "machine",
            format!("{} v{}", row.machine, row.machine_version),
        ),
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
        ("enqueued", time(row.inserted_at)),
        ("due", time(row.eligible_at)),
        ("changed", time(row.updated_at)),
    ];
    lines.extend(row.settled_at.map(|then| ("settled", time(then))));
    lines.extend(row.locked_by.clone().map(|worker| ("held by", worker)));
    lines.extend(row.lease_expires_at.map(|then| ("lease", time(then))));
    if row.crash_count > 0 {
        lines.push((
            "crashes",
            format!("{} workers crashed while they ran it", row.crash_count),
        ));
    }
    if !row.tenant.is_empty() {
        lines.push(("tenant", row.tenant.clone()));
    }
    lines.extend(row.key.clone().map(|key| ("key", key)));
    lines.extend(
        row.lane_key
            .clone()
            .map(|lane| ("lane", format!("{lane}, {}", lane_state(row)))),
    );
    if let Some(key) = &row.partition_key {
        let waiting = if row.partition_waiting {
            ", waits for the partition"
        } else {
            ""
        };
        lines.push(("partition", format!("{key}{waiting}")));
    }
    lines.extend(row.parent_id.map(|parent| ("parent", parent.to_string())));
    if let (Some(names), false) = (&row.awaits, row.status.is_terminal()) {
        lines.push(("awaits", names.join(" or ")));
    }
    if let (Some(then), Some(step)) = (row.deadline_at, &row.deadline_step) {
        lines.push(("deadline", format!("{}, then {step}", time(then))));
    }
    if !relations.signals.is_empty() {
        let name = if row.status.is_terminal() {
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
        _ if row.status.is_terminal() => "which it has left".to_owned(),
        _ => "awaiting placement".to_owned(),
    }
}

/// The JSON output of `durable show` for one instance.
#[derive(Debug, Serialize)]
pub(crate) struct Whole {
    #[serde(flatten)]
    columns: Value,
    state: Box<RawValue>,
    data: Box<RawValue>,
    result: Box<RawValue>,
}

/// Returns an instance with its inbox, children and history as JSON. The JSON reports the signals
/// in the inbox of a settled instance as undelivered.
fn whole(row: &Instance, relations: &Relations, history: &Timeline) -> anyhow::Result<Whole> {
    let mut whole = as_json(row)?;
    if let Value::Object(columns) = &mut whole.columns {
        let signals = relations
            .signals
            .iter()
            .map(|(name, count)| (name.clone(), json!(count)));
        let children = relations
            .children
            .iter()
            .map(|(status, count)| (status.name().to_owned(), json!(count)));
        let name = if row.status.is_terminal() {
            "undelivered"
        } else {
            "signals"
        };
        columns.insert(name.to_owned(), Value::Object(signals.collect()));
        columns.insert("children".to_owned(), Value::Object(children.collect()));
        columns.insert("history".to_owned(), history.as_json());
        columns.insert("history_before".to_owned(), history.older().into());
    }
    Ok(whole)
}

/// Returns an instance as JSON with one field per column. The function copies JSON columns
/// verbatim, so that numbers keep their exact digits.
pub(crate) fn as_json(row: &Instance) -> anyhow::Result<Whole> {
    let body = |text: &Option<String>| -> anyhow::Result<Box<RawValue>> {
        RawValue::from_string(text.clone().unwrap_or_else(|| "null".to_owned()))
            .context("the row contains invalid JSON")
    };
    let columns = json!({
        "id": row.id, "machine": row.machine, "version": row.machine_version, "step": row.step, "status": row.status.name(),
        "queue": row.queue, "priority": row.priority, "tenant": row.tenant, "attempt": row.attempt, "failures": row.failures,
        "last_error": row.last_error, "eligible_at": row.eligible_at.to_string(),
        "inserted_at": row.inserted_at.to_string(), "updated_at": row.updated_at.to_string(),
        "settled_at": row.settled_at.map(|at| at.to_string()),
        "lease_expires_at": row.lease_expires_at.map(|at| at.to_string()),
        "locked_by": row.locked_by, "claim_epoch": row.claim_epoch, "step_seq": row.step_seq, "step_entry_seq": row.step_entry_seq,
        "crash_count": row.crash_count, "traceparent": row.traceparent, "key": row.key,
        "awaits": row.awaits, "deadline_at": row.deadline_at.map(|at| at.to_string()), "deadline_step": row.deadline_step,
        "parent_id": row.parent_id, "parent_generation": row.parent_generation,
        "join_generation": row.join_generation, "join_any": row.join_any, "children_pending": row.children_pending,
        "lane": row.lane_key, "lane_position": row.lane_position, "in_lane": row.in_lane,
        "lane_head": row.is_lane_head(), "lane_blocks": row.lane_blocks,
        "partition": row.partition_key, "partition_waiting": row.partition_waiting,
    });
    Ok(Whole {
        columns,
        state: body(&Some(row.state.clone()))?,
        data: body(&row.data)?,
        result: body(&row.result)?,
    })
}
