//! The HTTP handlers of bulk actions, which retry or cancel many instances.

use axum::{Extension, Json, extract::State, http::StatusCode};
use gen_durable::inspect::{Search, Status};
use serde::Deserialize;
use serde_json::{Value, json};

use super::json as shown;
use crate::{
    access::Caller,
    bulk::{Act, MANY_MAX, Progress, matching},
    find::InstancesQuery,
    problem::{Answer, At, Body, Problem},
    shared::Shared,
};

/// The body of an HTTP request for a bulk action: the filter that selects instances, and the action
/// (retry or cancel) on these instances.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Many {
    act: Act,
    #[serde(default)]
    filter: InstancesQuery,
    /// If set, the bulk action selects only instances with this error fingerprint.
    fingerprint: Option<String>,
    /// The number of instances that the preview of the bulk action showed to the operator.
    expect: Option<usize>,
    why: Option<String>,
}

impl Many {
    /// Converts the filter of a bulk action into a search for instances. Returns an error if the
    /// filter names no status, or a status that the action does not allow: a bulk action retries
    /// failed, stuck or cancelled instances, and cancels instances that have not settled.
    fn search(&self) -> Answer<Search> {
        let search = self.filter.search()?;
        let fits = |status: Status| match self.act {
            Act::Retry => matches!(status, Status::Failed | Status::Stuck | Status::Cancelled),
            Act::Cancel => !status.is_settled(),
        };
        match (search.status, self.act) {
            (Some(status), _) if fits(status) => Ok(search),
            (_, Act::Retry) => Err(Problem::invalid(
                "the filter must name a status that can be retried: failed, stuck or cancelled",
            )),
            (_, Act::Cancel) => Err(Problem::invalid(
                "the filter must name a status that can be cancelled: one that has not settled",
            )),
        }
    }
}

impl Many {
    /// Describes the instances of a bulk action for the audit log: every part of the filter, and
    /// the error.
    fn described(&self) -> String {
        let mut given = self.filter.described();
        let more = [
            ("error group", self.fingerprint.clone()),
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

pub(crate) async fn preview(
    State(shared): State<Shared>,
    Body(many): Body<Many>,
) -> Answer<Json<Value>> {
    let mut matched = matching(
        &shared.inspect(),
        &many.search()?,
        many.fingerprint.as_deref(),
        &shared.options.redaction,
    )
    .await?;
    for found in &mut matched.sample {
        shown::redact(&mut found.last_error, &shared.options.redaction);
    }
    Ok(Json(
        json!({"count": matched.ids.len(), "is_all": matched.is_all, "most": MANY_MAX, "sample": matched.sample}),
    ))
}

pub(crate) async fn begin(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    Body(many): Body<Many>,
) -> Answer<(StatusCode, Json<Progress>)> {
    let expected = many.expect.ok_or_else(|| {
        Problem::invalid("expect is required: the count that the preview returned")
    })?;
    let mut matched = matching(
        &shared.inspect(),
        &many.search()?,
        many.fingerprint.as_deref(),
        &shared.options.redaction,
    )
    .await?;
    let count = matched.ids.len();
    if count > expected {
        let why = format!(
            "{count} instances match now, the preview showed {expected}: run the preview again"
        );
        return Err(
            Problem::new(StatusCode::CONFLICT, "count_changed", why).with(json!({"count": count}))
        );
    }
    // Reverses the order of the ids, because the search returns the newest instances first and a
    // bulk action processes the oldest instances first.
    matched.ids.reverse();
    let (act, why) = (
        many.act,
        many.why
            .clone()
            .unwrap_or_else(|| format!("cancelled by {}", by.name)),
    );
    let name = if act == Act::Retry {
        "bulk retry"
    } else {
        "bulk cancel"
    };
    let on = many.described();
    shared
        .audit
        .note(&by, name, on, Ok(format!("{count} instances")));
    let progress = shared.bulks.begin(&shared, by, act, why, matched.ids);
    Ok((StatusCode::ACCEPTED, Json(progress)))
}

pub(crate) async fn list(State(shared): State<Shared>) -> Json<Value> {
    Json(json!({"bulks": shared.bulks.list()}))
}

fn missing(id: &str) -> Problem {
    Problem::not_found(format!("this process has no bulk action {id:?}"))
}

pub(crate) async fn progress(
    State(shared): State<Shared>,
    At(id): At<String>,
) -> Answer<Json<Progress>> {
    id.parse()
        .ok()
        .and_then(|number| shared.bulks.get(number))
        .map(Json)
        .ok_or_else(|| missing(&id))
}

pub(crate) async fn stop(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(id): At<String>,
) -> Answer<Json<Progress>> {
    let stopped = id
        .parse()
        .ok()
        .and_then(|number| shared.bulks.stop(number))
        .ok_or_else(|| missing(&id))?;
    shared.audit.note(
        &by,
        "bulk stop",
        format!("bulk {id}"),
        Ok(format!("after {}", stopped.done)),
    );
    Ok(Json(stopped))
}
