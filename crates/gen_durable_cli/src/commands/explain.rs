//! `durable explain`: shows why an instance does not run.

use anyhow::bail;
use gen_durable::{Blocker, Explanation, Timestamp};
use serde_json::{Value, json};

use crate::{
    connect::Database,
    table::{print, print_json},
    text::{relative, safe, thousands},
};

/// The maximum row count that `durable explain` shows: the statement stops counting at this number.
const COUNTED_MAX: i64 = 10_000;

/// Show why an instance does not run: the first blocker, then the others
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The id of the instance
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
        row.id, row.machine, row.machine_version, row.step, row.status
    );
    let mut lines = vec![safe(&head)];
    match explanation.blockers.split_first() {
        None => lines.push(
            "  nothing blocks it: it is due, and the next pick claims it (unless a transaction has locked its row)"
                .to_owned(),
        ),
        Some((first, others)) => {
            lines.push(format!("  {}", safe(&describe(first, explanation.now))));
            lines.extend(others.iter().map(|other| format!("  also: {}", safe(&describe(other, explanation.now)))));
        }
    }
    print(lines.join("\n"))
}

/// Describes the instance `other` that the explained instance waits for, and the reasons why
/// `other` does not run.
fn because_of(other: &Explanation) -> String {
    let row = &other.instance;
    let instance = format!(
        "instance {} ({} v{}, step {}), {}",
        row.id, row.machine, row.machine_version, row.step, row.status
    );
    let why: Vec<String> = other
        .blockers
        .iter()
        .map(|blocker| describe(blocker, other.now))
        .collect();
    match why.is_empty() {
        true => format!("{instance}: it is due, and the next pick claims it"),
        false => format!("{instance}: {}", why.join("; ")),
    }
}

/// Describes in one line why the head of a lane or the holder of a partition key has not settled.
pub(crate) fn reason(explanation: &Explanation) -> String {
    match explanation.blockers.as_slice() {
        // Omits the reason `BlocksLane` of a failed head, because the text of this reason contains
        // commands, which do not fit into a table.
        [Blocker::Settled { error, .. }, Blocker::BlocksLane { .. }] => {
            format!("blocked: {}", error.as_deref().unwrap_or("it has failed"))
        }
        [
            Blocker::Settled { .. },
            running @ Blocker::CancelledStepRunning { .. },
            ..,
        ] => describe(running, explanation.now),
        [first, ..] => describe(first, explanation.now),
        [] => "it is due, and the next pick claims it".to_owned(),
    }
}

/// Returns the command line arguments that name a lane and its tenant, quoted for a shell.
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
    at.map_or("no deadline".to_owned(), |at| {
        format!("deadline {}", relative(at, now))
    })
}

