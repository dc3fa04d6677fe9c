//! The HTTP handlers that search for instances and enqueue new instances.

use std::time::Duration;

use axum::{Extension, Json, extract::State, http::StatusCode};
use gen_durable::{
    Address, KeyScope,
    inspect::{Inspect, Search, SearchPage, Status},
    operate::UntypedInstance,
    schedule::Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::json as shown;
use crate::{
    access::{Caller, Role},
    known,
    problem::{Answer, Body, Problem, Query, with_causes},
    redact::Redaction,
    shared::Shared,
};

/// The maximum length in bytes of a filter value in a search for instances. The API rejects longer
/// values.
const WORD_BYTES_MAX: usize = 500;

/// The filter of a search for instances. An empty value means "not given", because browsers send
/// empty form fields.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct InstancesQuery {
    pub(crate) machine: Option<String>,
    pub(crate) version: Option<i32>,
    pub(crate) step: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) error: Option<String>,
    /// Selects instances that were enqueued at most this many seconds ago.
    pub(crate) newer_than: Option<u64>,
    /// Selects instances that were enqueued at least this many seconds ago.
    pub(crate) older_than: Option<u64>,
    /// The cursor of a page of instances: the last instance id of the previous page.
    pub(crate) before: Option<String>,
    pub(crate) limit: Option<u16>,
}

impl InstancesQuery {
    pub(crate) fn search(self) -> Answer<Search> {
        let word = |name: &str, word: Option<String>| -> Answer<Option<String>> {
            let Some(word) = word.filter(|word| !word.is_empty()) else {
                return Ok(None);
            };
            match word.len() > WORD_BYTES_MAX || word.contains('\0') {
                true => Err(Problem::invalid(format!(
                    "{name} is too long or contains a NUL byte"
                ))),
                false => Ok(Some(word)),
            }
        };
        let status = word("status", self.status)?;
        let status = status
            .map(|name| name.parse::<Status>())
            .transpose()
            .map_err(|error| Problem::invalid(error.to_string()))?;
        let before = word("before", self.before)?;
        let before = before
            .map(|id| {
                id.parse()
                    .map_err(|_| Problem::invalid(format!("{id:?} is not a valid `before` cursor")))
            })
            .transpose()?;
        let ago = |seconds: Option<u64>| {
            seconds.map(|seconds| {
                let now = Timestamp::now().as_second();
                Timestamp::from_second(now.saturating_sub_unsigned(seconds))
                    .unwrap_or(Timestamp::UNIX_EPOCH)
            })
        };
        let limit = usize::from(self.limit.unwrap_or(50));
        if !(1..=200).contains(&limit) {
            return Err(Problem::invalid("limit must be 1 to 200"));
        }
        Ok(Search {
            machine: word("machine", self.machine)?,
            version: self.version,
            step: word("step", self.step)?,
            status,
            queue: word("queue", self.queue)?,
            tenant: word("tenant", self.tenant)?,
            key: word("key", self.key)?,
            error: word("error", self.error)?,
            since: ago(self.newer_than),
            until: ago(self.older_than),
            before,
            limit,
        })
    }
}

/// Maximum number of statements of one search. Each reads at most 20,000 instances.
const STATEMENTS_MAX: usize = 10;
/// Maximum number of instances that one search of a reader by error text compares.
const COMPARED_MAX: usize = 5_000;

pub(crate) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<InstancesQuery>,
) -> Answer<Json<SearchPage>> {
    let mut search = wanted.search()?;
    let redaction = &shared.options.redaction;
    let hides_keys = shown::hides_keys(&shared, &caller);
    if hides_keys && search.key.is_some() {
        return Err(Problem::keys_hidden());
    }
    let inspect = shared.inspect();
    let mut page = match search.error.take_if(|_| caller.role == Role::Reader) {
        Some(error) => search_redacted(&inspect, &search, &error, redaction).await?,
        None => search_far(&inspect, &search).await?,
    };
    // Adds the instance that currently holds the searched key to the first page, even if that
    // instance is old. The search reads a bounded number of rows, newest first, and would stop
    // before it reaches the row of an old instance.
    if let (Some(key), None) = (&search.key, search.before) {
        let tenant = search.tenant.as_deref().unwrap_or_default();
        let holder = inspect.holder(Address::keyed(key).of(tenant)).await?;
        let missing = holder.filter(|id| page.instances.iter().all(|found| found.id != *id));
        if let Some(id) = missing {
            let alone = Search {
                before: Some(id.saturating_add(1)),
                limit: 1,
                ..search
            };
            page.instances.extend(
                inspect
                    .search(alone)
                    .await?
                    .instances
                    .into_iter()
                    .filter(|found| found.id == id),
            );
        }
    }
    for found in &mut page.instances {
        shown::redact(&mut found.last_error, redaction);
        if hides_keys {
            shown::hide(&mut found.key);
        }
    }
    Ok(Json(page))
}

