//! The HTTP handlers for lanes and partition keys. They list the head of each lane and the holder
//! of each partition key, the number of instances that wait, and the reason why the head or holder
//! has not settled. Other handlers retry, skip or cancel the head of a blocked lane.

use axum::{Extension, Json, extract::State};
use gen_durable::{Explanation, KeyFilter, LaneInfo, LaneKey};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{instance, json as shown};
use crate::{
    access::Caller,
    problem::{Answer, Body, Problem, Query},
    recent::Written,
    redact::Redaction,
    shared::Shared,
};

/// The maximum length in bytes of a filter value for lanes and partition keys. The API rejects
/// longer values, because no key is longer.
const WORD_BYTES_MAX: usize = 512;

/// The filter of a list of lanes or partition keys. An empty value means "not given", because
/// browsers send empty form fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wanted {
    tenant: Option<String>,
    /// Selects lanes or partition keys with this prefix.
    prefix: Option<String>,
    /// Selects only blocked lanes.
    blocked: Option<String>,
    /// The cursor of a page of lanes or partition keys: the last key of the previous page and its
    /// tenant.
    after: Option<String>,
    after_tenant: Option<String>,
    limit: Option<u16>,
}

impl Wanted {
    fn filter(self) -> Answer<KeyFilter> {
        let limit = limit(self.limit)?;
        let blocked = match self.blocked.as_deref().unwrap_or_default() {
            "" | "false" => false,
            "true" => true,
            other => {
                return Err(Problem::invalid(format!(
                    "blocked must be true or false, not {other:?}"
                )));
            }
        };
        let after_tenant = word("after_tenant", self.after_tenant)?.unwrap_or_default();
        let after = word("after", self.after)?.map(|key| (after_tenant, key));
        let (tenant, prefix) = (word("tenant", self.tenant)?, word("prefix", self.prefix)?);
        Ok(KeyFilter {
            tenant,
            prefix,
            blocked,
            after,
            limit,
            ..KeyFilter::default()
        })
    }
}

/// Checks a filter value of a request. Returns an error if the value is too long or contains a NUL
/// byte, because no column contains such a value.
pub(crate) fn word(name: &str, word: Option<String>) -> Answer<Option<String>> {
    let Some(word) = word.filter(|word| !word.is_empty()) else {
        return Ok(None);
    };
    match word.len() > WORD_BYTES_MAX || word.contains('\0') {
        true => Err(Problem::invalid(format!(
            "{name} is too long or contains a NUL byte"
        ))),
        false => Ok(Some(word)),
    }
}

/// Returns the number of rows per page of a list: 50 by default, 200 at most.
pub(crate) fn limit(limit: Option<u16>) -> Answer<usize> {
    let limit = usize::from(limit.unwrap_or(50));
    match (1..=200).contains(&limit) {
        true => Ok(limit),
        false => Err(Problem::invalid("limit must be 1 to 200")),
    }
}

pub(crate) async fn lanes(
    State(shared): State<Shared>,
    Query(wanted): Query<Wanted>,
) -> Answer<Written> {
    let filter = wanted.filter()?;
    let asked = format!("lanes {filter:?}");
    let read = async {
        let page = shared.inspect().lanes_page(filter).await?;
        let redaction = &shared.options.redaction;
        let lanes: Vec<Value> = page
            .lanes
            .iter()
            .map(|lane| shown_lane(lane, redaction))
            .collect();
        Ok::<_, Problem>(json!({"lanes": lanes, "next": next(page.next)}))
    };
    shared.recent.get(asked, read).await
}

fn next(place: Option<(String, String)>) -> Option<Value> {
    place.map(|(tenant, key)| json!({"after": key, "after_tenant": tenant}))
}

fn shown_lane(lane: &LaneInfo, redaction: &Redaction) -> Value {
    json!({
        "tenant": lane.tenant, "key": lane.key, "depth": lane.depth, "awaiting_placement": lane.awaiting_placement,
        "capped": lane.depth >= shown::COUNTED_MAX, "blocked": lane.is_blocked(),
        "head": lane.head.as_ref().map(|head| holder(head, redaction)),
    })
}

