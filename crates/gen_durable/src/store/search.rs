//! Bounded search for instances by an index: for every page, the search reads a limited number of
//! rows, and the page contains the id down to which the search has read.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{named, parsed},
    sql,
};
use crate::{
    id::Status,
    model::{
        instance::{Search, SearchHit, SearchOrder, SearchPage},
        page_size,
    },
};

sql!(
    SEARCH,
    "search.sql",
    [
        TEXT,
        INT8,
        INT8,
        INT4,
        TEXT,
        INT4,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TIMESTAMPTZ,
        TIMESTAMPTZ,
        TEXT,
        TEXT,
        BOOL
    ]
);
sql!(
    SEARCH_EXECUTING,
    "search_executing.sql",
    [
        INT8,
        INT8,
        INT4,
        INT4,
        TEXT,
        INT4,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TIMESTAMPTZ,
        TIMESTAMPTZ,
        BOOL
    ]
);
sql!(
    SEARCH_FLOOR,
    "search_floor.sql",
    [
        TEXT, INT8, INT8, INT4, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, BOOL
    ]
);
sql!(
    SEARCH_PERIOD,
    "search_period.sql",
    [TIMESTAMPTZ, TIMESTAMPTZ]
);
sql!(HOLDER, "holder.sql", [TEXT, TEXT]);

/// The largest number of rows of `instances` that the search reads for one page.
const ROWS_READ_MAX: i32 = 20_000;
/// The largest number of keys with a prefix that the search sorts. A search by the prefix of more
/// keys reads the instances by their ids.
const PREFIX_KEYS_MAX: i32 = 5_000;
/// The longest statement that inserts instances: an instance is inserted at most this long after
/// its `inserted_at`.
const STATEMENT_MAX: Duration = Duration::from_secs(600);
/// The largest number of instances on a page of a search.
const PAGE_MAX: usize = 200;

/// Returns the id of the instance that holds this key of this tenant.
pub(crate) async fn holder(
    connection: &Connection,
    tenant: &str,
    key: &str,
) -> Result<Option<i64>, Fault> {
    let rows = connection.query(&HOLDER, &[&tenant, &key]).await?;
    rows.first().map(|row| named(row, "id")).transpose()
}

/// The index by which a search reads instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchIndex {
    Id,
    Status,
    Executing,
    Key,
    Prefix,
    Tenant,
    FailedStep,
    ErrorGroup,
}

impl SearchIndex {
    /// Chooses the index of a search: the one that most probably has the fewest entries.
    fn of(search: &Search) -> SearchIndex {
        use Status::*;
        if search.key.is_some() {
            return SearchIndex::Key;
        }
        if search.key_prefix.is_some() {
            return SearchIndex::Prefix;
        }
        if search.error_group.is_some() {
            return SearchIndex::ErrorGroup;
        }
        match search.status {
            Some(Failed | Stuck) if search.machine.is_some() && search.step.is_some() => {
                SearchIndex::FailedStep
            }
            Some(Failed | Stuck | Cancelled | AwaitingSignal | AwaitingChildren) => {
                SearchIndex::Status
            }
            Some(Executing) => SearchIndex::Executing,
            // Instances of the default tenant have no entry in the index of tenants.
            _ if search.tenant.as_ref().is_some_and(|name| !name.is_empty()) => SearchIndex::Tenant,
            _ => SearchIndex::Id,
        }
    }

    /// Returns the name of the index in `_search_range`.
    fn name(self) -> &'static str {
        match self {
            SearchIndex::Id | SearchIndex::Executing => "id",
            SearchIndex::Status => "status",
            SearchIndex::Key => "key",
            SearchIndex::Prefix => "prefix",
            SearchIndex::Tenant => "tenant",
            SearchIndex::FailedStep => "failed_step",
            SearchIndex::ErrorGroup => "error_group",
        }
    }

    /// Returns whether the search finds all instances of its range of the index, so that a page
    /// reads no more rows than it returns.
    fn finds_all(self, search: &Search) -> bool {
        let mut others = Search {
            order: SearchOrder::default(),
            before: None,
            after: None,
            limit: 0,
            ..search.clone()
        };
        match self {
            SearchIndex::Id | SearchIndex::FailedStep => {}
            SearchIndex::Status => others.status = None,
            SearchIndex::Key => others.key = None,
            SearchIndex::Tenant => others.tenant = None,
            SearchIndex::ErrorGroup => others.error_group = None,
            SearchIndex::Prefix | SearchIndex::Executing => return false,
        }
        others == Search::default()
    }
}

