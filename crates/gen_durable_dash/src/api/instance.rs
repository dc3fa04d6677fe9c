//! One instance: what it is, what happened to it, what hangs on it, why it does not run.

use axum::{Extension, Json, extract::State};
use gen_durable::{Blocker, Status, StoryMark, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::json as shown;
use crate::{
    access::{Caller, Role},
    problem::{Answer, At, Problem, Query},
    shared::Shared,
};

/// An instance, with what it carries as it stands.
#[derive(Debug, Serialize)]
pub(crate) struct Whole {
    #[serde(flatten)]
    columns: Value,
    state: Box<RawValue>,
    data: Box<RawValue>,
    result: Box<RawValue>,
    /// Whether what it carries was left out: the caller may only look.
    payloads_hidden: bool,
    /// Its parents, the nearest first.
    ancestors: Vec<Value>,
}

/// An id in a path.
pub(crate) fn number(id: &str) -> Answer<i64> {
    id.parse()
        .ok()
        .filter(|id| *id > 0)
        .ok_or_else(|| Problem::not_found(format!("{id:?} is not the id of an instance")))
}

fn hides(shared: &Shared, caller: &Caller) -> bool {
    caller.role == Role::Reader && !shared.options.readers_see_payloads
}

/// So many generations above are named.
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
            "id": id.to_string(), "machine": parent.fsm, "step": parent.step, "status": parent.status.name(),
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
        "there is no instance {id}: it never was, or it settled long ago and was collected"
    ))
}

/// A page of a story.
#[derive(Debug, Deserialize)]
pub(crate) struct From {
    seq: Option<String>,
    epoch: Option<String>,
    limit: Option<u16>,
}

pub(crate) async fn story(
    State(shared): State<Shared>,
    At(id): At<String>,
    Query(from): Query<From>,
) -> Answer<Json<Value>> {
    let limit = usize::from(from.limit.unwrap_or(200).clamp(1, 1000));
    let part = |text: Option<String>| text.map(|text| text.parse::<i64>()).transpose();
    let (Ok(seq), Ok(epoch)) = (part(from.seq), part(from.epoch)) else {
        return Err(Problem::invalid(
            "seq and epoch are those of the last line of the page before",
        ));
    };
    let before = seq.map(|seq| StoryMark {
        seq,
        epoch: epoch.unwrap_or(i64::MAX),
    });
    let lines = shared.inspect().story(number(&id)?, before, limit).await?;
    let has_more = lines.len() == limit;
    let redaction = &shared.options.redaction;
    let lines: Vec<Value> = lines
        .iter()
        .map(|line| shown::line(line, redaction))
        .collect();
    Ok(Json(json!({"story": lines, "has_more": has_more})))
}

/// A letter, with its payload as it stands.
#[derive(Debug, Serialize)]
pub(crate) struct Letter {
    id: String,
    name: String,
    payload: Box<RawValue>,
    once: Option<String>,
    at: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Inbox {
    letters: Vec<Letter>,
    payloads_hidden: bool,
}

pub(crate) async fn inbox(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    At(id): At<String>,
) -> Answer<Json<Inbox>> {
    let payloads_hidden = hides(&shared, &caller);
    let letters = shared.inspect().inbox(number(&id)?).await?;
    let redaction = &shared.options.redaction;
    let letter = |letter: gen_durable::InboxLetter| Letter {
        id: letter.id.to_string(),
        name: letter.name,
        payload: shown::body(
            Some(letter.payload.as_str()).filter(|_| !payloads_hidden),
            redaction,
        ),
        once: letter.dedup_key,
        at: letter.inserted_at.to_string(),
    };
    Ok(Json(Inbox {
        letters: letters.into_iter().map(letter).collect(),
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
                "id": child.id.to_string(), "machine": child.fsm, "step": child.step, "status": child.status.name(),
                "spawn": child.generation, "is_parent": child.is_parent,
                "error": child.last_error.as_deref().map(|error| redaction.text(error)),
                "inserted_at": child.inserted_at.to_string(), "finished_at": shown::time(child.finished_at),
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

/// A word for programs, a sentence for people.
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
            format!("It is {status}: nothing more will happen."),
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
            "held_by_the_dead",
            "The worker that holds it is dead: any live engine takes it back within a lease."
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
                    "Its step still runs{}: its lane and partition key stay taken until the step has ended or the lease of its worker is over.",
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
                "It stands in the lane {lane} with {ahead} before it; its head is instance {} ({}, {}).",
                head.id, head.fsm, head.status
            );
            ("queued", text)
        }
        Blocker::NotPlaced { .. } => (
            "not_placed",
            "It has just arrived: the next pick of a live worker gives it its place.".to_owned(),
        ),
        Blocker::HeldBack { partition, holder } => {
            let holder = holder.instance.id;
            (
                "held_back",
                format!(
                    "It waits for its turn under the partition key {partition}, which instance {holder} has."
                ),
            )
        }
        Blocker::BlocksLane { lane, behind, .. } => (
            "blocks_lane",
            format!(
                "The lane {lane} stands still behind it, with {behind} waiting: retry it, or let the lane go on with `durable lanes skip {lane}`."
            ),
        ),
        Blocker::Stuck { deaths, .. } if *deaths > 0 => (
            "stuck",
            format!(
                "It was set aside: {deaths} workers died while it ran. Find out why, then retry it."
            ),
        ),
        Blocker::Stuck { error, .. } => {
            let error = error.as_deref().unwrap_or("no error was recorded");
            (
                "stuck",
                format!(
                    "No build that claimed it could decode it: {error}. Deploy one that can, then retry."
                ),
            )
        }
        Blocker::QueueNotWorked { queue } => (
            "queue_not_worked",
            format!("No live worker works the queue {queue}."),
        ),
        Blocker::QueuePaused { queue, by, .. } => (
            "queue_paused",
            format!(
                "The queue {queue} is paused, by {}.",
                by.as_deref().unwrap_or("somebody")
            ),
        ),
        Blocker::NotDue { at } => {
            let seconds = at.duration_since(now).as_secs_f64();
            (
                "not_due",
                format!("Its time has not come: it is due in {seconds:.0} s."),
            )
        }
        Blocker::MachineNotServed {
            fsm,
            fsm_version,
            queue,
        } => (
            "machine_not_served",
            format!("No live worker of the queue {queue} runs {fsm} v{fsm_version}."),
        ),
        Blocker::NoWorkerForStep {
            fsm,
            fsm_version,
            step,
            queue,
        } => (
            "no_worker_for_step",
            format!(
                "No live worker of the queue {queue} that runs {fsm} v{fsm_version} knows the step {step}."
            ),
        ),
        Blocker::Suspect { deaths } => (
            "suspect",
            format!(
                "{deaths} processes died with it: such instances run one at a time in a worker."
            ),
        ),
        Blocker::Behind { count } if *count > 10_000 => (
            "behind",
            "Over 10,000 are due before it in its queue.".to_owned(),
        ),
        Blocker::Behind { count } => ("behind", format!("{count} are due before it in its queue.")),
        other => ("unknown", format!("{other:?}")),
    }
}
