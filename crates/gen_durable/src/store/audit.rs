//! The audit log: one record for each action of an operator in the dashboard or on the command
//! line.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    inspect::Inspect,
    row::column,
    sql,
};
use crate::{
    audit::{AuditEntry, KEPT_DAYS, KEPT_MAX},
    error::Error,
};

sql!(
    BEGIN,
    "audit_begin.sql",
    [TEXT, TEXT, TEXT, TEXT, TEXT, INT8, INT4]
);
sql!(END, "audit_end.sql", [INT8, TEXT, TEXT, BOOL, TEXT]);
sql!(LIST, "audit.sql", [INT8, INT4]);

/// The largest number of audit records that one call returns.
const PAGE_MAX: usize = 200;

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
    rows.first().map(|row| column(row, 0)).transpose()
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

/// A record of the audit log: one action of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// The id of the audit record. A later record has a larger id.
    pub id: i64,
    /// When the operator's action began.
    pub at: Timestamp,
    /// The authenticated user that performed the operator's action.
    pub actor: String,
    /// The network address from which the operator acted, if the tool knows it.
    pub source: Option<String>,
    /// The tool with which the operator performed the action: `dashboard` or `command`.
    pub channel: String,
    /// The name of the operator's action.
    pub action: String,
    /// The object of the operator's action, for example an instance or a queue.
    pub subject: String,
    /// Whether the operator's action succeeded. `None`: the tool never recorded the outcome, so it
    /// is unknown whether the action happened.
    pub succeeded: Option<bool>,
    /// The outcome of the operator's action, in words.
    pub outcome: Option<String>,
    /// When the operator's action ended.
    pub ended_at: Option<Timestamp>,
}

impl Inspect {
    /// Returns records of the audit log with an id below `before`, the newest first: at most
    /// `limit` records, and never more than 200.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn audit(
        &self,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditRecord>, Error> {
        let limit = i32::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(1);
        self.read("read the audit log", move |connection| async move {
            connection
                .query(&LIST, &[&before.unwrap_or(i64::MAX), &limit])
                .await?
                .iter()
                .map(entry)
                .collect()
        })
        .await
    }
}

fn entry(row: &Row) -> Result<AuditRecord, Fault> {
    Ok(AuditRecord {
        id: column(row, 0)?,
        at: column(row, 1)?,
        actor: column(row, 2)?,
        source: column(row, 3)?,
        channel: column(row, 4)?,
        action: column(row, 5)?,
        subject: column(row, 6)?,
        succeeded: column(row, 7)?,
        outcome: column(row, 8)?,
        ended_at: column(row, 9)?,
    })
}
