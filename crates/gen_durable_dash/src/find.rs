//! Finding instances: the conditions of `GET /api/v1/instances` and of `durable ls`, and the search
//! that both run.

use std::fmt;

use gen_durable::{
    Error,
    inspect::{Inspect, Search, SearchHit, SearchPage, Status},
    schedule::Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::{api::json::redacted_fingerprint, redact::Redaction};

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
    /// Selects instances of this group of errors: the `fingerprint` of `/api/v1/failures`.
    pub error_group: Option<String>,
    /// Selects instances that were enqueued at most this many seconds ago.
    pub newer_than: Option<u64>,
    /// Selects instances that were enqueued at least this many seconds ago.
    pub older_than: Option<u64>,
    /// Selects instances that were enqueued at this time or later.
    pub since: Option<String>,
    /// Selects instances that were enqueued before this time.
    pub until: Option<String>,
    /// The cursor of a page of instances: the `next` of the previous page.
    pub before: Option<String>,
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
    /// Converts the conditions into a search. Rejects `error_group`, which a search cannot compare:
    /// use [`find`].
    ///
    /// # Errors
    ///
    /// Returns an error if a condition is not valid.
    pub fn search(&self) -> Result<Search, InvalidQuery> {
        match word("error_group", self.error_group.as_ref())? {
            Some(_) => Err(InvalidQuery("error_group is not supported here".to_owned())),
            None => self.without_group(),
        }
    }

    /// Converts all conditions but `error_group` into a search.
    fn without_group(&self) -> Result<Search, InvalidQuery> {
        let status = word("status", self.status.as_ref())?;
        let status = status
            .map(|name| name.parse::<Status>())
            .transpose()
            .map_err(|error| InvalidQuery(error.to_string()))?;
        let before = word("before", self.before.as_ref())?;
        let before = before
            .map(|id| {
                let wrong = || InvalidQuery(format!("{id:?} is not a valid `before` cursor"));
                id.parse().map_err(|_| wrong())
            })
            .transpose()?;
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
            since: since.max(ago(self.newer_than)),
            until: match (until, ago(self.older_than)) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            },
            before,
            limit,
        })
    }

    /// Returns whether a condition names a key of instances.
    pub(crate) fn names_a_key(&self) -> bool {
        [&self.key, &self.key_prefix, &self.lane, &self.partition]
            .into_iter()
            .flatten()
            .any(|key| !key.is_empty())
    }

    /// Describes the conditions for the audit log, all but the cursor and the limit.
    pub(crate) fn described(&self) -> Vec<(&'static str, String)> {
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

/// Searches for instances. The conditions `error` and `error_group` compare the error text: `error`
/// as stored, and `error_group` after its redaction, as `/api/v1/failures` shows it.
///
/// # Errors
///
/// Returns an error if a condition is not valid, or if the database cannot be reached or refuses
/// the query.
pub async fn find(
    inspect: &Inspect,
    query: &InstancesQuery,
    redaction: &Redaction,
) -> Result<SearchPage, FindError> {
    let search = query.without_group()?;
    let Some(group) = word("error_group", query.error_group.as_ref())? else {
        return Ok(inspect.search(search).await?);
    };
    let is_in_group =
        |found: &SearchHit| redacted_fingerprint(found.last_error.as_deref(), redaction) == group;
    compared(inspect, &search, is_in_group).await
}

/// Searches for instances on behalf of a reader: compares only redacted error texts. Otherwise the
/// number of matches would reveal redacted values, one character at a time.
pub(crate) async fn find_redacted(
    inspect: &Inspect,
    query: &InstancesQuery,
    redaction: &Redaction,
) -> Result<SearchPage, FindError> {
    let mut search = query.without_group()?;
    let Some(error) = search.error.take() else {
        return find(inspect, query, redaction).await;
    };
    let error = error.to_lowercase();
    let group = word("error_group", query.error_group.as_ref())?;
    compared(inspect, &search, |found| {
        let text = redaction.text(found.last_error.as_deref().unwrap_or_default());
        text.to_lowercase().contains(&error)
            && group.as_ref().is_none_or(|group| {
                redacted_fingerprint(found.last_error.as_deref(), redaction) == *group
            })
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
        rows.before = page.next;
        if page.next.is_none() || compared >= COMPARED_MAX {
            page.instances = matched;
            return Ok(page);
        }
    }
}
