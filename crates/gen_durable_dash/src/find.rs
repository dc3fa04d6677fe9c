//! Finding instances: the conditions of `GET /api/v1/instances` and of `durable ls`, and the search
//! that both run.

use std::fmt;

use gen_durable::{
    Error,
    inspect::{Inspect, Search, SearchHit, SearchOrder, SearchPage, Status},
    operate::{BulkConditions, BulkKind},
    schedule::Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::redact::Redaction;

/// The maximum length in bytes of a condition. Longer values are rejected.
const WORD_BYTES_MAX: usize = 500;
/// The maximum number of instances that one page compares by their redacted error text.
const COMPARED_MAX: usize = 5_000;

/// The conditions of a search for instances, as text: the query of `GET /api/v1/instances`, and the
/// options of `durable ls` and `durable export`. An empty value means "not given", because browsers
/// send empty form fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstancesQuery {
    /// Selects instances of this machine.
    pub machine: Option<String>,
    /// Selects instances of this version of their machine.
    pub version: Option<i32>,
    /// Selects instances at this step.
    pub step: Option<String>,
    /// Selects instances in this status.
    pub status: Option<String>,
    /// Selects instances in this queue.
    pub queue: Option<String>,
    /// Selects instances of this tenant.
    pub tenant: Option<String>,
    /// Selects instances with this key.
    pub key: Option<String>,
    /// Selects instances with a key that begins with this text.
    pub key_prefix: Option<String>,
    /// Selects instances with this lane key, including instances that have left the lane.
    pub lane: Option<String>,
    /// Selects instances under this partition key.
    pub partition: Option<String>,
    /// Selects instances with this text in their error.
    pub error: Option<String>,
    /// Selects instances of this group of errors: the `error_group` of `/api/v1/failures`.
    pub error_group: Option<String>,
    /// Selects instances that were enqueued at most this many seconds ago.
    pub newer_than: Option<u64>,
    /// Selects instances that were enqueued at least this many seconds ago.
    pub older_than: Option<u64>,
    /// Selects instances that were enqueued at this time or later.
    pub since: Option<String>,
    /// Selects instances that were enqueued before this time.
    pub until: Option<String>,
    /// The order of the instances: `newest` (default) or `oldest` first.
    pub sort: Option<String>,
    /// The cursor of a page of instances: the `next` of the previous page.
    pub before: Option<String>,
    /// The cursor of a page of instances with `sort=oldest`.
    pub after: Option<String>,
    /// The number of instances on a page, 1 to 200 (default 50).
    pub limit: Option<u16>,
}

/// A condition of a search that is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidQuery(String);

impl fmt::Display for InvalidQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for InvalidQuery {}

/// An error of [`find`].
#[derive(Debug)]
#[non_exhaustive]
pub enum FindError {
    /// A condition is not valid.
    Invalid(InvalidQuery),
    /// The search failed.
    Failed(Error),
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::Invalid(error) => error.fmt(f),
            FindError::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FindError::Invalid(_) => None,
            FindError::Failed(error) => std::error::Error::source(error),
        }
    }
}

impl From<InvalidQuery> for FindError {
    fn from(error: InvalidQuery) -> FindError {
        FindError::Invalid(error)
    }
}
impl From<Error> for FindError {
    fn from(error: Error) -> FindError {
        FindError::Failed(error)
    }
}

fn word(name: &str, word: Option<&String>) -> Result<Option<String>, InvalidQuery> {
    let Some(word) = word.filter(|word| !word.is_empty()) else {
        return Ok(None);
    };
    match word.len() > WORD_BYTES_MAX || word.contains('\0') {
        true => Err(InvalidQuery(format!(
            "{name} is too long or contains a NUL byte"
        ))),
        false => Ok(Some(word.clone())),
    }
}

fn cursor(name: &str, text: Option<&String>) -> Result<Option<i64>, InvalidQuery> {
    let text = word(name, text)?;
    let wrong = |text: &str| InvalidQuery(format!("{text:?} is not a valid `{name}` cursor"));
    text.map(|id| id.parse().map_err(|_| wrong(&id)))
        .transpose()
}