/// Describes a blocker, which is a reason why an instance does not run, in one sentence.
fn describe(blocker: &Blocker, now: Timestamp) -> String {
    match blocker {
        Blocker::Settled { error: None, .. } => "it has settled".to_owned(),
        Blocker::Settled { error: Some(error), .. } => format!("it has settled: {error}"),
        Blocker::Executing { worker, host, pid, alive } => {
            let location = match (host, pid) {
                (Some(host), Some(pid)) => format!(" ({host}, process {pid})"),
                _ => String::new(),
            };
            match alive {
                true => format!("its step is running on the worker {worker}{location}"),
                false => format!(
                    "the lease of the worker {worker}{location}, which has claimed it, has expired: a live worker releases the claim within one lease period"
                ),
            }
        }
        Blocker::CancelledStepRunning { worker, host, pid, .. } => {
            let location = host.as_deref().zip(*pid).map(|(host, pid)| format!(" ({host}, process {pid})"));
            format!(
                "it was cancelled, but its step is still running on the worker {worker}{}: its lane and partition key stay occupied until the step ends or the lease of that worker expires",
                location.unwrap_or_default()
            )
        }
        Blocker::AwaitingSignal { names, since, deadline: at, signals } => {
            let mut text = format!("it waits for {} (started {})", names.join(" or "), relative(*since, now));
            text.push_str(&format!("; {}", deadline(*at, now)));
            if !signals.is_empty() {
                let inbox: Vec<String> = signals.iter().map(|(name, count)| format!("{count} {name}")).collect();
                text.push_str(&format!("; in its inbox: {}", inbox.join(", ")));
            }
            text
        }
        Blocker::AwaitingChildren { pending, any, deadline: at, children } => {
            let which = if *any { "any of" } else { "all of" };
            let mut text = format!("it waits for {which} {pending} pending children; {}", deadline(*at, now));
            for child in children {
                text.push_str(&format!("; {} ({}, step {}) is {}", child.id, child.machine, child.step, child.status));
            }
            text
        }
        Blocker::Queued { lane, ahead, head } => {
            let ahead = if *ahead > COUNTED_MAX { "over 10,000".to_owned() } else { thousands(*ahead) };
            format!("it is in the lane {lane} with {ahead} before it; the head of the lane is {}", because_of(head))
        }
        Blocker::AwaitingPlacement { live_workers: 0 } => {
            "no live worker: workers assign lane positions and partition holders, and none is running".to_owned()
        }
        Blocker::AwaitingPlacement { .. } => {
            "it awaits placement: the next pick of a live worker assigns its position (unless a transaction has locked its row)"
                .to_owned()
        }
        Blocker::PartitionWaiting { partition, holder } => {
            format!("it waits for the partition key {partition}, held by {}", because_of(holder))
        }
        Blocker::BlocksLane { lane, tenant, behind } => {
            let behind = if *behind > COUNTED_MAX { "over 10,000".to_owned() } else { thousands(*behind) };
            let words = lane_words(tenant, lane);
            format!(
                "it blocks the lane {lane}, {behind} wait behind it: `durable lanes retry {words}` runs it again, `durable lanes skip {words}` leaves it failed and runs the next, `durable lanes discard {words}` cancels it and runs the next"
            )
        }
        Blocker::Stuck { crashes, .. } if *crashes > 0 => format!(
            "it is stuck: {crashes} workers crashed while they ran it (find the cause, then `durable retry`)"
        ),
        Blocker::Stuck { error, .. } => format!(
            "it is stuck: no build that claimed it could decode it: {} (deploy a build that can, or `durable retry`)",
            error.as_deref().unwrap_or("no error was recorded")
        ),
        Blocker::QueueNotWorked { queue } => format!("no live worker works the queue {queue}"),
        Blocker::QueuePaused { queue, since, by } => {
            let by = by.as_deref().unwrap_or("an unknown user");
            format!("the queue {queue} is paused, by {by}, {} (`durable resume {queue}` resumes it)", relative(*since, now))
        }
        Blocker::NotDue { at } => format!("it is due {}", relative(*at, now)),
        Blocker::MachineNotServed { machine, machine_version, queue } => {
            format!("no live worker of the queue {queue} runs {machine} v{machine_version}")
        }
        Blocker::NoWorkerForStep { machine, machine_version, step, queue } => {
            format!("no live worker of the queue {queue} that runs {machine} v{machine_version} knows the step `{step}`: deploy a build that has it")
        }
        Blocker::Suspect { crashes } => {
            format!("it is a suspect: {crashes} workers crashed while they ran it, so a worker runs it only while it runs no other suspect")
        }
        Blocker::BehindOthers { count } if *count > 10_000 => "over 10,000 instances in its queue are due before it".to_owned(),
        Blocker::BehindOthers { count } => format!("{} instances in its queue are due before it", thousands(*count)),
        _ => "a reason that this version of the program does not know".to_owned(),
    }
}

pub(crate) fn as_json(explanation: &Explanation) -> Value {
    let blockers: Vec<Value> = explanation
        .blockers
        .iter()
        .map(|blocker| {
            let value = json!({"kind": kind(blocker), "text": describe(blocker, explanation.now)});
            match blocker {
                Blocker::Queued { lane, ahead, head } => and(
                    value,
                    json!({"lane": lane, "ahead": ahead, "head": as_json(head)}),
                ),
                Blocker::PartitionWaiting { partition, holder } => and(
                    value,
                    json!({"partition": partition, "holder": as_json(holder)}),
                ),
                _ => value,
            }
        })
        .collect();
    let row = &explanation.instance;
    json!({"id": row.id, "machine": row.machine, "step": row.step, "status": row.status.name(), "blockers": blockers})
}

/// Adds the fields of the JSON object `more` to the JSON object `value`.
pub(crate) fn and(mut value: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut value, more) {
        fields.extend(more);
    }
    value
}

/// Returns the name of a blocker, which is a reason why an instance does not run, for JSON output.
fn kind(blocker: &Blocker) -> &'static str {
    match blocker {
        Blocker::Settled { .. } => "settled",
        Blocker::Executing { alive: true, .. } => "executing",
        Blocker::Executing { .. } => "worker_lost",
        Blocker::CancelledStepRunning { .. } => "cancelled_step_running",
        Blocker::AwaitingSignal { .. } => "awaiting_signal",
        Blocker::AwaitingChildren { .. } => "awaiting_children",
        Blocker::Queued { .. } => "queued",
        Blocker::AwaitingPlacement { .. } => "awaiting_placement",
        Blocker::PartitionWaiting { .. } => "partition_waiting",
        Blocker::BlocksLane { .. } => "blocks_lane",
        Blocker::Stuck { .. } => "stuck",
        Blocker::QueueNotWorked { .. } => "queue_not_worked",
        Blocker::QueuePaused { .. } => "queue_paused",
        Blocker::NotDue { .. } => "not_due",
        Blocker::MachineNotServed { .. } => "machine_not_served",
        Blocker::NoWorkerForStep { .. } => "no_worker_for_step",
        Blocker::Suspect { .. } => "suspect",
        Blocker::BehindOthers { .. } => "behind",
        _ => "unknown",
    }
}
