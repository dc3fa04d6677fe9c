//! The HTTP handlers for projections: their progress, their runs and failures, and the operator
//! actions on them. The dashboard applies no events to a projection. It inserts a row for the
//! requested run, and a worker that has registered the projection executes the run.

pub(crate) mod acts;

use axum::{Json, extract::State};
use gen_durable::projection::{
    FailureCursor, ProjectionFailure, ProjectionInfo, ProjectionRun, ScopeCursor, ScopeFilter,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{audit::mark, json::redact};
use crate::{
    problem::{Answer, At, Problem, Query},
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
            "last_error: string?",
            "*served: boolean",
            "owner: string?",
            "*owned: boolean",
            "host: string?",
            "pid: integer?",
            "partition: integer",
            "applied: integer",
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
            "is_equal: boolean?",
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
            "resolved_at: string?",
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
pub(crate) struct ProjectionsQuery {
    projection: Option<String>,
    tenant: Option<String>,
    after: Option<String>,
    before: Option<String>,
    limit: Option<u16>,
}

impl ProjectionsQuery {
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
    Query(wanted): Query<ProjectionsQuery>,
) -> Answer<Json<Value>> {
    let filter = wanted.filter()?;
    let after = wanted
        .after()?
        .map(|(projection, tenant)| ScopeCursor { projection, tenant });
    let limit = filter.limit;
    let found = shared.inspect().projections(filter, after).await?;
    let next = next(&found, limit, |one| {
        (one.projection.clone(), one.tenant.clone())
    });
    let rows: Vec<Value> = found
        .into_iter()
        .map(|one| info(one, &shared.options.redaction))
        .collect();
    Ok(Json(json!({"projections": rows, "next": next})))
}

pub(crate) async fn scopes(
    state: State<Shared>,
    At(name): At<String>,
    Query(wanted): Query<ProjectionsQuery>,
) -> Answer<Json<Value>> {
    let is_first = wanted.after.is_none();
    let answer = list(
        state,
        Query(ProjectionsQuery {
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
    Query(wanted): Query<ProjectionsQuery>,
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
        .into_iter()
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
    Ok(Json(run_json(found, &shared.options.redaction)))
}

pub(crate) async fn failures(
    State(shared): State<Shared>,
    Query(wanted): Query<ProjectionsQuery>,
) -> Answer<Json<Value>> {
    let filter = wanted.filter()?;
    let after = wanted
        .after()?
        .map(|(projection, tenant, position)| FailureCursor {
            scope: ScopeCursor { projection, tenant },
            position,
        });
    let limit = filter.limit;
    let found = shared.inspect().projection_failures(filter, after).await?;
    let next = next(&found, limit, |one| {
        (one.projection.clone(), one.tenant.clone(), one.position)
    });
    let rows: Vec<Value> = found
        .into_iter()
        .map(|one| failure(one, &shared.options.redaction))
        .collect();
    Ok(Json(json!({"failures": rows, "next": next})))
}

fn scope(name: &str, tenant: &str) -> String {
    format!("projection {name} of tenant {tenant:?}")
}

fn info(mut one: ProjectionInfo, redaction: &Redaction) -> Value {
    redact(&mut one.last_error, redaction);
    json!(one)
}

fn run_json(mut run: ProjectionRun, redaction: &Redaction) -> Value {
    redact(&mut run.error, redaction);
    json!(run)
}

fn failure(mut one: ProjectionFailure, redaction: &Redaction) -> Value {
    one.error = redaction.text(&one.error);
    json!(one)
}
