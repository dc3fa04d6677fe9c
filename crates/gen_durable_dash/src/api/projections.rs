//! The HTTP handlers for projections: their progress, their runs and failures, and the operator
//! actions on them. The dashboard applies no events to a projection. It inserts a row for the
//! requested run, and a worker that has registered the projection executes the run.

use axum::{Extension, Json, extract::State, http::StatusCode};
use gen_durable::{ProjectionFailure, ProjectionInfo, ProjectionRun, RunRequest, ScopeFilter};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{audit::mark, json::time, queues::said};
use crate::{
    access::Caller,
    problem::{Answer, At, Body, Problem, Query},
    redact::Redaction,
    shared::Shared,
};

/// The maximum length in bytes of the name of a projection or tenant in a request. The API rejects
/// longer names, because no projection or tenant has one.
const NAME_BYTES_MAX: usize = 200;

/// The OpenAPI schemas of the requests and responses for projections.
pub(crate) const SCHEMAS: &[(&str, &[&str])] = &[
    (
        "Projection",
        &[
            "*projection",
            "*tenant",
            "*version: integer",
            "offered: integer?",
            "*generation: integer",
            "*position: integer",
            "*log_position: integer",
            "*lag: integer",
            "lag_seconds: number?",
            "*status",
            "*health",
            "attempts: integer",
            "retry_at: string?",
            "error: string?",
            "*served: boolean",
            "owner: object?",
            "replaying_to: integer",
            "digest: string?",
            "digest_position: integer?",
            "digest_at: string?",
            "updated_at: time",
        ],
    ),
    (
        "Projections",
        &["*projections: Projection[]", "next: string?"],
    ),
    (
        "ProjectionRun",
        &[
            "*id",
            "*kind",
            "*projection",
            "*tenant",
            "*status",
            "*is_over: boolean",
            "generation: integer?",
            "*position: integer",
            "target: integer?",
            "verdict: string?",
            "equal: boolean?",
            "error: string?",
            "requested_by: string?",
            "owner: string?",
            "inserted_at: time",
            "started_at: string?",
            "updated_at: time",
            "finished_at: string?",
        ],
    ),
    (
        "ProjectionRuns",
        &["*runs: ProjectionRun[]", "next: string?"],
    ),
    (
        "ProjectionFailure",
        &[
            "*projection",
            "*tenant",
            "*position: integer",
            "event: string?",
            "*state",
            "*attempts: integer",
            "*error",
            "*redrive: boolean",
            "first_at: time",
            "last_at: time",
        ],
    ),
    (
        "ProjectionFailures",
        &["*failures: ProjectionFailure[]", "next: string?"],
    ),
    ("KeyScope", &["tenant"]),
    (
        "Rebuild",
        &["tenant", "in_place: boolean", "force: boolean"],
    ),
    ("Replay", &["tenant", "after: integer", "up_to: integer?"]),
    ("Redrive", &["tenant", "position: integer?"]),
    ("CancelRun", &["why"]),
    ("Asked", &["*run: ProjectionRun", "*served: boolean"]),
    (
        "ProjectionRetried",
        &["projection", "tenant", "*resumed: boolean"],
    ),
    ("Redriven", &["projection", "tenant", "*retried: integer"]),
    ("RunCancelled", &["id", "*cancelled: boolean"]),
];

/// The filter of a list of projections. The tenant with the empty name is valid, so an empty
/// `tenant` selects that tenant.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wanted {
    projection: Option<String>,
    tenant: Option<String>,
    after: Option<String>,
    before: Option<String>,
    limit: Option<u16>,
}

impl Wanted {
    fn filter(&self) -> Answer<ScopeFilter> {
        let name = |what: &str, name: &Option<String>| match name {
            Some(name) if name.len() > NAME_BYTES_MAX || name.contains('\0') => Err(
                Problem::invalid(format!("{what} is too long or contains a NUL byte")),
            ),
            name => Ok(name.clone()),
        };
        let limit = usize::from(self.limit.unwrap_or(50));
        if !(1..=200).contains(&limit) {
            return Err(Problem::invalid("limit must be 1 to 200"));
        }
        let projection = name("projection", &self.projection)?.filter(|name| !name.is_empty());
        Ok(ScopeFilter {
            projection,
            tenant: name("tenant", &self.tenant)?,
            limit,
        })
    }

