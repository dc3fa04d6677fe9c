//! `durable explain`: why an instance does not run.

use anyhow::bail;
use gen_durable::{Blocker, Explanation, Timestamp};
use serde_json::{Value, json};

use crate::{
    connect::Database,
    table::{print, print_json},
    text::{relative, safe, thousands},
};

/// Beyond this, rows are not counted.
const COUNTED_MAX: i64 = 10_000;

/// Say why an instance does not run: the first thing in its way, and what stands behind it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its number
    #[arg(value_name = "ID")]
    id: i64,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let Args { id, database } = args;
    let Some(explanation) = database.client().await?.inspect().explain(id).await? else {
        bail!(
            "there is no instance {id} in the schema {}",
            database.schema
        );
    };
    if json {
        return print_json(&as_json(&explanation));
    }
    let row = &explanation.instance;
    let head = format!(
        "instance {} ({} v{}, step {}) is {}",
        row.id, row.fsm, row.fsm_version, row.step, row.status
    );
    let mut lines = vec![safe(&head)];
    match explanation.blockers.split_first() {
        None => lines.push(
            "  nothing is in its way: it is due, and the next pick takes it (unless a transaction holds its row)"
                .to_owned(),
        ),
        Some((first, others)) => {
            lines.push(format!("  {}", safe(&said(first, explanation.now))));
            lines.extend(others.iter().map(|other| format!("  besides: {}", safe(&said(other, explanation.now)))));
        }
    }
    print(lines.join("\n"))
}

/// Another instance that this one waits for, and what keeps that one.
fn because_of(other: &Explanation) -> String {
    let row = &other.instance;
    let who = format!(
        "instance {} ({} v{}, step {}), {}",
        row.id, row.fsm, row.fsm_version, row.step, row.status
    );
    let why: Vec<String> = other
        .blockers
        .iter()
        .map(|blocker| said(blocker, other.now))
        .collect();
    match why.is_empty() {
        true => format!("{who}: it is due, and the next pick takes it"),
        false => format!("{who}: {}", why.join("; ")),
    }
}

/// What keeps a head or whoever has the turn, in one line.
pub(crate) fn reason(explanation: &Explanation) -> String {
    match explanation.blockers.as_slice() {
        // What to do about it stands in the second.
        [Blocker::Settled { error, .. }, Blocker::BlocksLane { .. }] => {
            format!("blocked: {}", error.as_deref().unwrap_or("it has failed"))
        }
        [
            Blocker::Settled { .. },
            running @ Blocker::CancelledStepRunning { .. },
            ..,
        ] => said(running, explanation.now),
        [first, ..] => said(first, explanation.now),
        [] => "it is due, and the next pick takes it".to_owned(),
    }
}

/// What to type for a lane, as a shell reads it.
pub(crate) fn lane_words(tenant: &str, lane: &str) -> String {
    let tenant = if tenant.is_empty() {
        String::new()
    } else {
        format!(" --tenant {}", quoted(tenant))
    };
    format!("{}{tenant}", quoted(lane))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-:./@+,=".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn deadline(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or("without a deadline".to_owned(), |at| {
        format!("gives up {}", relative(at, now))
    })
}