/// The ids that one page of a search reads.
#[derive(Debug, Clone, Copy)]
struct IdRange {
    from: i64,
    below: i64,
}

impl IdRange {
    /// Returns the ids of all instances that a search may find: beyond its cursor, and of its time
    /// of enqueueing.
    async fn of(connection: &Connection, search: &Search) -> Result<IdRange, Fault> {
        let below = search.before.unwrap_or(i64::MAX);
        let from = search.after.map_or(0, |after| after.saturating_add(1));
        if search.since.is_none() && search.until.is_none() {
            return Ok(IdRange { from, below });
        }
        let earliest = search.since.map(|since| {
            let earlier = since.checked_sub(STATEMENT_MAX);
            earlier.unwrap_or(Timestamp::UNIX_EPOCH)
        });
        let latest = search.until.map(|until| {
            let later = until.checked_add(STATEMENT_MAX);
            later.unwrap_or(until)
        });
        let rows = connection
            .query(&SEARCH_PERIOD, &[&earliest, &latest])
            .await?;
        let Some(row) = rows.first() else {
            return Err(Fault::unexpected("no row of a statement without a table"));
        };
        let (since, until): (i64, i64) = (named(row, "lowest")?, named(row, "below")?);
        Ok(IdRange {
            from: from.max(since),
            below: below.min(until),
        })
    }
}

/// How far one page of a search reads.
#[derive(Debug)]
struct Floor {
    reached: Option<i64>,
    reached_at: Option<Timestamp>,
    rows_read: i64,
}

/// Reads how far one page of a search comes that reads at most `most` entries of an index.
async fn floor(
    connection: &Connection,
    search: &Search,
    index: SearchIndex,
    ids: IdRange,
    most: i32,
) -> Result<Floor, Fault> {
    let status = search.status.map(Status::name);
    let prefix = search.key_prefix.as_deref().unwrap_or_default();
    let after = after_prefix(prefix);
    let params: &[Param<'_>] = &[
        &index.name(),
        &ids.below,
        &ids.from,
        &most,
        &search.machine,
        &status,
        &search.step,
        &search.tenant,
        &search.key,
        &search.key_prefix,
        &after,
        &search.error_group,
        &is_oldest_first(search),
    ];
    let rows = connection.query(&SEARCH_FLOOR, params).await?;
    let Some(row) = rows.first() else {
        return Err(Fault::unexpected("an aggregate returned no row"));
    };
    Ok(Floor {
        reached: named(row, "reached")?,
        reached_at: named(row, "reached_at")?,
        rows_read: named(row, "rows_read")?,
    })
}

fn is_oldest_first(search: &Search) -> bool {
    search.order == SearchOrder::OldestFirst
}

/// Returns the first text that follows all texts with this prefix, in the order of their bytes. The
/// text is longer than every key if no such text exists.
pub(super) fn after_prefix(prefix: &str) -> String {
    let mut rest = prefix.to_owned();
    while let Some(last) = rest.pop() {
        // `char::from_u32` rejects the surrogates, which follow U+D7FF.
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            rest.push(next);
            return rest;
        }
    }
    char::MAX.to_string()
}

