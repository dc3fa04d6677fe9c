//! The HTTP handlers of the operator actions on one instance: signal, cancel and retry.

use axum::{Extension, Json, extract::State};
use gen_durable::{Address, Id, client::Delivery};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::instance::number;
use crate::{
    access::Caller,
    known,
    problem::{Answer, At, Body, Problem, with_causes},
    shared::Shared,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignalBody {
    name: String,
    payload: Option<Box<RawValue>>,
    /// The dedup key of the signal. The instance receives repeated signals with the same dedup key
    /// only once.
    once: Option<String>,
}

pub(crate) async fn signal(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(id): At<String>,
    Body(body): Body<SignalBody>,
) -> Answer<Json<Value>> {
    let to = Address::Id(Id::from_raw(number(&id)?));
    let payload = body
        .payload
        .map_or_else(|| "null".to_owned(), |payload| payload.get().to_owned());
    let once = body.once.filter(|once| !once.is_empty());
    let mut request = shared.client.operate().signal(to, &body.name, &payload);
    if let Some(once) = once {
        request = request.once(once);
    }
    let went = request.await.map(Delivery::is_new);
    let outcome = went.as_ref().map(|is_new| {
        if *is_new {
            "delivered"
        } else {
            "delivered before"
        }
        .to_owned()
    });
    shared.audit.note(
        &by,
        "signal",
        format!("instance {id}: {}", body.name),
        outcome.map_err(with_causes),
    );
    Ok(Json(
        json!({"id": id, "signal": body.name, "is_new": went?}),
    ))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CancelBody {
    why: Option<String>,
    subtree: bool,
}

pub(crate) async fn cancel(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(id): At<String>,
    Body(body): Body<CancelBody>,
) -> Answer<Json<Value>> {
    let to = Address::Id(Id::from_raw(number(&id)?));
    let why = body
        .why
        .filter(|why| !why.is_empty())
        .unwrap_or_else(|| format!("cancelled by {}", by.name));
    let mut request = shared.client.operate().cancel(to, &why);
    if body.subtree {
        request = request.subtree();
    }
    let went = request.await;
    let outcome = went
        .as_ref()
        .map(|in_time| if *in_time { "cancelled" } else { "too late" }.to_owned());
    shared.audit.note(
        &by,
        "cancel",
        format!("instance {id}"),
        outcome.map_err(with_causes),
    );
    Ok(Json(json!({"id": id, "cancelled": went?})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetryBody {
    /// The step from which a retry continues the instance. Without this field the instance
    /// continues from its current step.
    step: Option<String>,
    /// The data of the step from which a retry continues the instance.
    data: Option<Box<RawValue>>,
    /// Whether to accept a step that no live worker knows.
    force: bool,
}

pub(crate) async fn retry(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(id): At<String>,
    Body(body): Body<RetryBody>,
) -> Answer<Json<Value>> {
    let step = body.step.filter(|step| !step.is_empty());
    let data = body.data.filter(|data| data.get() != "null");
    if step.is_none() && data.is_some() {
        return Err(Problem::invalid(
            "data belongs to a step: name the step as well",
        ));
    }
    if let (Some(step), false) = (&step, body.force) {
        let inspect = shared.inspect();
        let row = inspect.show(number(&id)?).await?;
        if let Some(row) = row {
            known::check(&inspect, &row.machine, step).await?;
        }
    }
    let mut request = shared.client.operate().retry(number(&id)?);
    if let Some(step) = &step {
        request = request.at_step(step);
    }
    if let Some(data) = data {
        request = request.with_data(data.get());
    }
    let went = request.await;
    let on = match &step {
        Some(step) => format!("instance {id}, from {step}"),
        None => format!("instance {id}"),
    };
    shared
        .audit
        .note(&by, "retry", on, super::queues::said(&went, "runs again"));
    went?;
    Ok(Json(json!({"id": id, "runs_again": true})))
}