    /// Parses the cursor of a page of projections, runs or failures. The response with the previous
    /// page contains this cursor as `next`.
    fn after<T: DeserializeOwned>(&self) -> Answer<Option<T>> {
        let Some(after) = self.after.as_deref().filter(|after| !after.is_empty()) else {
            return Ok(None);
        };
        let is_none = || Problem::invalid(format!("{after:?} is not a valid `after` cursor"));
        // Rejects a cursor with a NUL byte, because Postgres would reject a NUL byte in a text
        // parameter.
        let after = Some(after)
            .filter(|after| !after.contains("\\u0000"))
            .ok_or_else(is_none)?;
        serde_json::from_str(after).map(Some).map_err(|_| is_none())
    }
}

/// Parses the id of a projection run from the path of an HTTP request.
fn number(id: &str) -> Answer<i64> {
    id.parse()
        .map_err(|_| Problem::not_found(format!("run {id:?} does not exist")))
}

/// Returns the cursor of the page after `rows`, or `None` if `rows` has fewer rows than `limit`.
fn next<T, K: Serialize>(rows: &[T], limit: usize, key: impl Fn(&T) -> K) -> Option<String> {
    let last = rows.last().filter(|_| rows.len() >= limit)?;
    serde_json::to_string(&key(last)).ok()
}

