//! The HTTP handlers that search for instances and enqueue new instances.

use std::time::Duration;

use axum::{Extension, Json, extract::State, http::StatusCode};
use gen_durable::{KeyScope, inspect::SearchPage, operate::UntypedInstance};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::json as shown;
use crate::{
    access::{Caller, Role},
    find::{InstancesQuery, find, find_redacted},
    known,
    problem::{Answer, Body, Problem, Query, with_causes},
    shared::Shared,
};

pub(crate) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<InstancesQuery>,
) -> Answer<Json<SearchPage>> {
    let redaction = &shared.options.redaction;
    let hides_keys = shown::hides_keys(&shared, &caller);
    if hides_keys && wanted.names_a_key() {
        return Err(Problem::keys_hidden());
    }
    let inspect = shared.inspect();
    let mut page = match caller.role {
        Role::Reader => find_redacted(&inspect, &wanted, redaction).await?,
        _ => find(&inspect, &wanted).await?,
    };
    for found in &mut page.instances {
        shown::redact(&mut found.last_error, redaction);
        if hides_keys {
            shown::hide(&mut found.key);
        }
    }
    Ok(Json(page))
}

/// The body of an HTTP request that enqueues an instance.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct New {
    machine: String,
    step: String,
    version: Option<u16>,
    state: Option<Box<RawValue>>,
    data: Option<Box<RawValue>>,
    queue: Option<String>,
    priority: Option<i16>,
    tenant: Option<String>,
    key: Option<String>,
    /// How long no other instance may have the key of the new instance: `live` (until the instance
    /// settles), `ever` (as long as the row of the instance exists) or `none` (the key is not
    /// unique).
    scope: Option<String>,
    due_at: Option<String>,
    delay_seconds: Option<f64>,
    /// The lane that the new instance enters.
    lane: Option<String>,
    /// Whether the new instance blocks its lane if the instance fails permanently.
    #[serde(default)]
    lane_blocks: bool,
    partition: Option<String>,
    /// Whether to accept a machine or a step that no live worker knows.
    #[serde(default)]
    force: bool,
}

pub(crate) async fn enqueue(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    Body(new): Body<New>,
) -> Answer<(StatusCode, Json<Value>)> {
    let on = format!("machine {}", new.machine);
    if !new.force {
        known::check(&shared.inspect(), &new.machine, &new.step).await?;
    }
    let went = shared.client.operate().enqueue(new.read()?).await;
    let outcome = went
        .as_ref()
        .map(|enqueued| format!("instance {}", enqueued.id))
        .map_err(with_causes);
    shared.audit.note(&by, "enqueue", on, outcome);
    let enqueued = went?;
    let status = if enqueued.is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((
        status,
        Json(json!({"id": enqueued.id.to_string(), "is_new": enqueued.is_new})),
    ))
}

impl New {
    fn read(self) -> Answer<UntypedInstance> {
        let state = self
            .state
            .map_or_else(|| "{}".to_owned(), |state| state.get().to_owned());
        let mut instance = UntypedInstance::new(self.machine, self.step, state);
        instance.version = self.version.unwrap_or(1);
        instance.data = self
            .data
            .map(|data| data.get().to_owned())
            .filter(|data| data != "null");
        instance.priority = self.priority.unwrap_or_default();
        instance.tenant = self.tenant.unwrap_or_default();
        instance.key = self.key.filter(|key| !key.is_empty());
        instance.lane = self.lane.filter(|lane| !lane.is_empty());
        instance.lane_blocks = self.lane_blocks;
        instance.partition = self.partition.filter(|key| !key.is_empty());
        if let Some(queue) = self.queue.filter(|queue| !queue.is_empty()) {
            instance.queue = queue;
        }
        instance.scope = match self.scope.as_deref() {
            None | Some("live") => KeyScope::Live,
            Some("ever") => KeyScope::Ever,
            Some("none") => KeyScope::None,
            Some(name) => {
                return Err(Problem::invalid(format!(
                    "unknown scope {name:?}: use live, ever or none"
                )));
            }
        };
        if let Some(at) = self.due_at {
            let at = at.parse().map_err(|_| {
                Problem::invalid(format!(
                    "{at:?} is not a timestamp such as 2030-01-31T12:00:00Z"
                ))
            })?;
            instance.due_at = Some(at);
        }
        if let Some(seconds) = self.delay_seconds {
            instance.delay = Duration::try_from_secs_f64(seconds).map_err(|_| {
                Problem::invalid(format!(
                    "delay_seconds must be a duration of 0 or more, not {seconds}"
                ))
            })?;
        }
        Ok(instance)
    }
}