/// Returns the head of a lane or the holder of a partition key as JSON, with the first reason why
/// that instance has not settled.
fn holder(of: &Explanation, redaction: &Redaction) -> Value {
    let row = &of.instance;
    let (kind, reason) = match of.blockers.first() {
        Some(blocker) => instance::said(blocker, of.now),
        None => (
            "due",
            "Nothing blocks it: the next pick of a worker claims it.".to_owned(),
        ),
    };
    json!({
        "id": row.id.to_string(), "machine": row.machine, "step": row.step, "status": row.status.name(),
        "attempt": row.attempt, "inserted_at": row.inserted_at.to_string(), "updated_at": row.updated_at.to_string(),
        "kind": kind, "reason": redaction.text(&reason),
        "error": row.last_error.as_deref().map(|error| redaction.text(error)),
    })
}

pub(crate) async fn partitions(
    State(shared): State<Shared>,
    Query(wanted): Query<Wanted>,
) -> Answer<Written> {
    if wanted
        .prefix
        .as_deref()
        .is_some_and(|prefix| !prefix.is_empty())
        || wanted.blocked.is_some()
    {
        return Err(Problem::invalid(
            "partition keys can be filtered by tenant only; they are never blocked",
        ));
    }
    let filter = wanted.filter()?;
    let (asked, limit) = (format!("partitions {filter:?}"), filter.limit);
    let read = async {
        let keys = shared.inspect().partitions(filter).await?;
        let last = keys
            .last()
            .filter(|_| keys.len() == limit)
            .map(|key| (key.tenant.clone(), key.key.clone()));
        let redaction = &shared.options.redaction;
        let keys: Vec<Value> = keys
            .iter()
            .map(|key| {
                json!({
                    "tenant": key.tenant, "key": key.key, "waiting": key.waiting,
                    "capped": key.waiting >= shown::COUNTED_MAX,
                    "holder": key.holder.as_ref().map(|one| holder(one, redaction)),
                })
            })
            .collect();
        Ok::<_, Problem>(json!({"partitions": keys, "next": next(last)}))
    };
    shared.recent.get(asked, read).await
}

/// The body of a request that names a lane. The key of the lane is in the body and not in the path,
/// because a key may contain any characters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    key: String,
    #[serde(default)]
    tenant: String,
    /// The reason that an operator gives for the cancellation of the head of a blocked lane.
    why: Option<String>,
}

pub(crate) async fn retry(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    Body(which): Body<Which>,
) -> Answer<Json<Value>> {
    let went = shared.client.operate().lane_retry(which.lane()).await;
    which.done(
        &shared,
        &by,
        ("lane retry", "runs again and keeps its lane position"),
        went,
    )
}

pub(crate) async fn skip(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    Body(which): Body<Which>,
) -> Answer<Json<Value>> {
    let went = shared.client.operate().lane_skip(which.lane()).await;
    which.done(
        &shared,
        &by,
        ("lane skip", "stays failed and no longer blocks its lane"),
        went,
    )
}

pub(crate) async fn discard(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    Body(which): Body<Which>,
) -> Answer<Json<Value>> {
    let why = which.why.clone().filter(|why| !why.is_empty());
    let why = why.unwrap_or_else(|| format!("discarded from its lane by {}", by.name));
    let went = shared
        .client
        .operate()
        .lane_discard(which.lane(), &why)
        .await;
    which.done(
        &shared,
        &by,
        ("lane discard", "is cancelled and no longer blocks its lane"),
        went,
    )
}

impl Which {
    fn lane(&self) -> LaneKey {
        LaneKey::new(&self.key).of(&self.tenant)
    }

    fn done(
        &self,
        shared: &Shared,
        by: &Caller,
        (act, well): (&'static str, &str),
        went: Result<i64, gen_durable::Error>,
    ) -> Answer<Json<Value>> {
        shared.recent.forget();
        let outcome = went
            .as_ref()
            .map(|id| format!("instance {id} {well}"))
            .map_err(ToString::to_string);
        shared
            .audit
            .note(by, act, format!("lane {}", self.lane()), outcome);
        let id = went?.to_string();
        Ok(Json(
            json!({"id": id, "tenant": self.tenant, "key": self.key, "said": format!("instance {id} {well}")}),
        ))
    }
}
