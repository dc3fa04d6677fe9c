//! Searching: bounded. Every page looks at so many rows and no more, and says how far down it has looked.

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

/// So many rows are looked at for one page.
const LOOKED_AT_MAX: i32 = 20_000;
/// So many instances are on a page at most.
const PAGE_MAX: usize = 200;

/// Which instances to look for: all of what is given must hold.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Search {
    pub machine: Option<String>,
    pub status: Option<Status>,
    pub step: Option<String>,
    pub queue: Option<String>,
    pub tenant: Option<String>,
    /// The business key, whole.
    pub key: Option<String>,
    /// A part of the error's text, in any case.
    pub error: Option<String>,
    /// Enqueued at this time or later.
    pub since: Option<Timestamp>,
    /// Enqueued before this time.
    pub until: Option<Timestamp>,
    /// Only ids below this one: where the page before ended.
    pub before: Option<i64>,
    /// At most this many (200 at the most).
    pub limit: usize,
}

/// An instance in a list: without what it carries.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Found {
    pub id: i64,
    pub tenant: String,
    pub fsm: String,
    pub fsm_version: i32,
    pub step: String,
    pub status: Status,
    pub queue: String,
    pub priority: i16,
    pub attempt: i32,
    pub eligible_at: Timestamp,
    pub inserted_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub correlation_key: Option<String>,
    pub parent_id: Option<i64>,
    /// The beginning of it.
    pub last_error: Option<String>,
    pub awaits: Option<Vec<String>>,
}

/// A page of a search.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Page {
    /// The newest first.
    pub found: Vec<Found>,
    /// Where to go on: everything above this id was looked at. `None`: that was all.
    pub next: Option<i64>,
}

impl Inspect {
    /// Instances, the newest first. One call looks at a bounded number of rows, so a page may hold few and still have a
    /// next one.
    pub async fn search(&self, search: Search) -> Result<Page, Error> {
        self.read("search instances", move |connection| async move {
            page(&connection, &search).await
        })
        .await
    }

    /// Who holds this business key.
    pub async fn holder(&self, tenant: &str, key: &str) -> Result<Option<i64>, Error> {
        let (tenant, key) = (tenant.to_owned(), key.to_owned());
        self.read(
            "look for the holder of a key",
            move |connection| async move {
                connection
                    .query(&HOLDER, &[&tenant, &key])
                    .await?
                    .first()
                    .map(|row| column(row, 0))
                    .transpose()
            },
        )
        .await
    }
}

/// Whether an index leads to the instances of this status.
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
        &LOOKED_AT_MAX,
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
    // What is executing is as much as the workers have places for: all of it was looked at.
    if aside == Some(Status::Executing) {
        return Ok(Page { found, next: None });
    }
    let floor = connection
        .query(
            &SEARCH_FLOOR,
            &[&search.before, &LOOKED_AT_MAX, &aside.map(Status::name)],
        )
        .await?;
    let Some(floor) = floor.first() else {
        return Ok(Page { found, next: None });
    };
    let (lowest, looked_at): (Option<i64>, i64) = (column(floor, 0)?, column(floor, 1)?);
    Ok(Page {
        found,
        next: lowest.filter(|_| looked_at >= i64::from(LOOKED_AT_MAX)),
    })
}

fn read(row: &Row) -> Result<Found, Fault> {
    Ok(Found {
        id: column(row, 0)?,
        tenant: column(row, 1)?,
        fsm: column(row, 2)?,
        fsm_version: column(row, 3)?,
        step: column(row, 4)?,
        status: inspect::status(row, 5)?,
        queue: column(row, 6)?,
        priority: column(row, 7)?,
        attempt: column(row, 8)?,
        eligible_at: column(row, 9)?,
        inserted_at: column(row, 10)?,
        updated_at: column(row, 11)?,
        finished_at: column(row, 12)?,
        correlation_key: column(row, 13)?,
        parent_id: column(row, 14)?,
        last_error: column(row, 15)?,
        awaits: column(row, 16)?,
    })
}
