//! Bounded search for instances: for every page, the search reads a limited number of rows, and the
//! page contains the id down to which the search has read.

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
        instance::{Search, SearchHit, SearchPage},
        page_size,
    },
};

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
        TIMESTAMPTZ,
        INT4
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
        TIMESTAMPTZ,
        INT4
    ]
);
sql!(SEARCH_FLOOR, "search_floor.sql", [INT8, INT4, TEXT]);
sql!(HOLDER, "holder.sql", [TEXT, TEXT]);

/// The largest number of rows of `instances` that the search reads for one page.
const ROWS_READ_MAX: i32 = 20_000;
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

/// Returns whether a search can read the instances of this status by an index.
fn has_an_index(status: Status) -> bool {
    use Status::*;
    matches!(
        status,
        Failed | Stuck | Cancelled | AwaitingSignal | AwaitingChildren | Executing
    )
}

/// Returns a page of the instances that a search finds, the newest first.
pub(crate) async fn page(connection: &Connection, search: &Search) -> Result<SearchPage, Fault> {
    let rows_max = page_size(search.limit, PAGE_MAX);
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
        &search.version,
    ];
    let aside = search.status.filter(|status| has_an_index(*status));
    let statement = if aside.is_some() {
        &SEARCH_ASIDE
    } else {
        &SEARCH
    };
    let instances = connection
        .query(statement, params)
        .await?
        .iter()
        .map(read)
        .collect::<Result<Vec<_>, _>>()?;
    if i32::try_from(instances.len()).is_ok_and(|count| count == rows_max) {
        let next = instances.last().map(|last| last.id);
        return Ok(SearchPage { instances, next });
    }
    // The concurrency of the workers limits the number of executing instances, so the first page of
    // the search has read all executing instances.
    if aside == Some(Status::Executing) {
        return Ok(SearchPage {
            instances,
            next: None,
        });
    }
    let floor = connection
        .query(
            &SEARCH_FLOOR,
            &[&search.before, &ROWS_READ_MAX, &aside.map(Status::name)],
        )
        .await?;
    let Some(floor) = floor.first() else {
        return Ok(SearchPage {
            instances,
            next: None,
        });
    };
    let (lowest, rows_read): (Option<i64>, i64) =
        (named(floor, "lowest")?, named(floor, "rows_read")?);
    Ok(SearchPage {
        instances,
        next: lowest.filter(|_| rows_read >= i64::from(ROWS_READ_MAX)),
    })
}

fn read(row: &Row) -> Result<SearchHit, Fault> {
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
