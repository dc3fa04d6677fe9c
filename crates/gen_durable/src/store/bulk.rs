//! Bulk actions of operators: requests, their execution in pages, and their progress.

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{named, parsed},
    search::after_prefix,
    sql,
};
use crate::model::bulk::{BulkAction, BulkConditions, BulkKind, NewBulkAction};

sql!(
    BEGIN,
    "bulk_begin.sql",
    [
        TEXT,
        TEXT,
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
        TEXT,
        TIMESTAMPTZ,
        TIMESTAMPTZ,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        TEXT,
        INT8,
        BOOL,
        INT8
    ]
);
sql!(TAKE, "bulk_take.sql", [FLOAT8, INT8]);
sql!(PAGE, "bulk_page.sql", [INT8, INT4, INT4]);
sql!(
    APPLY,
    "bulk_apply.sql",
    [INT8, TEXT, FLOAT8, INT8, INT8, INT4, BOOL, INT8_ARRAY, TEXT]
);
sql!(STOP, "bulk_stop.sql", [INT8]);
sql!(FAIL, "bulk_fail.sql", [INT8, TEXT, TEXT]);
sql!(LIST, "bulks.sql", [INT8, INT4]);

/// The number of bulk actions that the table keeps, apart from open ones.
const KEPT_MAX: i64 = 1_000;
/// How long a runner has a bulk action to itself after its last page. A page waits for the lock of
/// an instance for a shorter time.
const LEASE_SECONDS: f64 = 30.0;
/// The largest number of instances that one page reads.
const ROWS_READ_MAX: i32 = 5_000;

/// Inserts a bulk action. Returns its id.
pub(crate) async fn begin(
    connection: &Connection,
    new: &NewBulkAction,
) -> Result<Option<i64>, Fault> {
    let BulkConditions {
        status,
        machine,
        version,
        step,
        queue,
        tenant,
        key,
        key_prefix,
        lane,
        partition,
        error,
        error_group,
        since,
        until,
    } = &new.conditions;
    let key_prefix_end = key_prefix.as_deref().map(after_prefix);
    let expected = i64::try_from(new.expected).unwrap_or(i64::MAX);
    let params: &[Param<'_>] = &[
        &new.kind.name(),
        &status.name(),
        machine,
        version,
        step,
        queue,
        tenant,
        key,
        key_prefix,
        &key_prefix_end,
        lane,
        partition,
        error,
        error_group,
        since,
        until,
        &new.retry_step,
        &new.reason,
        &new.actor,
        &new.source,
        &new.channel,
        &expected,
        &new.expected_is_exact,
        &KEPT_MAX,
    ];
    let rows = connection.act_alone(&BEGIN, params).await?;
    rows.first().map(|row| named(row, "id")).transpose()
}

/// A bulk action that a runner executes: the runner's claim to it.
#[derive(Debug, Clone)]
pub(crate) struct BulkLease {
    pub(crate) id: i64,
    runner: String,
    pub(crate) kind: BulkKind,
}

/// Leases the oldest open bulk action that no live runner executes, or the one with the id `only`.
pub(crate) async fn take(
    connection: &Connection,
    only: Option<i64>,
) -> Result<Option<BulkLease>, Fault> {
    let params: &[Param<'_>] = &[&LEASE_SECONDS, &only];
    let rows = connection.act_alone(&TAKE, params).await?;
    let lease = |row| {
        Ok(BulkLease {
            id: named(row, "id")?,
            runner: named(row, "runner")?,
            kind: parsed(row, "action")?,
        })
    };
    rows.first().map(lease).transpose()
}

/// A page of a bulk action, before it is applied.
#[derive(Debug)]
pub(crate) struct BulkPage {
    /// The cursor of the bulk action when the page was read.
    pub(crate) cursor: i64,
    /// The ids of the instances that meet the conditions.
    pub(crate) ids: Vec<i64>,
    read_to: i64,
    examined: i32,
    is_last: bool,
}

/// Reads the next page of a bulk action, with at most `matches_max` matching instances.
pub(crate) async fn page(
    connection: &Connection,
    id: i64,
    matches_max: i32,
) -> Result<BulkPage, Fault> {
    let rows = connection
        .query(&PAGE, &[&id, &ROWS_READ_MAX, &matches_max])
        .await?;
    let row = rows.first().ok_or_else(Fault::no_row)?;
    let ids: Option<Vec<i64>> = named(row, "ids")?;
    Ok(BulkPage {
        cursor: named(row, "cursor")?,
        ids: ids.unwrap_or_default(),
        read_to: named(row, "read_to")?,
        examined: named(row, "examined")?,
        is_last: named(row, "is_last")?,
    })
}

/// The number of instances that a page changed, and whether the bulk action has ended with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Applied {
    pub(crate) changed: i32,
    pub(crate) is_last: bool,
}

