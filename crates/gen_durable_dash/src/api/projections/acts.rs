//! The operator actions on projections.

use axum::{Extension, Json, extract::State, http::StatusCode};
use gen_durable::projection::{RunRequest, Scope, ScopeFilter};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{number, run_json, scope};
use crate::{
    access::Caller,
    api::queues::said,
    problem::{Answer, At, Body, Problem, with_causes},
    shared::Shared,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ScopeBody {
    tenant: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RebuildBody {
    tenant: String,
    /// Whether the rebuild deletes the rows of the current generation of the projection and writes
    /// them again. If not, the rebuild writes a new generation and then makes it the current one.
    in_place: bool,
    /// Whether the rebuild makes the new generation the current one even if its digest differs from
    /// the digest of the current generation.
    force: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReplayBody {
    tenant: String,
    /// The run replays only events after this log position.
    after: i64,
    /// The run replays only events up to this log position.
    up_to: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RedriveBody {
    tenant: String,
    /// The redrive applies only the parked event at this log position.
    position: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CancelRunBody {
    why: Option<String>,
}

pub(crate) async fn rebuild(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(body): Body<RebuildBody>,
) -> Answer<(StatusCode, Json<Value>)> {
    if body.in_place && body.force {
        return Err(Problem::invalid(
            "force applies to a shadow rebuild: a rebuild in place compares nothing",
        ));
    }
    let (projections, scope) = (
        shared.client.projections(),
        Scope::new(&name).of(&body.tenant),
    );
    let (act, request) = match body.in_place {
        true => ("rebuild in place", projections.rebuild(scope)),
        false => ("shadow rebuild", projections.shadow_rebuild(scope)),
    };
    ask(
        &shared,
        &by,
        act,
        (&name, &body.tenant),
        if body.force { request.force() } else { request },
    )
    .await
}

pub(crate) async fn replay(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(body): Body<ReplayBody>,
) -> Answer<(StatusCode, Json<Value>)> {
    if body.after < 0 || body.up_to.is_some_and(|to| to <= body.after) {
        return Err(Problem::invalid(
            "after must be 0 or more, and up_to greater than after",
        ));
    }
    let request = shared
        .client
        .projections()
        .replay(Scope::new(&name).of(&body.tenant))
        .after(body.after);
    let request = match body.up_to {
        Some(to) => request.up_to(to),
        None => request,
    };
    ask(&shared, &by, "replay", (&name, &body.tenant), request).await
}

pub(crate) async fn verify(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(body): Body<ScopeBody>,
) -> Answer<(StatusCode, Json<Value>)> {
    let scope = Scope::new(&name).of(&body.tenant);
    let request = shared.client.projections().verify(scope);
    ask(&shared, &by, "verify", (&name, &body.tenant), request).await
}

/// Inserts the request for a run of a projection. A worker that has registered the projection
/// executes the run. The field `served` of the response says whether there is a worker with a valid
/// lease that has registered the projection.
async fn ask(
    shared: &Shared,
    by: &Caller,
    act: &'static str,
    (name, tenant): (&str, &str),
    request: RunRequest,
) -> Answer<(StatusCode, Json<Value>)> {
    let went = request.by(&by.name).await;
    let outcome = went
        .as_ref()
        .map(|id| format!("run {id}"))
        .map_err(with_causes);
    shared.audit.note(by, act, scope(name, tenant), outcome);
    let run = shared.client.projections().run(went?).await?;
    let filter = ScopeFilter {
        projection: Some(name.to_owned()),
        tenant: Some(tenant.to_owned()),
        limit: 1,
    };
    let served = shared
        .inspect()
        .projections(filter, None)
        .await?
        .first()
        .is_some_and(|one| one.served);
    let run = run_json(run, &shared.options.redaction);
    Ok((
        StatusCode::ACCEPTED,
        Json(json!({"run": run, "served": served})),
    ))
}

pub(crate) async fn retry(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(body): Body<ScopeBody>,
) -> Answer<Json<Value>> {
    let named = Scope::new(&name).of(&body.tenant);
    let went = shared.client.projections().retry(named).await;
    let well = if went.as_ref().is_ok_and(|resumed| *resumed) {
        "continues"
    } else {
        "had not halted"
    };
    shared.audit.note(
        &by,
        "retry projection",
        scope(&name, &body.tenant),
        said(&went, well),
    );
    Ok(Json(
        json!({"projection": name, "tenant": body.tenant, "resumed": went?}),
    ))
}

pub(crate) async fn redrive(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(body): Body<RedriveBody>,
) -> Answer<Json<Value>> {
    let went = shared
        .client
        .projections()
        .redrive(Scope::new(&name).of(&body.tenant), body.position)
        .await;
    let on = match body.position {
        Some(position) => format!("{}, position {position}", scope(&name, &body.tenant)),
        None => scope(&name, &body.tenant),
    };
    let outcome = went
        .as_ref()
        .map(|count| format!("{count} events will be retried"))
        .map_err(with_causes);
    shared.audit.note(&by, "redrive", on, outcome);
    Ok(Json(
        json!({"projection": name, "tenant": body.tenant, "retried": went?}),
    ))
}

pub(crate) async fn cancel(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(id): At<String>,
    Body(body): Body<CancelRunBody>,
) -> Answer<Json<Value>> {
    let run = number(&id)?;
    let why = body
        .why
        .filter(|why| !why.is_empty())
        .unwrap_or_else(|| format!("cancelled by {}", by.name));
    let projections = shared.client.projections();
    let went = match projections.run(run).await {
        Ok(_) => projections.cancel(run, &why).await,
        Err(error) => Err(error),
    };
    let well = if went.as_ref().is_ok_and(|in_time| *in_time) {
        "cancelled"
    } else {
        "too late"
    };
    shared
        .audit
        .note(&by, "cancel run", format!("run {run}"), said(&went, well));
    Ok(Json(json!({"id": id, "cancelled": went?})))
}
