//! The HTTP handlers for one instance: they return its columns, its history, its inbox, its
//! children, and the reason why the instance does not run.

use axum::{Extension, Json, extract::State};
use gen_durable::{
    inspect::{
        Blocker, Children, Explanation, HistoryCursor, InboxSignal, Instance, LimitUse, Status,
    },
    schedule::Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::json as shown;
use crate::{
    access::{Caller, Role},
    alerts::span,
    problem::{Answer, At, Problem, Query},
    redact::Redaction,
    shared::Shared,
};

/// An instance in an HTTP response.
#[derive(Debug, Serialize)]
pub(crate) struct Whole {
    #[serde(flatten)]
    instance: Instance,
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
    let mut row = inspect.show(number(&id)?).await?.ok_or_else(|| gone(&id))?;
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
    let body = |text: &str| match payloads_hidden {
        true => None,
        false => Some(shown::body(text, redaction)),
    };
    row.state = body(&row.state).unwrap_or_else(|| "null".to_owned());
    row.data = row.data.as_deref().and_then(body);
    row.result = row.result.as_deref().and_then(body);
    shown::redact(&mut row.last_error, redaction);
    if shown::hides_keys(&shared, &caller) {
        shown::hide(&mut row.key);
        shown::hide(&mut row.lane);
        shown::hide(&mut row.partition);
    }
    Ok(Json(Whole {
        instance: row,
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
    step_seq: Option<i64>,
    claim_epoch: Option<i64>,
    limit: Option<u16>,
}

pub(crate) async fn history(
    State(shared): State<Shared>,
    At(id): At<String>,
    Query(from): Query<From>,
) -> Answer<Json<Value>> {
    let limit = usize::from(from.limit.unwrap_or(200).clamp(1, 1000));
    let before = from.step_seq.map(|step_seq| HistoryCursor {
        step_seq,
        claim_epoch: from.claim_epoch.unwrap_or(i64::MAX),
    });
    let mut history = shared
        .inspect()
        .history(number(&id)?, before, limit)
        .await?;
    let has_more = history.len() == limit;
    for entry in &mut history {
        shown::redact(&mut entry.error, &shared.options.redaction);
    }
    Ok(Json(json!({"history": history, "has_more": has_more})))
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
    let mut signals = shared.inspect().inbox(number(&id)?).await?;
    for signal in &mut signals {
        signal.payload = match payloads_hidden {
            true => "null".to_owned(),
            false => shown::body(&signal.payload, &shared.options.redaction),
        };
        if shown::hides_keys(&shared, &caller) {
            shown::hide(&mut signal.dedup_key);
        }
    }
    Ok(Json(Inbox {
        signals,
        payloads_hidden,
    }))
}

pub(crate) async fn children(
    State(shared): State<Shared>,
    At(id): At<String>,
) -> Answer<Json<Children>> {
    let mut all = shared.inspect().children(number(&id)?).await?;
    for child in &mut all.children {
        shown::redact(&mut child.last_error, &shared.options.redaction);
    }
    Ok(Json(all))
}

pub(crate) async fn explain(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    At(id): At<String>,
) -> Answer<Json<Value>> {
    let explanation = shared
        .inspect()
        .explain(number(&id)?)
        .await?
        .ok_or_else(|| gone(&id))?;
    let mut explained = explained(explanation, &shared.options.redaction);
    if shown::hides_keys(&shared, &caller) {
        shown::hide_keys(&mut explained);
    }
    Ok(Json(explained))
}

/// Returns an explanation as JSON, with errors redacted, a `text` for people in each blocker, and
/// the `reason` why the instance has not settled.
pub(crate) fn explained(mut explanation: Explanation, redaction: &Redaction) -> Value {
    shown::redact(&mut explanation.instance.last_error, redaction);
    let now = explanation.now;
    let reason = match explanation.blockers.first() {
        Some(blocker) => redaction.text(&said(blocker, now)),
        None => "Nothing blocks it: the next pick of a worker claims it.".to_owned(),
    };
    let blockers: Vec<Value> = std::mem::take(&mut explanation.blockers)
        .into_iter()
        .map(|blocker| shown_blocker(blocker, now, redaction))
        .collect();
    let more = json!({"blockers": blockers, "reason": reason});
    shown::and(json!(explanation), more)
}

fn shown_blocker(mut blocker: Blocker, now: Timestamp, redaction: &Redaction) -> Value {
    let text = redaction.text(&said(&blocker, now));
    if let Blocker::Settled { error, .. } | Blocker::Stuck { error, .. } = &mut blocker {
        shown::redact(error, redaction);
    }
    let value = shown::and(json!(blocker), json!({"text": text}));
    match blocker {
        Blocker::Queued { head, .. } => {
            shown::and(value, json!({"head": explained(*head, redaction)}))
        }
        Blocker::PartitionWaiting { holder, .. } => {
            shown::and(value, json!({"holder": explained(*holder, redaction)}))
        }
        _ => value,
    }
}

/// Describes the use of one bound of a limit, and when it has room again.
fn said_bound(bound: &LimitUse, now: Timestamp) -> String {
    let limit = &bound.limit;
    let name = match bound.key.as_str() {
        "" => format!("the limit {limit}"),
        key => format!("the key {key} of the limit {limit}"),
    };
    let room = match (bound.paused, bound.is_full()) {
        (true, _) => "is paused",
        (false, true) => "has no room",
        (false, false) => "has room",
    };
    let running = match bound.running {
        count if count > 10_000 => "over 10,000".to_owned(),
        count => count.to_string(),
    };
    let run = if bound.running == 1 { "runs" } else { "run" };
    let mut uses = vec![match bound.at_once {
        None if bound.running == 1 => "1 step runs".to_owned(),
        None => format!("{running} steps {run}"),
        Some(1) => format!("{running} of 1 step {run}"),
        Some(at_once) => format!("{running} of {at_once} steps {run}"),
    }];
    if let Some(tokens) = bound.tokens {
        let tokens = (tokens.max(0.0) * 10.0).floor() / 10.0;
        let are = if tokens == 1.0 {
            "token is"
        } else {
            "tokens are"
        };
        uses.push(format!("{tokens} {are} left"));
    }
    if let Some(at) = bound.free_at {
        let wait = at.duration_since(now);
        let seconds = wait.as_secs() + i64::from(wait.subsec_nanos() > 0);
        let wait = span(seconds.max(0));
        uses.push(format!("it has room in {wait} at the earliest, at {at:.0}"));
    }
    format!("{name} {room} ({})", uses.join(", "))
}

/// Describes a blocker, which is a reason why an instance does not run, in a sentence for people.
#[expect(
    clippy::too_many_lines,
    reason = "one sentence for each kind of blocker, side by side"
)]
pub(crate) fn said(blocker: &Blocker, now: Timestamp) -> String {
    let deadline = |at: &Option<Timestamp>| {
        at.map_or("without a deadline".to_owned(), |at| {
            format!("until {at:.0}")
        })
    };
    match blocker {
        Blocker::Settled {
            status,
            error: None,
        } => format!("It is {status}: it will not run again."),
        Blocker::Settled {
            status: Status::Failed,
            error: Some(error),
        } => format!("It failed: {error}"),
        Blocker::Settled {
            status,
            error: Some(error),
        } => format!("It is {status}: {error}"),
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
            format!("It runs{}.", place.unwrap_or_default())
        }
        Blocker::Executing { .. } => "The lease of the worker that holds it has expired: a live worker reclaims it within one lease period."
                .to_owned(),
        Blocker::CancelledStepRunning { host, pid, .. } => {
            let place = host
                .as_deref()
                .zip(*pid)
                .map(|(host, pid)| format!(" on {host}, process {pid}"));
            format!(
                    "It was cancelled, but its step still runs{}. Its lane and its partition key stay held until the step ends or the lease of its worker expires.",
                    place.unwrap_or_default()
                )
        }
        Blocker::AwaitingSignal {
            names,
            deadline_at: at,
            ..
        } => format!(
                "It waits for the signal {}, {}.",
                names.join(" or "),
                deadline(at)
            ),
        Blocker::AwaitingChildren {
            pending,
            any,
            deadline_at: at,
            ..
        } => {
            let which = if *any { "any of" } else { "all of" };
            format!("It waits for {which} {pending} children, {}.", deadline(at))
        }
        Blocker::AwaitingLimit { since, limits } => {
            let bounds: Vec<String> = limits.iter().map(|bound| said_bound(bound, now)).collect();
            let text = format!("It has waited for a limit since {since:.0}: {}", bounds.join("; "));
            format!("{}.", text.trim_end_matches([':', ' ']))
        }
        Blocker::Queued { lane, ahead, head } => {
            let head = &head.instance;
            let text = format!(
                "It waits in lane {lane} behind {ahead} others. The head of the lane is instance {} ({}, {}).",
                head.id, head.machine, head.status
            );
            text
        }
        Blocker::AwaitingPlacement { .. } => "It waits for a lane position: the next pick of a live worker assigns one.".to_owned(),
        Blocker::PartitionWaiting { partition, holder } => {
            let holder = holder.instance.id;
            format!(
                    "It waits for the partition {partition}, which instance {holder} holds."
                )
        }
        Blocker::BlocksLane { lane, behind, .. } => format!(
                "It failed and blocks lane {lane}, in which {behind} wait: retry it, or promote its successor with `durable lanes skip {lane}`."
            ),
        Blocker::Stuck { crashes, .. } if *crashes > 0 => format!(
                "It is stuck: {crashes} workers crashed while it ran. Find the cause, then retry it."
            ),
        Blocker::Stuck { error, .. } => {
            let error = error.as_deref().unwrap_or("no error was recorded");
            format!(
                    "It is stuck: no worker that claimed it could decode it: {error}. Deploy a build that can, then retry it."
                )
        }
        Blocker::QueueNotWorked { queue } => format!("No live worker serves queue {queue}."),
        Blocker::QueuePaused { queue, paused_by, .. } => format!(
                "Queue {queue} is paused by {}.",
                paused_by.as_deref().unwrap_or("an unknown user")
            ),
        Blocker::NotDue { due_at } => {
            let seconds = due_at.duration_since(now).as_secs().max(0);
            format!("It is scheduled for later: due in {}, at {due_at:.0}.", span(seconds))
        }
        Blocker::MachineNotServed {
            machine,
            version,
            queue,
        } => format!("No live worker of queue {queue} runs {machine} v{version}."),
        Blocker::NoWorkerForStep {
            machine,
            version,
            step,
            queue,
        } => format!(
                "No live worker of queue {queue} that runs {machine} v{version} has the step {step}."
            ),
        Blocker::Suspect { crashes } => format!(
                "{crashes} workers crashed while they held it: each worker runs such suspects one at a time."
            ),
        Blocker::BehindOthers { count } if *count > 10_000 => "More than 10,000 instances are due before it in its queue.".to_owned(),
        Blocker::BehindOthers { count } => format!("{count} instances are due before it in its queue."),
        other => format!("{other:?}"),
    }
}