pub(crate) async fn list(
    State(shared): State<Shared>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<Value>> {
    let (filter, after) = (wanted.filter()?, wanted.after()?);
    let limit = filter.limit;
    let found = shared.inspect().projections(filter, after).await?;
    let next = next(&found, limit, |one| {
        (one.projection.clone(), one.tenant.clone())
    });
    let rows: Vec<Value> = found
        .iter()
        .map(|one| info(one, &shared.options.redaction))
        .collect();
    Ok(Json(json!({"projections": rows, "next": next})))
}

pub(crate) async fn scopes(
    state: State<Shared>,
    At(name): At<String>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<Value>> {
    let is_first = wanted.after.is_none();
    let answer = list(
        state,
        Query(Wanted {
            projection: Some(name.clone()),
            ..wanted
        }),
    )
    .await?;
    let is_empty = answer
        .get("projections")
        .and_then(Value::as_array)
        .is_some_and(Vec::is_empty);
    if is_empty && is_first {
        return Err(Problem::not_found(format!(
            "projection {name:?} has not processed an event yet"
        )));
    }
    Ok(answer)
}

pub(crate) async fn runs(
    State(shared): State<Shared>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<Value>> {
    let filter = wanted.filter()?;
    let limit = filter.limit;
    let found = shared
        .inspect()
        .projection_runs(filter, mark(wanted.before.as_deref())?)
        .await?;
    let next = found
        .last()
        .filter(|_| found.len() >= limit)
        .map(|run| run.id.to_string());
    let rows: Vec<Value> = found
        .iter()
        .map(|run| run_json(run, &shared.options.redaction))
        .collect();
    Ok(Json(json!({"runs": rows, "next": next})))
}

pub(crate) async fn run(State(shared): State<Shared>, At(id): At<String>) -> Answer<Json<Value>> {
    let id = number(&id)?;
    let filter = ScopeFilter {
        limit: 1,
        ..ScopeFilter::default()
    };
    let found = shared
        .inspect()
        .projection_runs(filter, id.checked_add(1))
        .await?;
    let found = found.into_iter().find(|run| run.id == id);
    let found = found.ok_or_else(|| Problem::not_found(format!("run {id} does not exist")))?;
    Ok(Json(run_json(&found, &shared.options.redaction)))
}

pub(crate) async fn failures(
    State(shared): State<Shared>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<Value>> {
    let (filter, after) = (wanted.filter()?, wanted.after()?);
    let limit = filter.limit;
    let found = shared.inspect().projection_failures(filter, after).await?;
    let next = next(&found, limit, |one| {
        (one.projection.clone(), one.tenant.clone(), one.position)
    });
    let rows: Vec<Value> = found
        .iter()
        .map(|one| failure(one, &shared.options.redaction))
        .collect();
    Ok(Json(json!({"failures": rows, "next": next})))
}

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
pub(crate) struct CancelBody {
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
            "force applies to a rebuild in a shadow: a rebuild in place compares nothing",
        ));
    }
    let projections = shared.client.projections();
    let (act, request) = match body.in_place {
        true => ("rebuild in place", projections.rebuild(&body.tenant, &name)),
        false => (
            "rebuild in a shadow",
            projections.rebuild_in_a_shadow(&body.tenant, &name),
        ),
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
        .replay(&body.tenant, &name)
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
    let request = shared.client.projections().verify(&body.tenant, &name);
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
        .map_err(ToString::to_string);
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
    let run = run_json(&run, &shared.options.redaction);
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
    let went = shared.client.projections().retry(&body.tenant, &name).await;
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
        .redrive(&body.tenant, &name, body.position)
        .await;
    let on = match body.position {
        Some(position) => format!("{}, position {position}", scope(&name, &body.tenant)),
        None => scope(&name, &body.tenant),
    };
    let outcome = went
        .as_ref()
        .map(|count| format!("{count} events will be retried"))
        .map_err(ToString::to_string);
    shared.audit.note(&by, "redrive", on, outcome);
    Ok(Json(
        json!({"projection": name, "tenant": body.tenant, "retried": went?}),
    ))
}

pub(crate) async fn cancel(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(id): At<String>,
    Body(body): Body<CancelBody>,
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

fn scope(name: &str, tenant: &str) -> String {
    format!("projection {name} of tenant {tenant:?}")
}

fn info(one: &ProjectionInfo, redaction: &Redaction) -> Value {
    let owner = one
        .owner
        .as_ref()
        .filter(|_| one.owned)
        .map(|id| json!({"id": id, "host": one.host, "pid": one.pid}));
    json!({
        "projection": one.projection, "tenant": one.tenant, "version": one.version, "offered": one.offered,
        "generation": one.generation, "position": one.position, "log_position": one.log_position, "lag": one.lag(), "lag_seconds": one.lag_seconds,
        "status": one.status, "health": one.health(), "attempts": one.attempts, "retry_at": time(one.retry_at),
        "error": one.last_error.as_deref().map(|error| redaction.text(error)), "served": one.served, "owner": owner,
        "replaying_to": one.replaying_to, "digest": one.digest.as_deref().map(hex), "digest_position": one.digest_position,
        "digest_at": time(one.digest_at), "updated_at": one.updated_at.to_string(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn run_json(run: &ProjectionRun, redaction: &Redaction) -> Value {
    json!({
        "id": run.id.to_string(), "kind": run.kind.name(), "projection": run.projection, "tenant": run.tenant,
        "status": run.status, "is_over": run.is_over(), "generation": run.generation, "position": run.position,
        "target": run.target, "verdict": run.verdict, "equal": run.is_equal(),
        "error": run.error.as_deref().map(|error| redaction.text(error)), "requested_by": run.requested_by, "owner": run.owner,
        "inserted_at": run.inserted_at.to_string(), "started_at": time(run.started_at),
        "updated_at": run.updated_at.to_string(), "finished_at": time(run.finished_at),
    })
}

fn failure(one: &ProjectionFailure, redaction: &Redaction) -> Value {
    json!({
        "projection": one.projection, "tenant": one.tenant, "position": one.position, "event": one.event, "state": one.state,
        "attempts": one.attempts, "error": redaction.text(&one.error), "redrive": one.redrive,
        "first_at": one.first_at.to_string(), "last_at": one.last_at.to_string(),
    })
}
