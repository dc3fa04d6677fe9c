//! The audit log: one record for each action of an operator in the dashboard or on the command
//! line.

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::named,
    sql,
};
use crate::model::audit::{AuditEntry, AuditRecord};

sql!(
    BEGIN,
    "audit_begin.sql",
    [TEXT, TEXT, TEXT, TEXT, TEXT, INT8, INT4]
);
sql!(END, "audit_end.sql", [INT8, TEXT, TEXT, BOOL, TEXT]);
sql!(LIST, "audit.sql", [INT8, INT4]);

/// The number of records that the audit log keeps.
const KEPT_MAX: i64 = 100_000;
/// The number of days for which the audit log keeps a record.
const KEPT_DAYS: i32 = 400;

/// Inserts an audit record for an action of an operator, before the action begins. Returns the id
/// of the record.
pub(crate) async fn begin(
    connection: &Connection,
    entry: &AuditEntry,
) -> Result<Option<i64>, Fault> {
    let AuditEntry {
        actor,
        source,
        channel,
        action,
        subject,
    } = entry;
    let rows = connection
        .query(
            &BEGIN,
            &[
                actor, source, channel, action, subject, &KEPT_MAX, &KEPT_DAYS,
            ],
        )
        .await?;
    rows.first().map(|row| named(row, "id")).transpose()
}

/// Adds the outcome of an operator's action to its audit record. Returns `false` if the record
/// already has an outcome, or if the record no longer exists.
pub(crate) async fn end(
    connection: &Connection,
    id: i64,
    entry: &AuditEntry,
    succeeded: bool,
    outcome: &str,
) -> Result<bool, Fault> {
    let params: &[Param<'_>] = &[&id, &entry.action, &entry.subject, &succeeded, &outcome];
    Ok(!connection.act_alone(&END, params).await?.is_empty())
}

/// Returns records of the audit log with an id below `before`, the newest first.
pub(crate) async fn list(
    connection: &Connection,
    before: i64,
    limit: i32,
) -> Result<Vec<AuditRecord>, Fault> {
    connection
        .query(&LIST, &[&before, &limit])
        .await?
        .iter()
        .map(record)
        .collect()
}

fn record(row: &Row) -> Result<AuditRecord, Fault> {
    Ok(AuditRecord {
        id: named(row, "id")?,
        at: named(row, "at")?,
        actor: named(row, "actor")?,
        source: named(row, "source")?,
        channel: named(row, "channel")?,
        action: named(row, "action")?,
        subject: named(row, "subject")?,
        succeeded: named(row, "succeeded")?,
        outcome: named(row, "outcome")?,
        ended_at: named(row, "ended_at")?,
    })
}
