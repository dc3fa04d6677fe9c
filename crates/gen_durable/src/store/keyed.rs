//! Lists lanes and partition keys for people: the head of each lane or the holder of each partition
//! key, how many instances wait behind the head or for the holder, and why the head or holder has
//! not settled.

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    explain::{Detail, explain},
    fault::Fault,
    row::named,
    sql,
};
use crate::{
    lane::LaneKey,
    model::{
        explanation::Explanation,
        lane::{KeyCursor, LaneFilter, LaneInfo, LanePage, PartitionFilter, PartitionInfo},
    },
};

sql!(
    LANES,
    "lanes.sql",
    [TEXT, TEXT, BOOL, TEXT, TEXT, INT4, TEXT, TEXT, TEXT]
);
sql!(
    LAST_LANE_READ,
    "lanes_seen.sql",
    [TEXT, TEXT, TEXT, BOOL, INT4]
);
sql!(PARTITIONS, "partitions.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);

/// The largest number of lanes that one call of [`page`] reads for one page.
const LANES_READ_MAX: i32 = 5_000;

/// Returns the lane with this tenant and key, if the lane has instances.
pub(crate) async fn one(
    connection: &Connection,
    lane: &LaneKey,
) -> Result<Option<LaneInfo>, Fault> {
    let (tenant, key) = (Some(lane.tenant().to_owned()), Some(lane.key().to_owned()));
    Ok(lanes(
        connection,
        &LaneFilter {
            tenant,
            key,
            limit: 1,
            ..LaneFilter::default()
        },
        None,
    )
    .await?
    .pop())
}

/// Reads a page of lanes. The first statement determines the last lane of the page. If a caller
/// creates a lane beyond that last lane before the second statement reads the page, the lane is
/// left for the next page.
pub(crate) async fn page(connection: &Connection, filter: &LaneFilter) -> Result<LanePage, Fault> {
    let (after_tenant, after_key) = filter.after();
    let params: &[Param<'_>] = &[
        &filter.tenant,
        &after_tenant,
        &after_key,
        &filter.blocked,
        &LANES_READ_MAX,
    ];
    let rows = connection.query(&LAST_LANE_READ, params).await?;
    let position = |row: &Row| {
        Ok::<_, Fault>(KeyCursor {
            tenant: named(row, "tenant")?,
            key: named(row, "key")?,
        })
    };
    let last_read = rows.first().map(position).transpose()?;
    let lanes = lanes(connection, filter, last_read.as_ref()).await?;
    let is_full = i32::try_from(lanes.len()).is_ok_and(|count| count >= filter.limit());
    let last = lanes.last().filter(|_| is_full).map(LaneInfo::cursor);
    Ok(LanePage {
        lanes,
        next: last.or(last_read),
    })
}

/// Returns lanes that have instances, ordered by tenant and key, up to the lane `until`.
pub(crate) async fn lanes(
    connection: &Connection,
    filter: &LaneFilter,
    until: Option<&KeyCursor>,
) -> Result<Vec<LaneInfo>, Fault> {
    let (after_tenant, after_key) = filter.after();
    let (until_tenant, until_key) = (
        until.map(|until| &until.tenant),
        until.map(|until| &until.key),
    );
    let params: &[Param<'_>] = &[
        &filter.tenant,
        &filter.key,
        &filter.blocked,
        &after_tenant,
        &after_key,
        &filter.limit(),
        &filter.prefix,
        &until_tenant,
        &until_key,
    ];
    let rows = connection.query(&LANES, params).await?;
    let read = |row: &Row| -> Result<(LaneInfo, Option<i64>), Fault> {
        let (tenant, key, depth, awaiting_placement) = (
            named(row, "tenant")?,
            named(row, "key")?,
            named(row, "depth")?,
            named(row, "awaiting_placement")?,
        );
        Ok((
            LaneInfo {
                tenant,
                key,
                depth,
                awaiting_placement,
                head: None,
            },
            named(row, "head")?,
        ))
    };
    let read = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    with_explanations(connection, read, |lane, head| lane.head = Some(head)).await
}

/// Returns the partition keys that an instance holds or waits for, ordered by tenant and key.
pub(crate) async fn partitions(
    connection: &Connection,
    filter: &PartitionFilter,
) -> Result<Vec<PartitionInfo>, Fault> {
    let (after_tenant, after_key) = filter.after();
    let params: &[Param<'_>] = &[
        &filter.tenant,
        &filter.key,
        &after_tenant,
        &after_key,
        &filter.limit(),
    ];
    let rows = connection.query(&PARTITIONS, params).await?;
    let read = |row: &Row| -> Result<(PartitionInfo, Option<i64>), Fault> {
        let (tenant, key, waiting) = (
            named(row, "tenant")?,
            named(row, "key")?,
            named(row, "waiting")?,
        );
        Ok((
            PartitionInfo {
                tenant,
                key,
                waiting,
                holder: None,
            },
            named(row, "holder")?,
        ))
    };
    let read = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    with_explanations(connection, read, |key, holder| key.holder = Some(holder)).await
}

/// Adds the explanations of all lane heads or partition holders of a page. The number of statements
/// does not depend on the number of heads or holders.
async fn with_explanations<T>(
    connection: &Connection,
    page: Vec<(T, Option<i64>)>,
    put: impl Fn(&mut T, Explanation),
) -> Result<Vec<T>, Fault> {
    let ids: Vec<i64> = page.iter().filter_map(|(_, id)| *id).collect();
    let mut explanations = if ids.is_empty() {
        Default::default()
    } else {
        explain(connection, &ids, Detail::Brief).await?
    };
    let put_one = |(mut one, id): (T, Option<i64>)| {
        if let Some(explanation) = id.and_then(|id| explanations.remove(&id)) {
            put(&mut one, explanation);
        }
        one
    };
    Ok(page.into_iter().map(put_one).collect())
}