/// Applies a page of a bulk action to those of its instances that still match, and records the
/// progress. `refusal` says why the only instance of the page cannot be changed, if it cannot.
/// Returns `None` if the bulk action has ended or has another runner: then nothing was changed.
pub(crate) async fn apply(
    connection: &Connection,
    lease: &BulkLease,
    page: &BulkPage,
    refusal: Option<&str>,
) -> Result<Option<Applied>, Fault> {
    let ids: &[i64] = if refusal.is_none() { &page.ids } else { &[] };
    let params: &[Param<'_>] = &[
        &lease.id,
        &lease.runner,
        &LEASE_SECONDS,
        &page.cursor,
        &page.read_to,
        &page.examined,
        &page.is_last,
        &ids,
        &refusal,
    ];
    let rows = connection.act_alone(&APPLY, params).await?;
    let applied = |row| {
        Ok(Applied {
            changed: named(row, "changed")?,
            is_last: page.is_last,
        })
    };
    rows.first().map(applied).transpose()
}

/// Stops a bulk action. Returns `false` if it has already ended or does not exist.
pub(crate) async fn stop(connection: &Connection, id: i64) -> Result<bool, Fault> {
    Ok(!connection.act_alone(&STOP, &[&id]).await?.is_empty())
}

/// Ends a bulk action that its runner cannot continue, with an error text.
pub(crate) async fn fail(
    connection: &Connection,
    lease: &BulkLease,
    why: &str,
) -> Result<(), Fault> {
    let params: &[Param<'_>] = &[&lease.id, &lease.runner, &why];
    connection.act_alone(&FAIL, params).await.map(drop)
}

/// Returns bulk actions with an id below `before`, the newest first.
pub(crate) async fn list(
    connection: &Connection,
    before: i64,
    limit: i32,
) -> Result<Vec<BulkAction>, Fault> {
    connection
        .query(&LIST, &[&before, &limit])
        .await?
        .iter()
        .map(read)
        .collect()
}

fn read(row: &Row) -> Result<BulkAction, Fault> {
    Ok(BulkAction {
        id: named(row, "id")?,
        kind: parsed(row, "action")?,
        conditions: BulkConditions {
            status: parsed(row, "status")?,
            machine: named(row, "machine")?,
            version: named(row, "machine_version")?,
            step: named(row, "step")?,
            queue: named(row, "queue")?,
            tenant: named(row, "tenant")?,
            key: named(row, "key")?,
            key_prefix: named(row, "key_prefix")?,
            lane: named(row, "lane")?,
            partition: named(row, "partition")?,
            error: named(row, "error_contains")?,
            error_group: named(row, "error_group")?,
            since: named(row, "since")?,
            until: named(row, "until")?,
        },
        retry_step: named(row, "retry_step")?,
        reason: named(row, "reason")?,
        actor: named(row, "actor")?,
        source: named(row, "source")?,
        channel: named(row, "channel")?,
        expected: named(row, "expected")?,
        expected_is_exact: named(row, "expected_is_exact")?,
        id_max: named(row, "id_max")?,
        cursor: named(row, "cursor")?,
        examined: named(row, "examined")?,
        changed: named(row, "changed")?,
        refused: named(row, "refused")?,
        refusals: named(row, "refusals")?,
        state: parsed(row, "state")?,
        error: named(row, "error")?,
        is_active: named(row, "is_active")?,
        requested_at: named(row, "requested_at")?,
        updated_at: named(row, "updated_at")?,
        ended_at: named(row, "ended_at")?,
    })
}