fn time(name: &str, text: Option<&String>) -> Result<Option<Timestamp>, InvalidQuery> {
    let text = word(name, text)?;
    let wrong =
        |text: &str| format!("{name}: {text:?} is not a timestamp such as 2030-01-31T12:00:00Z");
    text.map(|text| text.parse().map_err(|_| InvalidQuery(wrong(&text))))
        .transpose()
}

fn ago(seconds: Option<u64>) -> Option<Timestamp> {
    let now = Timestamp::now().as_second();
    seconds.map(|seconds| {
        Timestamp::from_second(now.saturating_sub_unsigned(seconds))
            .unwrap_or(Timestamp::UNIX_EPOCH)
    })
}

impl InstancesQuery {
    /// Converts the conditions into a search.
    ///
    /// # Errors
    ///
    /// Returns an error if a condition is not valid.
    pub fn search(&self) -> Result<Search, InvalidQuery> {
        let status = word("status", self.status.as_ref())?;
        let status = status
            .map(|name| name.parse::<Status>())
            .transpose()
            .map_err(|error| InvalidQuery(error.to_string()))?;
        let order = self.order()?;
        let before = cursor("before", self.before.as_ref())?;
        let after = cursor("after", self.after.as_ref())?;
        let other = match order {
            SearchOrder::OldestFirst => before.map(|_| "before continues sort=newest: use after"),
            _ => after.map(|_| "after continues sort=oldest: use before, or sort=oldest"),
        };
        if let Some(other) = other {
            return Err(InvalidQuery(other.to_owned()));
        }
        let limit = usize::from(self.limit.unwrap_or(50));
        if !(1..=200).contains(&limit) {
            return Err(InvalidQuery("limit must be 1 to 200".to_owned()));
        }
        let since = time("since", self.since.as_ref())?;
        let until = time("until", self.until.as_ref())?;
        Ok(Search {
            machine: word("machine", self.machine.as_ref())?,
            version: self.version,
            step: word("step", self.step.as_ref())?,
            status,
            queue: word("queue", self.queue.as_ref())?,
            tenant: word("tenant", self.tenant.as_ref())?,
            key: word("key", self.key.as_ref())?,
            key_prefix: word("key_prefix", self.key_prefix.as_ref())?,
            lane: word("lane", self.lane.as_ref())?,
            partition: word("partition", self.partition.as_ref())?,
            error: word("error", self.error.as_ref())?,
            error_group: word("error_group", self.error_group.as_ref())?,
            since: since.max(ago(self.newer_than)),
            until: match (until, ago(self.older_than)) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            },
            order,
            before,
            after,
            limit,
        })
    }

    /// Returns the order of the search. Only the orders of an index are valid.
    fn order(&self) -> Result<SearchOrder, InvalidQuery> {
        let Some(name) = word("sort", self.sort.as_ref())? else {
            return Ok(SearchOrder::default());
        };
        name.parse().map_err(|_| {
            InvalidQuery(format!(
                "sort is newest or oldest: no index has the order {name:?}"
            ))
        })
    }

    /// Converts the conditions into those of a bulk action.
    ///
    /// # Errors
    ///
    /// Returns an error if a condition is not valid, if the status is missing, or if the action
    /// cannot change instances in that status.
    pub fn bulk_conditions(&self, kind: BulkKind) -> Result<BulkConditions, InvalidQuery> {
        let search = self.search()?;
        let is_newest = search.order == SearchOrder::default();
        if !is_newest || search.before.is_some() || search.after.is_some() {
            return Err(InvalidQuery(
                "a bulk action has no order and no cursor".to_owned(),
            ));
        }
        let Some(status) = search.status.filter(|status| kind.applies_to(*status)) else {
            let allowed = match kind {
                BulkKind::Retry => "can be retried: failed, stuck or cancelled",
                BulkKind::Cancel => {
                    "can be cancelled: runnable, executing, awaiting_signal, awaiting_children, awaiting_limit, queued or stuck"
                }
                _ => "can be discarded: failed or stuck",
            };
            return Err(InvalidQuery(format!(
                "the filter must name a status that {allowed}"
            )));
        };
        Ok(BulkConditions {
            machine: search.machine,
            version: search.version,
            step: search.step,
            queue: search.queue,
            tenant: search.tenant,
            key: search.key,
            key_prefix: search.key_prefix,
            lane: search.lane,
            partition: search.partition,
            error: search.error,
            error_group: search.error_group,
            since: search.since,
            until: search.until,
            ..BulkConditions::new(status)
        })
    }

    /// Returns whether a condition names a key of instances.
    pub(crate) fn names_a_key(&self) -> bool {
        [&self.key, &self.key_prefix, &self.lane, &self.partition]
            .into_iter()
            .flatten()
            .any(|key| !key.is_empty())
    }

    /// Describes the conditions for the audit log, all but the order, the cursor and the limit.
    pub fn described(&self) -> Vec<(&'static str, String)> {
        let seconds = |seconds: Option<u64>| seconds.map(|seconds| format!("{seconds} s"));
        let parts = [
            ("status", self.status.clone()),
            ("machine", self.machine.clone()),
            ("version", self.version.map(|version| version.to_string())),
            ("step", self.step.clone()),
            ("queue", self.queue.clone()),
            ("tenant", self.tenant.clone()),
            ("key", self.key.clone()),
            ("key begins with", self.key_prefix.clone()),
            ("lane", self.lane.clone()),
            ("partition", self.partition.clone()),
            ("error contains", self.error.clone()),
            ("error group", self.error_group.clone()),
            ("newer than", seconds(self.newer_than)),
            ("older than", seconds(self.older_than)),
            ("since", self.since.clone()),
            ("until", self.until.clone()),
        ];
        let given = parts.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
            .collect()
    }
}

