//! The HTTP handlers for one instance: they return its columns, its history, its inbox, its
//! children, and the reason why the instance does not run.

use axum::{Extension, Json, extract::State};
use gen_durable::{Blocker, HistoryCursor, Status, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::json as shown;
use crate::{
    access::{Caller, Role},
    problem::{Answer, At, Problem, Query},
    shared::Shared,
};

/// An instance in an HTTP response, with its state, data and result as raw JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Whole {
    #[serde(flatten)]
    columns: Value,
    state: Box<RawValue>,
    data: Box<RawValue>,
    result: Box<RawValue>,
    /// Whether the response omits the state, data and result of the instance, because the caller
    /// may not see payloads.
    payloads_hidden: bool,
    /// The ancestors of the instance, the parent first.
    ancestors: Vec<Value>,
}

/// Parses an instance id from the path of an HTTP request.
pub(crate) fn number(id: &str) -> Answer<i64> {
    id.parse()
        .ok()
        .filter(|id| *id > 0)
        .ok_or_else(|| Problem::not_found(format!("{id:?} is not an instance id")))
}

fn hides(shared: &Shared, caller: &Caller) -> bool {
    caller.role == Role::Reader && !shared.options.readers_see_payloads
}

/// The maximum number of ancestors (parent, grandparent and so on) of an instance in a response.
const ANCESTORS_MAX: usize = 10;

pub(crate) async fn show(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    At(id): At<String>,
) -> Answer<Json<Whole>> {
    let inspect = shared.inspect();
    let row = inspect.show(number(&id)?).await?.ok_or_else(|| gone(&id))?;
    let mut ancestors = Vec::new();
    let mut above = row.parent_id;
    while let (Some(id), true) = (above, ancestors.len() < ANCESTORS_MAX) {
        let Some(parent) = inspect.show(id).await? else {
            break;
        };
        ancestors.push(json!({
            "id": id.to_string(), "machine": parent.machine, "step": parent.step, "status": parent.status.name(),
        }));
        above = parent.parent_id;
    }
    let redaction = &shared.options.redaction;
    let payloads_hidden = hides(&shared, &caller);
    let body = |text: Option<&str>| shown::body(text.filter(|_| !payloads_hidden), redaction);
    Ok(Json(Whole {
        columns: shown::instance(&row, redaction),
        state: body(Some(&row.state)),
        data: body(row.data.as_deref()),
        result: body(row.result.as_deref()),
        payloads_hidden,
        ancestors,
    }))
}

fn gone(id: &str) -> Problem {
    Problem::not_found(format!(
        "instance {id} does not exist: the id was never assigned, or the instance settled and was deleted after its retention"
    ))
}

/// The cursor and the size of a page of the history of an instance.
#[derive(Debug, Deserialize)]
pub(crate) struct From {
    seq: Option<String>,
    epoch: Option<String>,
    limit: Option<u16>,
}

pub(crate) async fn history(
    State(shared): State<Shared>,
    At(id): At<String>,
    Query(from): Query<From>,
) -> Answer<Json<Value>> {
    let limit = usize::from(from.limit.unwrap_or(200).clamp(1, 1000));
    let part = |text: Option<String>| text.map(|text| text.parse::<i64>()).transpose();
    let (Ok(seq), Ok(epoch)) = (part(from.seq), part(from.epoch)) else {
        return Err(Problem::invalid(
            "seq and epoch must be those of the last entry of the previous page",
        ));
    };
    let before = seq.map(|seq| HistoryCursor {
        seq,
        epoch: epoch.unwrap_or(i64::MAX),
    });
    let lines = shared
        .inspect()
        .history(number(&id)?, before, limit)
        .await?;
    let has_more = lines.len() == limit;
    let redaction = &shared.options.redaction;
    let lines: Vec<Value> = lines
        .iter()
        .map(|line| shown::line(line, redaction))
        .collect();
    Ok(Json(json!({"history": lines, "has_more": has_more})))
}

