//! Reads the signals and children of one instance: lists of bounded length for people, and pages of
//! children for the steps of the instance.

use tokio_postgres::Row;

use super::{
    connection::Connection,
    fault::Fault,
    pulse::COUNTED_MAX,
    row::{named, parsed},
    sql,
};
use crate::{
    id::Status,
    model::family::{ChildInfo, Children, InboxSignal},
};

sql!(INBOX, "inbox.sql", [INT8, INT4]);
sql!(CHILDREN, "children.sql", [INT8, INT4]);
sql!(CHILDREN_COUNTS, "children_counts.sql", [INT8, INT4]);
sql!(CHILDREN_PAGE, "children_page.sql", [INT8, INT8, TEXT_ARRAY]);
sql!(CHILDREN_OF_SPAWN, "children_of_spawn.sql", [INT8]);

/// The largest number of signals in a list for people, and the largest number of children in such a
/// list.
const SHOWN_MAX: i32 = 200;

/// Returns the signals of an instance that no step has consumed, the oldest first.
pub(crate) async fn inbox(connection: &Connection, id: i64) -> Result<Vec<InboxSignal>, Fault> {
    let read = |row: &Row| {
        Ok(InboxSignal {
            id: named(row, "id")?,
            name: named(row, "name")?,
            payload: named(row, "payload")?,
            dedup_key: named(row, "dedup_key")?,
            inserted_at: named(row, "inserted_at")?,
        })
    };
    let rows = connection.query(&INBOX, &[&id, &SHOWN_MAX]).await?;
    rows.iter().map(read).collect()
}

/// Returns the numbers of an instance's children by status, and its newest children.
pub(crate) async fn children(connection: &Connection, id: i64) -> Result<Children, Fault> {
    let mut all = Children::default();
    for row in &connection.query(&CHILDREN, &[&id, &SHOWN_MAX]).await? {
        all.children.push(child(row)?);
    }
    if !all.children.is_empty() {
        let rows = connection
            .query(&CHILDREN_COUNTS, &[&id, &COUNTED_MAX])
            .await?;
        for row in &rows {
            all.counts
                .insert(parsed(row, "status")?, named(row, "count")?);
        }
    }
    Ok(all)
}

fn child(row: &Row) -> Result<ChildInfo, Fault> {
    Ok(ChildInfo {
        id: named(row, "id")?,
        machine: named(row, "machine")?,
        step: named(row, "step")?,
        status: parsed(row, "status")?,
        generation: named(row, "parent_generation")?,
        last_error: named(row, "last_error")?,
        inserted_at: named(row, "inserted_at")?,
        settled_at: named(row, "settled_at")?,
        is_parent: named(row, "is_parent")?,
    })
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
    rows.first().map(|row| named(row, "children")).transpose()
}

/// Counts the children of an instance's last spawn by status.
pub(crate) async fn counts(
    connection: &Connection,
    parent: i64,
) -> Result<Vec<(Status, u64)>, Fault> {
    let rows = connection.query(&CHILDREN_OF_SPAWN, &[&parent]).await?;
    let count = |row| {
        Ok((
            parsed(row, "status")?,
            u64::try_from(named::<i64>(row, "count")?).unwrap_or_default(),
        ))
    };
    rows.iter().map(count).collect()
}
