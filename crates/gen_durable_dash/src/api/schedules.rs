//! The HTTP handlers for schedules: they list the next occurrences, the last enqueued instances and
//! the workers that registered a schedule; they pause, resume, run and change a schedule.

use axum::{Extension, Json, extract::State};
use gen_durable::{
    Error,
    schedule::{Cycle, MisfirePolicy, ScheduleInfo},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::lanes::{limit, word};
use crate::{
    access::Caller,
    problem::{Answer, At, Body, Problem, Query, with_causes},
    recent::Written,
    redact::Redaction,
    shared::Shared,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SchedulesQuery {
    /// The cursor of a page of schedules: the last name of the previous page.
    after: Option<String>,
    limit: Option<u16>,
}

pub(crate) async fn list(
    State(shared): State<Shared>,
    Query(wanted): Query<SchedulesQuery>,
) -> Answer<Written> {
    let (after, limit) = (word("after", wanted.after)?, limit(wanted.limit)?);
    let asked = format!("schedules {after:?} {limit}");
    let read = async {
        let schedules = shared.inspect().schedules(after.as_deref(), limit).await?;
        let next = schedules
            .last()
            .filter(|_| schedules.len() == limit)
            .map(|last| last.name.clone());
        let redaction = &shared.options.redaction;
        let schedules: Vec<ScheduleInfo> = schedules
            .into_iter()
            .map(|info| redacted(info, redaction))
            .collect();
        Ok::<_, Problem>(json!({"schedules": schedules, "next": next}))
    };
    shared.recent.get(asked, read).await
}

pub(crate) async fn one(State(shared): State<Shared>, At(name): At<String>) -> Answer<Json<Value>> {
    let info = shared.inspect().schedule(&name).await?;
    let info =
        info.ok_or_else(|| Problem::not_found(format!("schedule {name:?} does not exist")))?;
    Ok(Json(json!(redacted(info, &shared.options.redaction))))
}

/// Returns a schedule with its error redacted.
fn redacted(mut info: ScheduleInfo, redaction: &Redaction) -> ScheduleInfo {
    info.last_error = info.last_error.map(|error| redaction.text(&error));
    info
}

pub(crate) async fn pause(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.schedules().pause(&name, &by.name).await;
    let was_running = done(&shared, &by, ("pause schedule", &name), went, |ran| {
        if *ran { "paused" } else { "was paused before" }.to_owned()
    })?;
    Ok(Json(
        json!({"schedule": name, "paused": true, "was_paused": !was_running}),
    ))
}

pub(crate) async fn resume(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.schedules().resume(&name).await;
    let was_paused = done(&shared, &by, ("resume schedule", &name), went, |paused| {
        if *paused { "resumed" } else { "was not paused" }.to_owned()
    })?;
    Ok(Json(
        json!({"schedule": name, "paused": false, "was_paused": was_paused}),
    ))
}

pub(crate) async fn run(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.schedules().run(&name).await;
    let timer = done(&shared, &by, ("run schedule", &name), went, |timer| {
        format!("enqueued as timer {timer}")
    })?;
    Ok(Json(json!({"schedule": name, "timer": timer.to_string()})))
}

/// The body of a request that changes the cycle of a schedule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    cycle: String,
    /// The policy of the schedule for missed occurrences: `all`, `latest` or `skip`. Without this
    /// field the policy of the schedule does not change.
    missed: Option<String>,
}

impl Change {
    fn read(&self) -> Answer<Cycle> {
        let wrong = |name: &str| {
            Problem::invalid(format!("missed must be all, latest or skip, not {name:?}"))
        };
        let cycle: Cycle = self.cycle.parse()?;
        match self.missed.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => {
                let missed: MisfirePolicy = name.parse().map_err(|_| wrong(name))?;
                Ok(cycle.misfire(missed))
            }
            None => Ok(cycle),
        }
    }
}

pub(crate) async fn set(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(change): Body<Change>,
) -> Answer<Json<Value>> {
    let cycle = change.read()?;
    let text = cycle.to_string();
    let went = shared.client.schedules().set(&name, cycle, &by.name).await;
    done(&shared, &by, ("set schedule", &name), went, |()| {
        format!("cycle set to {text}")
    })?;
    Ok(Json(json!({"schedule": name, "cycle": text})))
}

/// Records the outcome of an action on a schedule in the audit log, and clears the cache of lists,
/// so that the next list of schedules shows the change.
fn done<T>(
    shared: &Shared,
    by: &Caller,
    (act, name): (&'static str, &str),
    went: Result<T, Error>,
    well: impl FnOnce(&T) -> String,
) -> Answer<T> {
    shared.recent.forget();
    let outcome = went.as_ref().map(well).map_err(with_causes);
    shared
        .audit
        .note(by, act, format!("schedule {name}"), outcome);
    went.map_err(Problem::from)
}
