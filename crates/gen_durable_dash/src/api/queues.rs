//! The HTTP handlers of queues and workers.

use axum::{Extension, Json, extract::State};
use serde_json::{Value, json};

use crate::{
    access::Caller,
    problem::{Answer, At, with_causes},
    shared::Shared,
};

pub(crate) async fn queues(State(shared): State<Shared>) -> Answer<Json<Value>> {
    let queues = shared.inspect().queues().await?;
    Ok(Json(json!({"queues": queues})))
}

pub(crate) async fn pause(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(queue): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.pause_queue(&queue, &by.name).await;
    shared.audit.note(
        &by,
        "pause",
        format!("queue {queue}"),
        said(&went, "paused"),
    );
    Ok(Json(
        json!({"queue": queue, "paused": true, "was_paused": !went?}),
    ))
}

pub(crate) async fn resume(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(queue): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.resume_queue(&queue).await;
    shared
        .audit
        .note(&by, "resume", format!("queue {queue}"), said(&went, "open"));
    Ok(Json(
        json!({"queue": queue, "paused": false, "was_paused": went?}),
    ))
}

/// Returns the outcome for an audit record: `well` if the action `went` well, and the text of the
/// error otherwise.
pub(crate) fn said<T>(went: &Result<T, gen_durable::Error>, well: &str) -> Result<String, String> {
    went.as_ref().map(|_| well.to_owned()).map_err(with_causes)
}

pub(crate) async fn workers(State(shared): State<Shared>) -> Answer<Json<Value>> {
    let workers = shared.inspect().workers().await?;
    Ok(Json(json!({"workers": workers})))
}
