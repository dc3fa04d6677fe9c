//! Bounded search for instances: for every page, the search reads a limited number of rows, and the
//! page contains the id down to which the search has read.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    inspect::{self, Inspect},
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(
    SEARCH,
    "search.sql",
    [
        INT8,
        INT4,
        INT4,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TIMESTAMPTZ,
        TIMESTAMPTZ
    ]
);
sql!(
    SEARCH_ASIDE,
    "search_aside.sql",
    [
        INT8,
        INT4,
        INT4,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TIMESTAMPTZ,
        TIMESTAMPTZ
    ]
);
sql!(SEARCH_FLOOR, "search_floor.sql", [INT8, INT4, TEXT]);
sql!(HOLDER, "holder.sql", [TEXT, TEXT]);

/// The largest number of rows of `instances` that the search reads for one page.
const ROWS_READ_MAX: i32 = 20_000;
/// The largest number of instances on a page of a search.
const PAGE_MAX: usize = 200;

/// The conditions of a search for instances. A search finds an instance if the instance meets all
/// conditions that the caller set.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Search {
    pub machine: Option<String>,
    pub status: Option<Status>,
    pub step: Option<String>,
    pub queue: Option<String>,
    pub tenant: Option<String>,
    /// The complete key of the instance to find.
    pub key: Option<String>,
    /// A part of the text of the instance's last error, in upper or lower case.
    pub error: Option<String>,
    /// Selects only instances that callers enqueued at this time or later.
    pub since: Option<Timestamp>,
    /// Selects only instances that callers enqueued before this time.
    pub until: Option<Timestamp>,
    /// Only instances with an id below this id, which is the `next` of the previous page.
    pub before: Option<i64>,
    /// The largest number of instances on the page, up to 200.
    pub limit: usize,
}

/// An instance that a search found, without its state and data.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct SearchHit {
    pub id: i64,
    pub tenant: String,
    pub machine: String,
    pub machine_version: i32,
    pub step: String,
    pub status: Status,
    pub queue: String,
    pub priority: i16,
    pub attempt: i32,
    pub eligible_at: Timestamp,
    pub inserted_at: Timestamp,
    pub updated_at: Timestamp,
    pub settled_at: Option<Timestamp>,
    pub key: Option<String>,
    pub parent_id: Option<i64>,
    /// The beginning of the text of the instance's last error.
    pub last_error: Option<String>,
    pub awaits: Option<Vec<String>>,
}

/// A page of instances that a search found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Page {
    /// The instances that the search found, the newest first.
    pub found: Vec<SearchHit>,
    /// The `before` of the next page: the search has read every instance with a larger id. `None`:
    /// this was the last page.
    pub next: Option<i64>,
}

impl Inspect {
    /// Searches instances, the newest first. One call reads a bounded number of rows, so a page may
    /// have fewer instances than the limit although another page exists.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn search(&self, search: Search) -> Result<Page, Error> {
        self.read("search instances", move |connection| async move {
            page(&connection, &search).await
        })
        .await
    }

    /// Returns the id of the instance that holds this key of this tenant.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn holder(&self, tenant: &str, key: &str) -> Result<Option<i64>, Error> {
        let (tenant, key) = (tenant.to_owned(), key.to_owned());
        self.read("find the holder of a key", move |connection| async move {
            connection
                .query(&HOLDER, &[&tenant, &key])
                .await?
                .first()
                .map(|row| column(row, 0))
                .transpose()
        })
        .await
    }
}

/// Returns whether a search can read the instances of this status by an index.
fn has_an_index(status: Status) -> bool {
    use Status::*;
    matches!(
        status,
        Failed | Stuck | Cancelled | AwaitingSignal | AwaitingChildren | Executing
    )
}

async fn page(connection: &Connection, search: &Search) -> Result<Page, Fault> {
    let limit = search.limit.clamp(1, PAGE_MAX);
    let rows_max = i32::try_from(limit).unwrap_or(200);
    let status = search.status.map(Status::name);
    let params: &[Param<'_>] = &[
        &search.before,
        &ROWS_READ_MAX,
        &rows_max,
        &search.machine,
        &status,
        &search.step,
        &search.queue,
        &search.tenant,
        &search.key,
        &search.error,
        &search.since,
        &search.until,
    ];
    let aside = search.status.filter(|status| has_an_index(*status));
    let statement = if aside.is_some() {
        &SEARCH_ASIDE
    } else {
        &SEARCH
    };
    let found = connection
        .query(statement, params)
        .await?
        .iter()
        .map(read)
        .collect::<Result<Vec<_>, _>>()?;
    if found.len() == limit {
        let next = found.last().map(|last| last.id);
        return Ok(Page { found, next });
    }
    // The concurrency of the workers limits the number of executing instances, so the first page of
    // the search has read all executing instances.
    if aside == Some(Status::Executing) {
        return Ok(Page { found, next: None });
    }
    let floor = connection
        .query(
            &SEARCH_FLOOR,
            &[&search.before, &ROWS_READ_MAX, &aside.map(Status::name)],
        )
        .await?;
    let Some(floor) = floor.first() else {
        return Ok(Page { found, next: None });
    };
    let (lowest, looked_at): (Option<i64>, i64) = (column(floor, 0)?, column(floor, 1)?);
    Ok(Page {
        found,
        next: lowest.filter(|_| looked_at >= i64::from(ROWS_READ_MAX)),
    })
}

fn read(row: &Row) -> Result<SearchHit, Fault> {
    Ok(SearchHit {
        id: column(row, 0)?,
        tenant: column(row, 1)?,
        machine: column(row, 2)?,
        machine_version: column(row, 3)?,
        step: column(row, 4)?,
        status: inspect::status(row, 5)?,
        queue: column(row, 6)?,
        priority: column(row, 7)?,
        attempt: column(row, 8)?,
        eligible_at: column(row, 9)?,
        inserted_at: column(row, 10)?,
        updated_at: column(row, 11)?,
        settled_at: column(row, 12)?,
        key: column(row, 13)?,
        parent_id: column(row, 14)?,
        last_error: column(row, 15)?,
        awaits: column(row, 16)?,
    })
}