/// Searches for instances, and continues with older ones while the page is not full. Each statement
/// reads a bounded number of rows, so one statement finds an old instance only by an index.
async fn search_far(inspect: &Inspect, search: &Search) -> Answer<SearchPage> {
    let mut rows = search.clone();
    let mut found = Vec::new();
    for statement in 1.. {
        let mut page = inspect.search(rows.clone()).await?;
        found.append(&mut page.instances);
        let is_full = found.len() >= search.limit;
        if is_full || page.next.is_none() || statement == STATEMENTS_MAX {
            page.instances = found;
            return Ok(page);
        }
        rows.before = page.next;
        rows.limit = search.limit - found.len();
    }
    Err(Problem::invalid("the search did not end"))
}

/// Searches for instances by a part of their redacted error text. The statement does not compare
/// the stored error text: otherwise the number of matches would reveal redacted values, letter by
/// letter.
async fn search_redacted(
    inspect: &Inspect,
    search: &Search,
    error: &str,
    redaction: &Redaction,
) -> Answer<SearchPage> {
    let error = error.to_lowercase();
    let mut rows = Search {
        limit: 200,
        ..search.clone()
    };
    let (mut matched, mut compared) = (Vec::new(), 0);
    loop {
        let mut page = inspect.search(rows.clone()).await?;
        for found in std::mem::take(&mut page.instances) {
            let text = found.last_error.as_deref().unwrap_or_default();
            compared += 1;
            if !redaction.text(text).to_lowercase().contains(&error) {
                continue;
            }
            let id = found.id;
            matched.push(found);
            if matched.len() == search.limit {
                page.next = Some(id);
                page.instances = matched;
                return Ok(page);
            }
        }
        rows.before = page.next;
        if page.next.is_none() || compared >= COMPARED_MAX {
            page.instances = matched;
            return Ok(page);
        }
    }
}

/// The body of an HTTP request that enqueues an instance.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct New {
    machine: String,
    step: String,
    version: Option<u16>,
    state: Option<Box<RawValue>>,
    data: Option<Box<RawValue>>,
    queue: Option<String>,
    priority: Option<i16>,
    tenant: Option<String>,
    key: Option<String>,
    /// How long no other instance may have the key of the new instance: `live` (until the instance
    /// settles), `ever` (as long as the row of the instance exists) or `none` (the key is not
    /// unique).
    scope: Option<String>,
    due_at: Option<String>,
    delay_seconds: Option<f64>,
    /// The lane that the new instance enters.
    lane: Option<String>,
    /// Whether the new instance blocks its lane if the instance fails permanently.
    #[serde(default)]
    lane_blocks: bool,
    partition: Option<String>,
    /// Whether to accept a machine or a step that no live worker knows.
    #[serde(default)]
    force: bool,
}

pub(crate) async fn enqueue(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    Body(new): Body<New>,
) -> Answer<(StatusCode, Json<Value>)> {
    let on = format!("machine {}", new.machine);
    if !new.force {
        known::check(&shared.inspect(), &new.machine, &new.step).await?;
    }
    let went = shared.client.operate().enqueue(new.read()?).await;
    let outcome = went
        .as_ref()
        .map(|enqueued| format!("instance {}", enqueued.id))
        .map_err(with_causes);
    shared.audit.note(&by, "enqueue", on, outcome);
    let enqueued = went?;
    let status = if enqueued.is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((
        status,
        Json(json!({"id": enqueued.id.to_string(), "is_new": enqueued.is_new})),
    ))
}

impl New {
    fn read(self) -> Answer<UntypedInstance> {
        let state = self
            .state
            .map_or_else(|| "{}".to_owned(), |state| state.get().to_owned());
        let mut instance = UntypedInstance::new(self.machine, self.step, state);
        instance.version = self.version.unwrap_or(1);
        instance.data = self
            .data
            .map(|data| data.get().to_owned())
            .filter(|data| data != "null");
        instance.priority = self.priority.unwrap_or_default();
        instance.tenant = self.tenant.unwrap_or_default();
        instance.key = self.key.filter(|key| !key.is_empty());
        instance.lane = self.lane.filter(|lane| !lane.is_empty());
        instance.lane_blocks = self.lane_blocks;
        instance.partition = self.partition.filter(|key| !key.is_empty());
        if let Some(queue) = self.queue.filter(|queue| !queue.is_empty()) {
            instance.queue = queue;
        }
        instance.scope = match self.scope.as_deref() {
            None | Some("live") => KeyScope::Live,
            Some("ever") => KeyScope::Ever,
            Some("none") => KeyScope::None,
            Some(name) => {
                return Err(Problem::invalid(format!(
                    "unknown scope {name:?}: use live, ever or none"
                )));
            }
        };
        if let Some(at) = self.due_at {
            let at = at.parse().map_err(|_| {
                Problem::invalid(format!(
                    "{at:?} is not a timestamp such as 2030-01-31T12:00:00Z"
                ))
            })?;
            instance.due_at = Some(at);
        }
        if let Some(seconds) = self.delay_seconds {
            instance.delay = Duration::try_from_secs_f64(seconds).map_err(|_| {
                Problem::invalid(format!(
                    "delay_seconds must be a duration of 0 or more, not {seconds}"
                ))
            })?;
        }
        Ok(instance)
    }
}
