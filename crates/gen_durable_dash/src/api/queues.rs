//! The HTTP handlers of queues and workers.

use axum::{Extension, Json, extract::State};
use serde_json::{Value, json};

use super::json as shown;
use crate::{
    access::Caller,
    problem::{Answer, At},
    shared::Shared,
};

pub(crate) async fn queues(State(shared): State<Shared>) -> Answer<Json<Value>> {
    let backlog = shared.inspect().backlog().await?;
    Ok(Json(
        json!({"queues": backlog.iter().map(shown::queue).collect::<Vec<_>>()}),
    ))
}

pub(crate) async fn pause(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(queue): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.pause(&queue, &by.name).await;
    shared.audit.note(
        &by,
        "pause",
        format!("queue {queue}"),
        said(&went, "paused"),
    );
    went?;
    Ok(Json(json!({"queue": queue, "paused": true})))
}

pub(crate) async fn resume(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(queue): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.resume(&queue).await;
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
    went.as_ref()
        .map(|_| well.to_owned())
        .map_err(ToString::to_string)
}

pub(crate) async fn workers(State(shared): State<Shared>) -> Answer<Json<Value>> {
    let workers = shared.inspect().workers().await?;
    Ok(Json(
        json!({"workers": workers.iter().map(shown::worker).collect::<Vec<_>>()}),
    ))
}
