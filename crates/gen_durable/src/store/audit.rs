//! The record of what people did.

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
    audit::{Deed, KEPT_DAYS, KEPT_MAX},
    error::Error,
};

sql!(
    BEGIN,
    "audit_begin.sql",
    [TEXT, TEXT, TEXT, TEXT, TEXT, INT8, INT4]
);
sql!(END, "audit_end.sql", [INT8, TEXT, TEXT, BOOL, TEXT]);
sql!(LIST, "audit.sql", [INT8, INT4]);

/// The most lines of a page.
const PAGE_MAX: usize = 200;

/// Somebody is about to do this.
pub(crate) async fn begin(connection: &Connection, deed: &Deed) -> Result<Option<i64>, Fault> {
    let Deed {
        who,
        place,
        via,
        act,
        subject,
    } = deed;
    let rows = connection
        .query(
            &BEGIN,
            &[who, place, via, act, subject, &KEPT_MAX, &KEPT_DAYS],
        )
        .await?;
    rows.first().map(|row| column(row, 0)).transpose()
}

/// It is over. `false`: that was said before, or the record is gone.
pub(crate) async fn end(
    connection: &Connection,
    id: i64,
    deed: &Deed,
    went_well: bool,
    outcome: &str,
) -> Result<bool, Fault> {
    let params: &[Param<'_>] = &[&id, &deed.act, &deed.subject, &went_well, &outcome];
    Ok(!connection.act_alone(&END, params).await?.is_empty())
}

/// An act, as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditLine {
    /// They go up with time.
    pub id: i64,
    /// When it began.
    pub at: Timestamp,
    /// Who did it, as whoever let them in knows them.
    pub who: String,
    /// From where, if that is known.
    pub place: Option<String>,
    /// Through what: `dashboard`, `command`.
    pub via: String,
    /// What.
    pub act: String,
    /// On what.
    pub subject: String,
    /// Whether it was done. `None`: its end was never recorded, so it may have been done or not.
    pub went_well: Option<bool>,
    /// What came of it.
    pub outcome: Option<String>,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
}

impl Inspect {
    /// What people did, the newest first, below this one; at most so many (200 at the most).
    pub async fn audit(&self, before: Option<i64>, limit: usize) -> Result<Vec<AuditLine>, Error> {
        let limit = i32::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(1);
        self.read("read the record of acts", move |connection| async move {
            connection
                .query(&LIST, &[&before.unwrap_or(i64::MAX), &limit])
                .await?
                .iter()
                .map(line)
                .collect()
        })
        .await
    }
}

fn line(row: &Row) -> Result<AuditLine, Fault> {
    Ok(AuditLine {
        id: column(row, 0)?,
        at: column(row, 1)?,
        who: column(row, 2)?,
        place: column(row, 3)?,
        via: column(row, 4)?,
        act: column(row, 5)?,
        subject: column(row, 6)?,
        went_well: column(row, 7)?,
        outcome: column(row, 8)?,
        ended_at: column(row, 9)?,
    })
}
