//! Reads the signals and children of one instance: lists of bounded length for people, and pages of
//! children for the steps of the instance.

use jiff::Timestamp;

use super::{
    connection::Connection,
    fault::Fault,
    inspect::{self, Inspect},
    pulse::COUNTED_MAX,
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(INBOX, "inbox.sql", [INT8, INT4]);
sql!(CHILDREN, "children.sql", [INT8, INT4]);
sql!(CHILDREN_COUNTS, "children_counts.sql", [INT8, INT4]);
sql!(CHILDREN_PAGE, "children_page.sql", [INT8, INT8, TEXT_ARRAY]);
sql!(CHILDREN_OF_SPAWN, "children_of_spawn.sql", [INT8]);

/// The largest number of signals in a list for people, and the largest number of children in such a
/// list.
const SHOWN_MAX: i32 = 200;

/// A signal in an instance's inbox that no step has consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct InboxSignal {
    pub id: i64,
    pub name: String,
    /// The payload of the signal, as JSON.
    pub payload: String,
    pub dedup_key: Option<String>,
    pub inserted_at: Timestamp,
}

/// A child that an instance spawned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct ChildInfo {
    pub id: i64,
    pub machine: String,
    pub step: String,
    pub status: Status,
    /// The number of the parent's spawn that counts this child. `None`: the child had settled and
    /// was counted at the parent's join, and an operator has retried the child since.
    pub generation: Option<i32>,
    pub last_error: Option<String>,
    pub inserted_at: Timestamp,
    pub settled_at: Option<Timestamp>,
    /// Whether the child has spawned children of its own.
    pub is_parent: bool,
}

/// The children of an instance: their numbers by status, and a list of the newest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Children {
    /// The numbers of the instance's children by status, counted up to 10,001 in all.
    pub counts: Vec<(Status, i64)>,
    /// The newest 200 children of the instance. Children of the instance's last spawn are listed
    /// first.
    pub children: Vec<ChildInfo>,
}

impl Inspect {
    /// Returns the signals of an instance that no step has consumed, the oldest first, at most 200.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn inbox(&self, id: i64) -> Result<Vec<InboxSignal>, Error> {
        self.read("read an inbox", move |connection| async move {
            let rows = connection.query(&INBOX, &[&id, &SHOWN_MAX]).await?;
            rows.iter()
                .map(|row| {
                    Ok(InboxSignal {
                        id: column(row, 0)?,
                        name: column(row, 1)?,
                        payload: column(row, 2)?,
                        dedup_key: column(row, 3)?,
                        inserted_at: column(row, 4)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Returns the numbers of an instance's children by status, and its newest 200 children.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn children(&self, id: i64) -> Result<Children, Error> {
        self.read("list children", move |connection| async move {
            let mut all = Children::default();
            for row in &connection.query(&CHILDREN, &[&id, &SHOWN_MAX]).await? {
                all.children.push(ChildInfo {
                    id: column(row, 0)?,
                    machine: column(row, 1)?,
                    step: column(row, 2)?,
                    status: inspect::status(row, 3)?,
                    generation: column(row, 4)?,
                    last_error: column(row, 5)?,
                    inserted_at: column(row, 6)?,
                    settled_at: column(row, 7)?,
                    is_parent: column(row, 8)?,
                });
            }
            if !all.children.is_empty() {
                for row in &connection
                    .query(&CHILDREN_COUNTS, &[&id, &COUNTED_MAX])
                    .await?
                {
                    all.counts.push((inspect::status(row, 0)?, column(row, 1)?));
                }
            }
            Ok(all)
        })
        .await
    }
}

/// Reads a page of the children of an instance's last spawn, as JSON: the children with an id
/// larger than `after` that belong to one of these machines. Returns `None` if the parent does not
/// exist.
pub(crate) async fn page(
    connection: &Connection,
    parent: i64,
    after: i64,
    machines: &[&'static str],
) -> Result<Option<String>, Fault> {
    let rows = connection
        .query(&CHILDREN_PAGE, &[&parent, &after, &machines])
        .await?;
    rows.first().map(|row| column(row, 0)).transpose()
}

/// Counts the children of an instance's last spawn by status.
pub(crate) async fn counts(
    connection: &Connection,
    parent: i64,
) -> Result<Vec<(Status, u64)>, Fault> {
    let rows = connection.query(&CHILDREN_OF_SPAWN, &[&parent]).await?;
    let count = |row| {
        Ok((
            inspect::status(row, 0)?,
            u64::try_from(column::<i64>(row, 1)?).unwrap_or_default(),
        ))
    };
    rows.iter().map(count).collect()
}
