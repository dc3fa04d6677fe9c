//! The HTTP handlers of bulk actions, which retry, cancel or discard many instances.

use axum::{Extension, Json, extract::State, http::StatusCode};
use gen_durable::operate::{BulkAction, BulkConditions, BulkKind, NewBulkAction};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{audit::mark, json as shown};
use crate::{
    access::Caller,
    bulk::execute_open,
    find::InstancesQuery,
    known,
    problem::{Answer, At, Body, Problem, Query, with_causes},
    shared::Shared,
};

/// The body of an HTTP request for a bulk action: the filter that selects instances, and the action
/// on these instances.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Many {
    kind: BulkKind,
    #[serde(default)]
    filter: InstancesQuery,
    /// The step from which a retry continues. Without it, each instance continues from its current
    /// step.
    step: Option<String>,
    /// Whether to accept a step that no live worker knows.
    #[serde(default)]
    force: bool,
    /// The number of instances that the preview of the bulk action showed to the operator.
    expect: Option<u64>,
    why: Option<String>,
}

impl Many {
    fn conditions(&self) -> Answer<BulkConditions> {
        Ok(self.filter.bulk_conditions(self.kind)?)
    }

    /// Returns an error if no live worker knows the step from which a retry should continue.
    async fn check_step(&self, shared: &Shared) -> Answer<()> {
        match (&self.step, &self.filter.machine) {
            (Some(_), None) => Err(Problem::invalid(
                "a retry from another step needs a machine in its filter",
            )),
            (Some(step), Some(machine)) if !self.force => {
                known::check(&shared.inspect(), machine, step).await
            }
            _ => Ok(()),
        }
    }
}

impl Many {
    /// Describes the instances of a bulk action for the audit log: every part of the filter.
    fn described(&self) -> String {
        let mut given = self.filter.described();
        let more = [
            ("from step", self.step.clone()),
            ("reason", self.why.clone()),
        ];
        given
            .extend(more.into_iter().filter_map(|(name, value)| {
                Some((name, value.filter(|value| !value.is_empty())?))
            }));
        let given: Vec<String> = given
            .into_iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        given.join(", ")
    }
}

/// Returns a bulk action as JSON, with sensitive values redacted.
fn redacted(shared: &Shared, caller: &Caller, mut bulk: BulkAction) -> Value {
    let redaction = &shared.options.redaction;
    for text in bulk.refusals.iter_mut().chain(&mut bulk.error) {
        *text = redaction.text(text);
    }
    bulk.reason = redaction.text(&bulk.reason);
    let conditions = &mut bulk.conditions;
    shown::redact(&mut conditions.error, redaction);
    shown::redact(&mut conditions.error_group, redaction);
    if shown::hides_keys(shared, caller) {
        let BulkConditions {
            key,
            key_prefix,
            lane,
            partition,
            ..
        } = conditions;
        [key, key_prefix, lane, partition]
            .into_iter()
            .for_each(shown::hide);
    }
    json!(bulk)
}

pub(crate) async fn preview(
    State(shared): State<Shared>,
    Body(many): Body<Many>,
) -> Answer<Json<Value>> {
    let conditions = many.conditions()?;
    many.check_step(&shared).await?;
    let mut preview = shared.inspect().preview_bulk(&conditions).await?;
    for found in &mut preview.sample {
        shown::redact(&mut found.last_error, &shared.options.redaction);
    }
    Ok(Json(json!(preview)))
}