/// Returns a page of the instances that a search finds.
pub(crate) async fn page(connection: &Connection, search: &Search) -> Result<SearchPage, Fault> {
    let rows_max = page_size(search.limit, PAGE_MAX);
    let mut ids = IdRange::of(connection, search).await?;
    let mut index = SearchIndex::of(search);
    if index == SearchIndex::Prefix {
        let found = floor(connection, search, index, ids, PREFIX_KEYS_MAX).await?;
        if found.rows_read >= i64::from(PREFIX_KEYS_MAX) {
            index = SearchIndex::Id;
        }
    }
    // The floor is read before the rows: a row that is deleted between the two statements makes the
    // page shorter, and no row is left out. A page of executing instances or of the keys with a
    // prefix reads all of them.
    let mut end = None;
    if !matches!(index, SearchIndex::Prefix | SearchIndex::Executing) {
        let most = match index.finds_all(search) {
            true => rows_max,
            false => ROWS_READ_MAX,
        };
        let floor = floor(connection, search, index, ids, most).await?;
        if let Some(reached) = floor.reached.filter(|_| floor.rows_read >= i64::from(most)) {
            match search.order {
                SearchOrder::NewestFirst => ids.from = reached,
                SearchOrder::OldestFirst => ids.below = reached.saturating_add(1),
            }
            end = Some((reached, floor.reached_at));
        }
    }
    let instances = rows(connection, search, index, ids, rows_max).await?;
    if i32::try_from(instances.len()).is_ok_and(|count| count == rows_max) {
        end = instances
            .last()
            .map(|last| (last.id, Some(last.inserted_at)));
    }
    Ok(SearchPage {
        instances,
        next: end.map(|(id, _)| id),
        next_at: end.and_then(|(_, at)| at),
    })
}

/// Reads the instances with these ids that meet the conditions of a search.
async fn rows(
    connection: &Connection,
    search: &Search,
    index: SearchIndex,
    ids: IdRange,
    rows_max: i32,
) -> Result<Vec<SearchHit>, Fault> {
    let status = search.status.map(Status::name);
    let after = after_prefix(search.key_prefix.as_deref().unwrap_or_default());
    let executing: &[Param<'_>] = &[
        &ids.below,
        &ids.from,
        &ROWS_READ_MAX,
        &rows_max,
        &search.machine,
        &search.version,
        &search.step,
        &search.queue,
        &search.tenant,
        &search.lane,
        &search.partition,
        &search.error,
        &search.since,
        &search.until,
        &is_oldest_first(search),
    ];
    let others: &[Param<'_>] = &[
        &index.name(),
        &ids.below,
        &ids.from,
        &rows_max,
        &search.machine,
        &search.version,
        &status,
        &search.step,
        &search.queue,
        &search.tenant,
        &search.key,
        &search.key_prefix,
        &search.lane,
        &search.partition,
        &search.error,
        &search.since,
        &search.until,
        &after,
        &search.error_group,
        &is_oldest_first(search),
    ];
    let rows = match index {
        SearchIndex::Executing => connection.query(&SEARCH_EXECUTING, executing).await?,
        _ => connection.query(&SEARCH, others).await?,
    };
    rows.iter().map(read).collect()
}

/// Reads the columns that a search returns.
pub(super) fn read(row: &Row) -> Result<SearchHit, Fault> {
    Ok(SearchHit {
        id: named(row, "id")?,
        tenant: named(row, "tenant")?,
        machine: named(row, "machine")?,
        version: named(row, "machine_version")?,
        step: named(row, "step")?,
        status: parsed(row, "status")?,
        queue: named(row, "queue")?,
        priority: named(row, "priority")?,
        attempt: named(row, "attempt")?,
        eligible_at: named(row, "eligible_at")?,
        inserted_at: named(row, "inserted_at")?,
        updated_at: named(row, "updated_at")?,
        settled_at: named(row, "settled_at")?,
        key: named(row, "key")?,
        parent_id: named(row, "parent_id")?,
        last_error: named(row, "last_error")?,
        awaits: named(row, "awaits")?,
    })
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    #[test]
    fn the_texts_with_a_prefix_are_below_the_text_after_the_prefix() {
        assert_eq!(after_prefix("order-"), "order.");
        assert_eq!(after_prefix("\u{d7ff}"), "\u{e000}");
        assert_eq!(after_prefix("a\u{10ffff}"), "b");
        assert_eq!(after_prefix(""), "\u{10ffff}");
    }
}
