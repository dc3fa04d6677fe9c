//! `durable explain`: shows why an instance does not run.

use std::collections::BTreeMap;

use anyhow::bail;
use gen_durable::{
    inspect::{Blocker, Explanation, LimitUse},
    schedule::Timestamp,
};
use serde_json::{Value, json};

use super::watch::Watch;
use crate::{
    connect::Database,
    table::{print, print_json},
    text::{relative, safe, thousands},
};

/// The maximum row count that `durable explain` shows: the statement stops counting at this number.
const COUNTED_MAX: i64 = 10_000;

/// Show why an instance does not run: the first blocker, then the others
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// The id of the instance
    #[arg(value_name = "ID")]
    id: i64,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: ExplainArgs, json: bool) -> anyhow::Result<()> {
    let ExplainArgs { id, database, .. } = args;
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
        row.id, row.machine, row.version, row.step, row.status
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
        row.id, row.machine, row.version, row.step, row.status
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

fn location(host: Option<&str>, pid: Option<i32>) -> String {
    host.zip(pid).map_or_else(String::new, |(host, pid)| {
        format!(" ({host}, process {pid})")
    })
}

fn inbox(signals: &BTreeMap<String, i64>) -> String {
    if signals.is_empty() {
        return String::new();
    }
    let counts: Vec<String> = signals
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    format!("; in its inbox: {}", counts.join(", "))
}

/// Formats a number of instances that is counted only up to a limit.
fn counted(count: i64) -> String {
    if count > COUNTED_MAX {
        "over 10,000".to_owned()
    } else {
        thousands(count)
    }
}

/// Describes since when an instance waits for a limit, and the use of each bound that it needs.
fn describe_limits(since: Timestamp, limits: &[LimitUse], now: Timestamp) -> String {
    let since = relative(since, now);
    let bounds = limits.iter().map(|bound| describe_bound(bound, now));
    let waits = std::iter::once(format!("it waits for a limit (started {since})"));
    waits.chain(bounds).collect::<Vec<_>>().join("; ")
}

/// Describes the use of one bound of a limit, and when it has room again.
fn describe_bound(bound: &LimitUse, now: Timestamp) -> String {
    let limit = &bound.limit;
    let name = match bound.key.as_str() {
        "" => format!("the limit {limit}"),
        key => format!("the key {key} of the limit {limit}"),
    };
    let room = match (bound.paused, bound.is_full()) {
        (true, _) => format!(
            "is paused (`durable limits resume {}` resumes it)",
            quoted(limit)
        ),
        (false, true) => "has no room".to_owned(),
        (false, false) => "has room".to_owned(),
    };
    let running = counted(bound.running);
    let run = if bound.running == 1 { "runs" } else { "run" };
    let mut text = match bound.at_once {
        None if bound.running == 1 => format!("{name} {room}: 1 step runs"),
        None => format!("{name} {room}: {running} steps {run}"),
        Some(1) => format!("{name} {room}: {running} of 1 step {run}"),
        Some(at_once) => format!(
            "{name} {room}: {running} of {} steps {run}",
            thousands(at_once)
        ),
    };
    if let Some(tokens) = bound.tokens {
        let tokens = (tokens.max(0.0) * 10.0).floor() / 10.0;
        let are = if tokens == 1.0 {
            "token is"
        } else {
            "tokens are"
        };
        text.push_str(&format!(", {tokens} {are} left"));
    }
    if let Some(at) = bound.free_at {
        text.push_str(&format!(", room {} at the earliest", relative(at, now)));
    }
    text
}

/// Describes a blocker, which is a reason why an instance does not run, in one sentence.
fn describe(blocker: &Blocker, now: Timestamp) -> String {
    match blocker {
        Blocker::Settled { error: None, .. } => "it has settled".to_owned(),
        Blocker::Settled { error: Some(error), .. } => format!("it has settled: {error}"),
        Blocker::Executing { worker, host, pid, alive } => {
            let location = location(host.as_deref(), *pid);
            match alive {
                true => format!("its step is running on the worker {worker}{location}"),
                false => format!(
                    "the lease of the worker {worker}{location}, which has claimed it, has expired: a live worker releases the claim within one lease period"
                ),
            }
        }
        Blocker::CancelledStepRunning { worker, host, pid, .. } => {
            let location = location(host.as_deref(), *pid);
            format!(
                "it was cancelled, but its step is still running on the worker {worker}{location}: its lane and partition key stay occupied until the step ends or the lease of that worker expires"
            )
        }
        Blocker::AwaitingSignal { names, since, deadline_at: at, signals } => {
            let (names, since, deadline) = (names.join(" or "), relative(*since, now), deadline(*at, now));
            format!("it waits for {names} (started {since}); {deadline}{}", inbox(signals))
        }
        Blocker::AwaitingChildren { pending, any, deadline_at: at, children } => {
            let which = if *any { "any of" } else { "all of" };
            let mut text = format!("it waits for {which} {pending} pending children; {}", deadline(*at, now));
            for child in children {
                text.push_str(&format!("; {} ({}, step {}) is {}", child.id, child.machine, child.step, child.status));
            }
            text
        }
        Blocker::AwaitingLimit { since, limits } => describe_limits(*since, limits, now),
        Blocker::Queued { lane, ahead, head } => {
            let ahead = counted(*ahead);
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
            let behind = counted(*behind);
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
        Blocker::QueuePaused { queue, paused_at, paused_by } => {
            let by = paused_by.as_deref().unwrap_or("an unknown user");
            format!("the queue {queue} is paused, by {by}, {} (`durable resume {queue}` resumes it)", relative(*paused_at, now))
        }
        Blocker::NotDue { due_at } => format!("it is due {}", relative(*due_at, now)),
        Blocker::MachineNotServed { machine, version, queue } => {
            format!("no live worker of the queue {queue} runs {machine} v{version}")
        }
        Blocker::NoWorkerForStep { machine, version, step, queue } => {
            format!("no live worker of the queue {queue} that runs {machine} v{version} knows the step `{step}`: deploy a build that has it")
        }
        Blocker::Suspect { crashes } => {
            format!("it is a suspect: {crashes} workers crashed while they ran it, so a worker runs it only while it runs no other suspect")
        }
        Blocker::BehindOthers { count } if *count > 10_000 => "over 10,000 instances in its queue are due before it".to_owned(),
        Blocker::BehindOthers { count } => format!("{} instances in its queue are due before it", thousands(*count)),
        _ => "a reason that this version of the program does not know".to_owned(),
    }
}

/// Returns an explanation as JSON, with a `text` for people in each blocker, and the `reason` why
/// the instance has not settled.
pub(crate) fn as_json(explanation: &Explanation) -> Value {
    let blockers: Vec<Value> = explanation
        .blockers
        .iter()
        .map(|blocker| {
            let text = json!({"text": describe(blocker, explanation.now)});
            let shown = and(json!(blocker), text);
            match blocker {
                Blocker::Queued { head, .. } => and(shown, json!({"head": as_json(head)})),
                Blocker::PartitionWaiting { holder, .. } => {
                    and(shown, json!({"holder": as_json(holder)}))
                }
                _ => shown,
            }
        })
        .collect();
    let more = json!({"blockers": blockers, "reason": reason(explanation)});
    and(json!(explanation), more)
}

/// Adds the fields of the JSON object `more` to the JSON object `value`.
pub(crate) fn and(mut value: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut value, more) {
        fields.extend(more);
    }
    value
}