/// A signal in an inbox, with its payload as raw JSON.
#[derive(Debug, Serialize)]
pub(crate) struct InboxSignal {
    id: String,
    name: String,
    payload: Box<RawValue>,
    once: Option<String>,
    at: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Inbox {
    signals: Vec<InboxSignal>,
    payloads_hidden: bool,
}

pub(crate) async fn inbox(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    At(id): At<String>,
) -> Answer<Json<Inbox>> {
    let payloads_hidden = hides(&shared, &caller);
    let signals = shared.inspect().inbox(number(&id)?).await?;
    let redaction = &shared.options.redaction;
    let signal = |signal: gen_durable::InboxSignal| InboxSignal {
        id: signal.id.to_string(),
        name: signal.name,
        payload: shown::body(
            Some(signal.payload.as_str()).filter(|_| !payloads_hidden),
            redaction,
        ),
        once: signal.dedup_key,
        at: signal.inserted_at.to_string(),
    };
    Ok(Json(Inbox {
        signals: signals.into_iter().map(signal).collect(),
        payloads_hidden,
    }))
}

pub(crate) async fn children(
    State(shared): State<Shared>,
    At(id): At<String>,
) -> Answer<Json<Value>> {
    let all = shared.inspect().children(number(&id)?).await?;
    let redaction = &shared.options.redaction;
    let counts: serde_json::Map<String, Value> = all
        .counts
        .iter()
        .map(|(status, count)| (status.name().to_owned(), json!(count)))
        .collect();
    let children: Vec<Value> = all
        .children
        .iter()
        .map(|child| {
            json!({
                "id": child.id.to_string(), "machine": child.machine, "step": child.step, "status": child.status.name(),
                "spawn": child.generation, "is_parent": child.is_parent,
                "error": child.last_error.as_deref().map(|error| redaction.text(error)),
                "inserted_at": child.inserted_at.to_string(), "settled_at": shown::time(child.settled_at),
            })
        })
        .collect();
    Ok(Json(json!({"counts": counts, "children": children})))
}

pub(crate) async fn explain(
    State(shared): State<Shared>,
    At(id): At<String>,
) -> Answer<Json<Value>> {
    let explanation = shared
        .inspect()
        .explain(number(&id)?)
        .await?
        .ok_or_else(|| gone(&id))?;
    let redaction = &shared.options.redaction;
    let blockers: Vec<Value> = explanation
        .blockers
        .iter()
        .map(|blocker| {
            let (kind, text) = said(blocker, explanation.now);
            json!({"kind": kind, "text": redaction.text(&text)})
        })
        .collect();
    Ok(Json(
        json!({"id": id, "now": explanation.now.to_string(), "blockers": blockers}),
    ))
}

/// Describes a blocker, which is a reason why an instance does not run. Returns a stable code for
/// programs and a sentence for people.
pub(crate) fn said(blocker: &Blocker, now: Timestamp) -> (&'static str, String) {
    let deadline = |at: &Option<Timestamp>| {
        at.map_or("without a deadline".to_owned(), |at| {
            format!("until {at:.0}")
        })
    };
    match blocker {
        Blocker::Settled {
            status,
            error: None,
        } => (
            "settled",
            format!("It is {status}: it will not run again."),
        ),
        Blocker::Settled {
            status: Status::Failed,
            error: Some(error),
        } => ("settled", format!("It failed: {error}")),
        Blocker::Settled {
            status,
            error: Some(error),
        } => ("settled", format!("It is {status}: {error}")),
        Blocker::Executing {
            host,
            pid,
            alive: true,
            ..
        } => {
            let place = host
                .as_deref()
                .zip(*pid)
                .map(|(host, pid)| format!(" on {host}, process {pid}"));
            (
                "executing",
                format!("It runs{}.", place.unwrap_or_default()),
            )
        }
        Blocker::Executing { .. } => (
            "worker_lost",
            "The lease of the worker that holds it has expired: a live worker reclaims it within one lease period."
                .to_owned(),
        ),
        Blocker::CancelledStepRunning { host, pid, .. } => {
            let place = host
                .as_deref()
                .zip(*pid)
                .map(|(host, pid)| format!(" on {host}, process {pid}"));
            (
                "cancelled_step_running",
                format!(
                    "It was cancelled, but its step still runs{}. Its lane and its partition key stay held until the step ends or the lease of its worker expires.",
                    place.unwrap_or_default()
                ),
            )
        }
        Blocker::AwaitingSignal {
            names,
            deadline: at,
            ..
        } => (
            "awaiting_signal",
            format!(
                "It waits for the signal {}, {}.",
                names.join(" or "),
                deadline(at)
            ),
        ),
        Blocker::AwaitingChildren {
            pending,
            any,
            deadline: at,
            ..
        } => {
            let which = if *any { "any of" } else { "all of" };
            (
                "awaiting_children",
                format!("It waits for {which} {pending} children, {}.", deadline(at)),
            )
        }
        Blocker::Queued { lane, ahead, head } => {
            let head = &head.instance;
            let text = format!(
                "It waits in lane {lane} behind {ahead} others. The head of the lane is instance {} ({}, {}).",
                head.id, head.machine, head.status
            );
            ("queued", text)
        }
        Blocker::AwaitingPlacement { .. } => (
            "awaiting_placement",
            "It waits for a lane position: the next pick of a live worker assigns one.".to_owned(),
        ),
        Blocker::PartitionWaiting { partition, holder } => {
            let holder = holder.instance.id;
            (
                "partition_waiting",
                format!(
                    "It waits for the partition {partition}, which instance {holder} holds."
                ),
            )
        }
        Blocker::BlocksLane { lane, behind, .. } => (
            "blocks_lane",
            format!(
                "It failed and blocks lane {lane}, in which {behind} wait: retry it, or promote its successor with `durable lanes skip {lane}`."
            ),
        ),
        Blocker::Stuck { crashes, .. } if *crashes > 0 => (
            "stuck",
            format!(
                "It is stuck: {crashes} workers crashed while it ran. Find the cause, then retry it."
            ),
        ),
        Blocker::Stuck { error, .. } => {
            let error = error.as_deref().unwrap_or("no error was recorded");
            (
                "stuck",
                format!(
                    "It is stuck: no worker that claimed it could decode it: {error}. Deploy a build that can, then retry it."
                ),
            )
        }
        Blocker::QueueNotWorked { queue } => (
            "queue_not_worked",
            format!("No live worker serves queue {queue}."),
        ),
        Blocker::QueuePaused { queue, by, .. } => (
            "queue_paused",
            format!(
                "Queue {queue} is paused by {}.",
                by.as_deref().unwrap_or("an unknown user")
            ),
        ),
        Blocker::NotDue { at } => {
            let seconds = at.duration_since(now).as_secs_f64();
            (
                "not_due",
                format!("It is scheduled for later: due in {seconds:.0} s."),
            )
        }
        Blocker::MachineNotServed {
            machine,
            machine_version,
            queue,
        } => (
            "machine_not_served",
            format!("No live worker of queue {queue} runs {machine} v{machine_version}."),
        ),
        Blocker::NoWorkerForStep {
            machine,
            machine_version,
            step,
            queue,
        } => (
            "no_worker_for_step",
            format!(
                "No live worker of queue {queue} that runs {machine} v{machine_version} has the step {step}."
            ),
        ),
        Blocker::Suspect { crashes } => (
            "suspect",
            format!(
                "{crashes} workers crashed while they held it: each worker runs such suspects one at a time."
            ),
        ),
        Blocker::BehindOthers { count } if *count > 10_000 => (
            "behind",
            "More than 10,000 instances are due before it in its queue.".to_owned(),
        ),
        Blocker::BehindOthers { count } => ("behind", format!("{count} instances are due before it in its queue.")),
        other => ("unknown", format!("{other:?}")),
    }
}