pub(crate) async fn begin(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    Body(many): Body<Many>,
) -> Answer<(StatusCode, Json<Value>)> {
    let expected = many.expect.ok_or_else(|| {
        Problem::invalid("expect is required: the count that the preview returned")
    })?;
    let conditions = many.conditions()?;
    many.check_step(&shared).await?;
    let preview = shared.inspect().preview_bulk(&conditions).await?;
    let (count, is_exact) = (preview.count, preview.is_exact);
    if count > expected {
        let why = format!(
            "{count} instances match now, the preview showed {expected}: run the preview again"
        );
        return Err(
            Problem::new(StatusCode::CONFLICT, "count_changed", why).with(json!({"count": count}))
        );
    }
    let (name, on) = (action_name(many.kind), many.described());
    let mut new = NewBulkAction::new(many.kind, conditions, by.name.clone(), "dashboard");
    new.source.clone_from(&by.place);
    new.retry_step = many.step;
    new.expected = count;
    new.expected_is_exact = is_exact;
    if let Some(why) = many.why {
        new.reason = why;
    }
    let begun = shared.client.operate().begin_bulk(new).await;
    let bound = if is_exact { "" } else { "at least " };
    let outcome = begun
        .as_ref()
        .map(|bulk| format!("bulk {}: {bound}{count} instances", bulk.id))
        .map_err(with_causes);
    shared.audit.note(&by, name, on, outcome);
    let begun = begun?;
    execute_open(&shared);
    Ok((StatusCode::ACCEPTED, Json(redacted(&shared, &by, begun))))
}

/// Returns the name of the action in the audit log.
fn action_name(kind: BulkKind) -> &'static str {
    match kind {
        BulkKind::Retry => "bulk retry",
        BulkKind::Cancel => "bulk cancel",
        _ => "bulk discard",
    }
}

/// The cursor of a page of bulk actions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    before: Option<String>,
    limit: Option<u16>,
}

/// Returns a page of bulk actions, the newest first.
pub(crate) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(page): Query<Page>,
) -> Answer<Json<Value>> {
    let limit = usize::from(page.limit.unwrap_or(50));
    if !(1..=200).contains(&limit) {
        return Err(Problem::invalid("limit is 1 to 200"));
    }
    let before = mark(page.before.as_deref())?;
    let bulks = shared.inspect().bulk_actions(before, limit).await?;
    continue_left(&shared, &bulks);
    let next = bulks
        .last()
        .filter(|_| bulks.len() == limit)
        .map(|last| last.id.to_string());
    let bulks: Vec<Value> = bulks
        .into_iter()
        .map(|bulk| redacted(&shared, &caller, bulk))
        .collect();
    Ok(Json(json!({"bulks": bulks, "next": next})))
}

/// Continues bulk actions that have no live runner. A page that shows the progress asks again and
/// again, so an open dashboard continues what a stopped one has left.
fn continue_left(shared: &Shared, bulks: &[BulkAction]) {
    if bulks
        .iter()
        .any(|bulk| bulk.ended_at.is_none() && !bulk.is_active)
    {
        execute_open(shared);
    }
}

async fn found(shared: &Shared, id: &str) -> Answer<BulkAction> {
    let found = match id.parse() {
        Ok(number) => shared.inspect().bulk_action(number).await?,
        Err(_) => None,
    };
    found.ok_or_else(|| Problem::not_found(format!("there is no bulk action {id:?}")))
}

pub(crate) async fn progress(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    At(id): At<String>,
) -> Answer<Json<Value>> {
    let bulk = found(&shared, &id).await?;
    continue_left(&shared, std::slice::from_ref(&bulk));
    Ok(Json(redacted(&shared, &caller, bulk)))
}

pub(crate) async fn stop(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(id): At<String>,
) -> Answer<Json<Value>> {
    let number = found(&shared, &id).await?.id;
    let was_running = shared.client.operate().stop_bulk(number).await?;
    let stopped = found(&shared, &id).await?;
    let outcome = match was_running {
        true => format!(
            "stopped: {} changed, {} refused, {} examined",
            stopped.changed, stopped.refused, stopped.examined
        ),
        false => format!("it had already ended: {}", stopped.state),
    };
    shared
        .audit
        .note(&by, "bulk stop", format!("bulk {id}"), Ok(outcome));
    Ok(Json(redacted(&shared, &by, stopped)))
}
