//! Queries about projection scopes and their failures, for operators.

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{named, parsed},
    sql,
};
use crate::model::{
    json::seconds,
    projection::{Digest, ProjectionFailure, ProjectionInfo},
};

sql!(LIST, "projections.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);
sql!(FAILURES, "failures.sql", [TEXT, TEXT, BOOL, INT4]);
sql!(PAGE, "projections_page.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);
sql!(
    FAILURES_PAGE,
    "failures_page.sql",
    [TEXT, TEXT, TEXT, TEXT, INT8, INT4]
);

/// Returns projection scopes, ordered by tenant and projection, after `after`.
pub(crate) async fn list(
    connection: &Connection,
    tenant: Option<&str>,
    projection: Option<&str>,
    after: Option<(&str, &str)>,
    limit: i32,
) -> Result<Vec<ProjectionInfo>, Fault> {
    let (after_tenant, after_projection) = after.unzip();
    let rows = connection
        .query(
            &LIST,
            &[
                &tenant,
                &projection,
                &after_tenant,
                &after_projection,
                &limit,
            ],
        )
        .await?;
    rows.iter().map(info).collect()
}

/// Returns a page of projection scopes, ordered by projection and tenant, after `after`.
pub(crate) async fn page(
    connection: &Connection,
    tenant: Option<&str>,
    projection: Option<&str>,
    after: (&str, &str),
    limit: i32,
) -> Result<Vec<ProjectionInfo>, Fault> {
    let params: &[Param<'_>] = &[&tenant, &projection, &after.0, &after.1, &limit];
    let rows = connection.query(&PAGE, params).await?;
    rows.iter().map(info).collect()
}

/// Reads the state of a scope from a row of one of the queries that list scopes.
fn info(row: &Row) -> Result<ProjectionInfo, Fault> {
    Ok(ProjectionInfo {
        tenant: named(row, "tenant")?,
        projection: named(row, "projection")?,
        partition: named(row, "partition")?,
        version: named(row, "version")?,
        generation: named(row, "generation")?,
        position: named(row, "position")?,
        log_position: named(row, "log_position")?,
        status: parsed(row, "status")?,
        attempts: named(row, "attempts")?,
        retry_at: named(row, "retry_at")?,
        last_error: named(row, "last_error")?,
        owner: named(row, "owner")?,
        host: named(row, "host")?,
        pid: named(row, "pid")?,
        owned: named(row, "owned")?,
        lag_time: named::<Option<f64>>(row, "lag_seconds")?.map(seconds::duration),
        replaying_to: named(row, "replaying_to")?,
        applied: named(row, "applied")?,
        digest: digest(row)?,
        digest_position: named(row, "digest_position")?,
        digest_at: named(row, "digest_at")?,
        updated_at: named(row, "updated_at")?,
        served: named(row, "served")?,
        offered: named(row, "offered")?,
    })
}

/// Reads the digest of a scope, which has 32 bytes.
fn digest(row: &Row) -> Result<Option<Digest>, Fault> {
    let bytes: Option<Vec<u8>> = named(row, "digest")?;
    bytes
        .map(|bytes| {
            let bytes = bytes.try_into().map_err(|_| Fault::Refused {
                code: None,
                message: "a digest does not have 32 bytes".into(),
            })?;
            Ok(Digest::from_bytes(bytes))
        })
        .transpose()
}

pub(crate) async fn failures(
    connection: &Connection,
    tenant: Option<&str>,
    projection: Option<&str>,
    resolved: bool,
    limit: i32,
) -> Result<Vec<ProjectionFailure>, Fault> {
    let rows = connection
        .query(&FAILURES, &[&tenant, &projection, &resolved, &limit])
        .await?;
    rows.iter().map(failure).collect()
}

/// Returns a page of unresolved failures, ordered by projection, tenant and log position, after
/// `after`.
pub(crate) async fn failures_page(
    connection: &Connection,
    projection: Option<&str>,
    tenant: Option<&str>,
    (after_projection, after_tenant, after_position): (&str, &str, i64),
    limit: i32,
) -> Result<Vec<ProjectionFailure>, Fault> {
    let params: &[Param<'_>] = &[
        &projection,
        &tenant,
        &after_projection,
        &after_tenant,
        &after_position,
        &limit,
    ];
    let rows = connection.query(&FAILURES_PAGE, params).await?;
    rows.iter().map(failure).collect()
}

/// Reads a failure of a projection from a row of one of the queries that list failures.
fn failure(row: &Row) -> Result<ProjectionFailure, Fault> {
    Ok(ProjectionFailure {
        tenant: named(row, "tenant")?,
        projection: named(row, "projection")?,
        position: named(row, "position")?,
        attempts: named(row, "attempts")?,
        state: parsed(row, "state")?,
        error: named(row, "error")?,
        first_at: named(row, "first_at")?,
        last_at: named(row, "last_at")?,
        resolved_at: named(row, "resolved_at")?,
        event: named(row, "event")?,
        redrive: named(row, "redrive")?,
    })
}
