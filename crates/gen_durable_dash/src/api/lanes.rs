//! The HTTP handlers for lanes and partition keys. They list the head of each lane and the holder
//! of each partition key, the number of instances that wait, and the reason why the head or holder
//! has not settled. Other handlers retry, skip or cancel the head of a blocked lane.

use axum::{Extension, Json, extract::State};
use gen_durable::{
    inspect::{KeyCursor, LaneFilter, LaneInfo, PartitionFilter, PartitionInfo},
    machine::LaneKey,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{instance, json as shown};
use crate::{
    access::Caller,
    problem::{Answer, Body, Problem, Query, with_causes},
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
pub(crate) struct LanesQuery {
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

impl LanesQuery {
    fn filter(self) -> Answer<LaneFilter> {
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
        let after = word("after", self.after)?.map(|key| KeyCursor::new(after_tenant, key));
        let (tenant, prefix) = (word("tenant", self.tenant)?, word("prefix", self.prefix)?);
        Ok(LaneFilter {
            tenant,
            prefix,
            blocked,
            after,
            limit,
            ..LaneFilter::default()
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
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<LanesQuery>,
) -> Answer<Written> {
    if shown::hides_keys(&shared, &caller) {
        return Err(Problem::keys_hidden());
    }
    let filter = wanted.filter()?;
    let asked = format!("lanes {filter:?}");
    let read = async {
        let page = shared.inspect().lanes_page(filter).await?;
        let redaction = &shared.options.redaction;
        let lanes: Vec<Value> = page
            .lanes
            .into_iter()
            .map(|lane| shown_lane(lane, redaction))
            .collect();
        Ok::<_, Problem>(json!({"lanes": lanes, "next": page.next}))
    };
    shared.recent.get(asked, read).await
}

fn shown_lane(mut lane: LaneInfo, redaction: &Redaction) -> Value {
    let blocked = lane.is_blocked();
    let head = lane
        .head
        .take()
        .map(|head| instance::explained(head, redaction));
    shown::and(json!(lane), json!({"blocked": blocked, "head": head}))
}

pub(crate) async fn partitions(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<LanesQuery>,
) -> Answer<Written> {
    if shown::hides_keys(&shared, &caller) {
        return Err(Problem::keys_hidden());
    }
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
    let LaneFilter {
        tenant,
        after,
        limit,
        ..
    } = wanted.filter()?;
    let filter = PartitionFilter {
        tenant,
        after,
        limit,
        ..PartitionFilter::default()
    };
    let (asked, limit) = (format!("partitions {filter:?}"), filter.limit);
    let read = async {
        let keys = shared.inspect().partitions(filter).await?;
        let last = keys
            .last()
            .filter(|_| keys.len() == limit)
            .map(PartitionInfo::cursor);
        let redaction = &shared.options.redaction;
        let keys: Vec<Value> = keys
            .into_iter()
            .map(|mut key| {
                let holder = key.holder.take();
                let holder = holder.map(|holder| instance::explained(holder, redaction));
                shown::and(json!(key), json!({"holder": holder}))
            })
            .collect();
        Ok::<_, Problem>(json!({"partitions": keys, "next": last}))
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
            .map_err(with_causes);
        shared
            .audit
            .note(by, act, format!("lane {}", self.lane()), outcome);
        let id = went?.to_string();
        Ok(Json(
            json!({"id": id, "tenant": self.tenant, "key": self.key, "said": format!("instance {id} {well}")}),
        ))
    }
}
