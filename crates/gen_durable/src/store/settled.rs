//! Reads instances in the order in which they settle, page by page.

use super::{connection::Connection, fault::Fault, search, sql};
use crate::{
    id::Status,
    model::{
        page_size,
        settled::{SettledCursor, SettledFilter, SettledPage},
    },
};

sql!(
    SETTLED_AFTER,
    "settled_after.sql",
    [TEXT, TEXT, TIMESTAMPTZ, INT8, INT4]
);

/// The largest number of instances on a page.
const PAGE_MAX: usize = 1_000;

/// Returns the instances that settled after a cursor, the earliest first. The statement does not
/// compare the machine, because it would read on until it finds a full page of one machine.
pub(crate) async fn after(
    connection: &Connection,
    filter: &SettledFilter,
) -> Result<SettledPage, Fault> {
    let limit = page_size(filter.limit, PAGE_MAX);
    let status = filter.status.map(Status::name);
    let (at, id) = (filter.after.settled_at, filter.after.id);
    let rows = connection
        .query(&SETTLED_AFTER, &[&filter.queue, &status, &at, &id, &limit])
        .await?;
    let mut instances = rows
        .iter()
        .map(search::read)
        .collect::<Result<Vec<_>, _>>()?;
    let last = instances.last().and_then(|last| {
        let settled_at = last.settled_at?;
        Some(SettledCursor {
            settled_at,
            id: last.id,
        })
    });
    let is_last = i32::try_from(instances.len()).is_ok_and(|count| count < limit);
    let is_wanted = |machine: &str| {
        let wanted = filter.machine.as_deref();
        wanted.is_none_or(|wanted| wanted == machine)
    };
    instances.retain(|found| is_wanted(&found.machine));
    Ok(SettledPage {
        instances,
        next: last.unwrap_or(filter.after),
        is_last,
    })
}
