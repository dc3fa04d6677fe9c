//! The HTTP handlers of queues and workers.

use axum::{Extension, Json, extract::State};
use gen_durable::{inspect::Instance, schedule::Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::json as shown;
use crate::{
    access::Caller,
    problem::{Answer, At, Body, Problem, with_causes},
    shared::Shared,
};

/// The largest number of claims of a worker in a response.
const CLAIMS_MAX: usize = 200;

pub(crate) async fn queues(State(shared): State<Shared>) -> Answer<Json<Value>> {
    let queues = shared.inspect().queues().await?;
    Ok(Json(json!({"queues": queues})))
}

pub(crate) async fn queue(
    State(shared): State<Shared>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let queues = shared.inspect().queues().await?;
    let queue = queues.into_iter().find(|queue| queue.name == name);
    let queue = queue.ok_or_else(|| {
        Problem::not_found(format!(
            "queue {name:?} is unknown: no worker serves it, no instance waits or runs in it, and it has no settings"
        ))
    })?;
    let workers = shared.inspect().workers().await?;
    let serving: Vec<Value> = workers
        .iter()
        .filter(|worker| worker.alive && worker.queues.contains(&name))
        .map(|worker| json!({"id": worker.id, "host": worker.host, "pid": worker.pid, "draining": worker.draining}))
        .collect();
    Ok(Json(json!({"queue": queue, "workers": serving})))
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

pub(crate) async fn fair(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(queue): At<String>,
) -> Answer<Json<Value>> {
    set_fair(&shared, &by, &queue, true).await
}

pub(crate) async fn unfair(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(queue): At<String>,
) -> Answer<Json<Value>> {
    set_fair(&shared, &by, &queue, false).await
}

async fn set_fair(shared: &Shared, by: &Caller, queue: &str, is_fair: bool) -> Answer<Json<Value>> {
    let went = shared.client.operate().set_fair(queue, is_fair).await;
    let (act, well) = match is_fair {
        true => ("fair queue", "fair"),
        false => ("unfair queue", "not fair"),
    };
    shared
        .audit
        .note(by, act, format!("queue {queue}"), said(&went, well));
    Ok(Json(
        json!({"queue": queue, "is_fair": is_fair, "changed": went?}),
    ))
}

/// The body of a request that sets the share of a tenant. Null, or no share, stands for 1.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewShare {
    tenant: String,
    share: Option<u32>,
}

pub(crate) async fn share(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(queue): At<String>,
    Body(NewShare { tenant, share }): Body<NewShare>,
) -> Answer<Json<Value>> {
    let operate = shared.client.operate();
    let went = operate.set_tenant_share(&queue, &tenant, share).await;
    let subject = format!(
        "queue {queue}: {}",
        json!({"tenant": tenant, "share": share})
    );
    shared
        .audit
        .note(&by, "set share", subject, said(&went, "set"));
    Ok(Json(
        json!({"queue": queue, "tenant": tenant, "share": share, "changed": went?}),
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

pub(crate) async fn worker(
    State(shared): State<Shared>,
    At(id): At<String>,
) -> Answer<Json<Value>> {
    let workers = shared.inspect().workers().await?;
    let worker = workers.into_iter().find(|worker| worker.id == id);
    let worker = worker.ok_or_else(|| {
        Problem::not_found(format!(
            "worker {id:?} is unknown: it has stopped, or another worker has taken its instances after its lease expired"
        ))
    })?;
    let claims = shared.inspect().claims(&worker.id, CLAIMS_MAX).await?;
    let claims: Vec<Value> = claims.iter().map(claim).collect();
    Ok(Json(
        json!({"worker": worker, "claims": claims, "claims_max": CLAIMS_MAX, "at": Timestamp::now().to_string()}),
    ))
}

/// Returns the columns of a claimed instance that contain neither payloads nor keys.
fn claim(row: &Instance) -> Value {
    json!({
        "id": row.id.to_string(), "machine": row.machine, "version": row.version, "step": row.step,
        "status": row.status.name(), "queue": row.queue, "attempt": row.attempt,
        "changed_at": shown::time(Some(row.updated_at)),
    })
}