/// Searches for instances. The conditions `error` and `error_group` compare the error text as
/// stored.
///
/// # Errors
///
/// Returns an error if a condition is not valid, or if the database cannot be reached or refuses
/// the query.
pub async fn find(inspect: &Inspect, query: &InstancesQuery) -> Result<SearchPage, FindError> {
    Ok(inspect.search(query.search()?).await?)
}

/// Searches for instances on behalf of a reader: compares only redacted error texts. Otherwise the
/// number of matches would reveal redacted values, one character at a time. For the same reason, a
/// group of errors may not be named by a text that contains a value to be redacted.
pub(crate) async fn find_redacted(
    inspect: &Inspect,
    query: &InstancesQuery,
    redaction: &Redaction,
) -> Result<SearchPage, FindError> {
    let mut search = query.search()?;
    if let Some(group) = &search.error_group
        && redaction.text(group) != *group
    {
        let why = "error_group contains a value that is redacted: name the group by the id of one of its instances, as in like:42";
        return Err(InvalidQuery(why.to_owned()).into());
    }
    let Some(error) = search.error.take() else {
        return Ok(inspect.search(search).await?);
    };
    let error = error.to_lowercase();
    compared(inspect, &search, |found| {
        let text = redaction.text(found.last_error.as_deref().unwrap_or_default());
        text.to_lowercase().contains(&error)
    })
    .await
}

/// Searches for instances and keeps those that `matches` accepts. Compares a bounded number of
/// them.
async fn compared(
    inspect: &Inspect,
    search: &Search,
    matches: impl Fn(&SearchHit) -> bool,
) -> Result<SearchPage, FindError> {
    let mut rows = Search {
        limit: 200,
        ..search.clone()
    };
    let (mut matched, mut compared) = (Vec::new(), 0);
    loop {
        let mut page = inspect.search(rows.clone()).await?;
        for found in std::mem::take(&mut page.instances) {
            compared += 1;
            if !matches(&found) {
                continue;
            }
            let (id, at) = (found.id, found.inserted_at);
            matched.push(found);
            if matched.len() == search.limit {
                (page.next, page.next_at) = (Some(id), Some(at));
                page.instances = matched;
                return Ok(page);
            }
        }
        match search.order {
            SearchOrder::OldestFirst => rows.after = page.next,
            _ => rows.before = page.next,
        }
        if page.next.is_none() || compared >= COMPARED_MAX {
            page.instances = matched;
            return Ok(page);
        }
    }
}