/// In the words of a person.
fn said(blocker: &Blocker, now: Timestamp) -> String {
    match blocker {
        Blocker::Settled { error: None, .. } => "it has settled".to_owned(),
        Blocker::Settled { error: Some(error), .. } => format!("it has settled: {error}"),
        Blocker::Executing { worker, host, pid, alive } => {
            let place = match (host, pid) {
                (Some(host), Some(pid)) => format!(" ({host}, process {pid})"),
                _ => String::new(),
            };
            match alive {
                true => format!("it runs, on the live worker {worker}{place}"),
                false => format!(
                    "the worker {worker}{place} that holds it is dead: any live engine takes it back within a lease"
                ),
            }
        }
        Blocker::CancelledStepRunning { worker, host, pid, .. } => {
            let place = host.as_deref().zip(*pid).map(|(host, pid)| format!(" ({host}, process {pid})"));
            format!(
                "it was cancelled, and its step still runs on the worker {worker}{}: its lane and partition key stay taken until the step has ended or the lease of that worker is over",
                place.unwrap_or_default()
            )
        }
        Blocker::AwaitingSignal { names, since, deadline: at, letters } => {
            let mut text = format!("it waits for {}, parked {}", names.join(" or "), relative(*since, now));
            text.push_str(&format!("; {}", deadline(*at, now)));
            if !letters.is_empty() {
                let there: Vec<String> = letters.iter().map(|(name, count)| format!("{count} {name}")).collect();
                text.push_str(&format!("; in its inbox: {}", there.join(", ")));
            }
            text
        }
        Blocker::AwaitingChildren { pending, any, deadline: at, children } => {
            let which = if *any { "any of" } else { "all of" };
            let mut text = format!("it waits for {which} {pending} children; {}", deadline(*at, now));
            for child in children {
                text.push_str(&format!("; {} ({}, step {}) is {}", child.id, child.fsm, child.step, child.status));
            }
            text
        }
        Blocker::Queued { lane, ahead, head } => {
            let ahead = if *ahead > COUNTED_MAX { "over 10,000".to_owned() } else { thousands(*ahead) };
            format!("it stands in the lane {lane} with {ahead} before it; its head is {}", because_of(head))
        }
        Blocker::NotPlaced { live_workers: 0 } => {
            "no live worker: nobody gives out places in lanes and turns under partition keys".to_owned()
        }
        Blocker::NotPlaced { .. } => {
            "it has just arrived: the next pick of a live worker gives it its place (unless a transaction holds its row)"
                .to_owned()
        }
        Blocker::HeldBack { partition, holder } => {
            format!("it waits for its turn under the partition key {partition}, which has {}", because_of(holder))
        }
        Blocker::BlocksLane { lane, tenant, behind } => {
            let behind = if *behind > COUNTED_MAX { "over 10,000".to_owned() } else { thousands(*behind) };
            let words = lane_words(tenant, lane);
            format!(
                "the lane {lane} stands still behind it, {behind} wait: `durable lanes retry {words}` runs it again in its place, `durable lanes skip {words}` leaves it failed and goes on, `durable lanes discard {words}` cancels it and goes on"
            )
        }
        Blocker::Stuck { deaths, .. } if *deaths > 0 => format!(
            "it was set aside: {deaths} workers died while it ran (find out why, then `durable retry`)"
        ),
        Blocker::Stuck { error, .. } => format!(
            "no build that claimed it could decode it: {} (deploy one that can, or `durable retry`)",
            error.as_deref().unwrap_or("no error was recorded")
        ),
        Blocker::QueueNotWorked { queue } => format!("no live worker works the queue {queue}"),
        Blocker::QueuePaused { queue, since, by } => {
            let by = by.as_deref().unwrap_or("somebody");
            format!("the queue {queue} is paused, by {by}, {} (`durable resume {queue}`)", relative(*since, now))
        }
        Blocker::NotDue { at } => format!("it is due {}", relative(*at, now)),
        Blocker::MachineNotServed { fsm, fsm_version, queue } => {
            format!("no live worker of the queue {queue} runs {fsm} v{fsm_version}")
        }
        Blocker::NoWorkerForStep { fsm, fsm_version, step, queue } => {
            format!("no live worker of the queue {queue} that runs {fsm} v{fsm_version} knows the step `{step}`: deploy a build that does")
        }
        Blocker::Suspect { deaths } => {
            format!("{deaths} processes died with it: a worker runs such an instance only one at a time")
        }
        Blocker::Behind { count } if *count > 10_000 => "over 10,000 are due before it in its queue".to_owned(),
        Blocker::Behind { count } => format!("{} are due before it in its queue", thousands(*count)),
        _ => "something that this program does not know".to_owned(),
    }
}

pub(crate) fn as_json(explanation: &Explanation) -> Value {
    let blockers: Vec<Value> = explanation
        .blockers
        .iter()
        .map(|blocker| {
            let value = json!({"kind": kind(blocker), "text": said(blocker, explanation.now)});
            match blocker {
                Blocker::Queued { lane, ahead, head } => and(
                    value,
                    json!({"lane": lane, "ahead": ahead, "head": as_json(head)}),
                ),
                Blocker::HeldBack { partition, holder } => and(
                    value,
                    json!({"partition": partition, "holder": as_json(holder)}),
                ),
                _ => value,
            }
        })
        .collect();
    let row = &explanation.instance;
    json!({"id": row.id, "machine": row.fsm, "step": row.step, "status": row.status.name(), "blockers": blockers})
}

/// One object of both.
pub(crate) fn and(mut value: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut value, more) {
        fields.extend(more);
    }
    value
}

/// A word for programs.
fn kind(blocker: &Blocker) -> &'static str {
    match blocker {
        Blocker::Settled { .. } => "settled",
        Blocker::Executing { alive: true, .. } => "executing",
        Blocker::Executing { .. } => "held_by_the_dead",
        Blocker::CancelledStepRunning { .. } => "cancelled_step_running",
        Blocker::AwaitingSignal { .. } => "awaiting_signal",
        Blocker::AwaitingChildren { .. } => "awaiting_children",
        Blocker::Queued { .. } => "queued",
        Blocker::NotPlaced { .. } => "not_placed",
        Blocker::HeldBack { .. } => "held_back",
        Blocker::BlocksLane { .. } => "blocks_lane",
        Blocker::Stuck { .. } => "stuck",
        Blocker::QueueNotWorked { .. } => "queue_not_worked",
        Blocker::QueuePaused { .. } => "queue_paused",
        Blocker::NotDue { .. } => "not_due",
        Blocker::MachineNotServed { .. } => "machine_not_served",
        Blocker::NoWorkerForStep { .. } => "no_worker_for_step",
        Blocker::Suspect { .. } => "suspect",
        Blocker::Behind { .. } => "behind",
        _ => "unknown",
    }
}
