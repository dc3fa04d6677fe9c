//! Lists lanes and partition keys for people: the head of each lane or the holder of each partition
//! key, how many instances wait behind the head or for the holder, and why the head or holder has
//! not settled.

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    explain::{Explanation, explain},
    fault::Fault,
    inspect::Inspect,
    row::column,
    sql,
};
use crate::{error::Error, lane::LaneKey};

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

/// The largest number of lanes or partition keys on one page.
const PAGE_MAX: usize = 200;
/// The largest number of lanes that [`Inspect::lanes_page`] reads for one page.
const LANES_READ_MAX: i32 = 5_000;

/// A lane with at least one instance.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LaneInfo {
    /// The tenant of the lane.
    pub tenant: String,
    /// The key of the lane, for example `server:7`.
    pub key: String,
    /// The number of instances in the lane, its head included, counted up to 10,001.
    pub depth: i64,
    /// The number of instances that have arrived at this lane and await placement, among the first
    /// 10,001 arrivals of all lanes.
    pub awaiting_placement: i64,
    /// The first instance of the lane, and why it has not settled. `None`: no instance of the lane
    /// has a lane position yet. If the status of the head is `queued`, either the lane worker has
    /// just started the head, or the next pick makes the head runnable; the first blocker of the
    /// explanation says which.
    pub head: Option<Explanation>,
}

impl LaneInfo {
    /// Returns whether the lane is blocked: its head failed for good and keeps its lane position
    /// until an operator retries it, skips it, or cancels it with `durable lanes discard`.
    pub fn is_blocked(&self) -> bool {
        self.head
            .as_ref()
            .is_some_and(|head| head.instance.blocks_its_lane())
    }
}

/// A partition key under which an instance runs, may run or waits.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// The tenant of the partition key.
    pub tenant: String,
    /// The partition key, under which at most one step runs at a time.
    pub key: String,
    /// The number of instances that wait for the partition, counted up to 10,001.
    pub waiting: i64,
    /// The partition holder, with the reasons why it still holds the partition. `None`: placement
    /// has not chosen a partition holder yet.
    pub holder: Option<Explanation>,
}

/// A page of the list of lanes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LanePage {
    /// The lanes of the page, ordered by tenant and key.
    pub lanes: Vec<LaneInfo>,
    /// The `after` of the next page: the tenant and key of the last lane that the query read.
    /// `None`: this was the last page.
    pub next: Option<(String, String)>,
}

/// Selects lanes or partition keys, ordered by tenant and key, page by page.
#[derive(Debug, Clone, Default)]
pub struct KeyFilter {
    /// Only lanes or partition keys of this tenant. The empty name means instances without a
    /// tenant.
    pub tenant: Option<String>,
    /// Selects only the lane or partition with this key.
    pub key: Option<String>,
    /// Selects only lanes with a key that begins with this prefix.
    pub prefix: Option<String>,
    /// Selects only lanes that a failed instance blocks.
    pub blocked: bool,
    /// Only lanes or partition keys after this tenant and key, which are the tenant and key of the
    /// last entry of the previous page.
    pub after: Option<(String, String)>,
    /// The largest number of lanes or partition keys on the page, up to 200. The value 0 means 50.
    pub limit: usize,
}

impl KeyFilter {
    fn limit(&self) -> i32 {
        let limit = if self.limit == 0 {
            50
        } else {
            self.limit.min(PAGE_MAX)
        };
        i32::try_from(limit).unwrap_or(50)
    }
    fn after(&self) -> (&str, &str) {
        self.after
            .as_ref()
            .map_or(("", ""), |(tenant, key)| (tenant, key))
    }
}

impl Inspect {
    /// Returns the lanes that have instances, ordered by tenant and key. The cost of a page depends
    /// neither on the number of instances in a lane nor on the number of lanes.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn lanes(&self, filter: KeyFilter) -> Result<Vec<LaneInfo>, Error> {
        self.read("list lanes", move |connection| async move {
            lanes(&connection, &filter, None).await
        })
        .await
    }

    /// Returns a page of lanes as [`lanes`](Inspect::lanes) does, but reads at most 5,000 lanes, so
    /// a page may have fewer lanes than the limit although another page exists.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn lanes_page(&self, filter: KeyFilter) -> Result<LanePage, Error> {
        self.read("list lanes", move |connection| async move {
            page(&connection, &filter).await
        })
        .await
    }

    /// Returns the lane with this tenant and key, or `None` if the lane has no instances.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn lane(&self, lane: impl Into<LaneKey>) -> Result<Option<LaneInfo>, Error> {
        let lane = lane.into();
        self.read("read a lane", move |connection| async move {
            one(&connection, &lane).await
        })
        .await
    }

    /// Returns the partition keys that an instance holds or waits for, ordered by tenant and key.
    ///
    /// # Errors
    ///
    /// Fails if the filter has `prefix` or `blocked` set, which apply only to lanes; or if the
    /// database cannot be reached.
    pub async fn partitions(&self, filter: KeyFilter) -> Result<Vec<PartitionInfo>, Error> {
        if filter.blocked
            || filter
                .prefix
                .as_deref()
                .is_some_and(|prefix| !prefix.is_empty())
        {
            return Err(Error::invalid(
                "partition keys are listed by tenant or key: `prefix` and `blocked` are for lanes",
            ));
        }
        self.read("list partition keys", move |connection| async move {
            partitions(&connection, &filter).await
        })
        .await
    }
}

/// Returns the lane with this tenant and key, if the lane has instances.
pub(crate) async fn one(
    connection: &Connection,
    lane: &LaneKey,
) -> Result<Option<LaneInfo>, Fault> {
    let (tenant, key) = (Some(lane.tenant().to_owned()), Some(lane.key().to_owned()));
    Ok(lanes(
        connection,
        &KeyFilter {
            tenant,
            key,
            limit: 1,
            ..KeyFilter::default()
        },
        None,
    )
    .await?
    .pop())
}

/// Reads a page of lanes. The first statement determines the last lane of the page. If a caller
/// creates a lane beyond that last lane before the second statement reads the page, the lane is
/// left for the next page.
async fn page(connection: &Connection, filter: &KeyFilter) -> Result<LanePage, Fault> {
    let (after_tenant, after_key) = filter.after();
    let params: &[Param<'_>] = &[
        &filter.tenant,
        &after_tenant,
        &after_key,
        &filter.blocked,
        &LANES_READ_MAX,
    ];
    let rows = connection.query(&LAST_LANE_READ, params).await?;
    let position = |row: &Row| Ok::<(String, String), Fault>((column(row, 0)?, column(row, 1)?));
    let last_read = rows.first().map(position).transpose()?;
    let lanes = lanes(connection, filter, last_read.as_ref()).await?;
    let is_full = i32::try_from(lanes.len()).is_ok_and(|count| count >= filter.limit());
    let last = lanes
        .last()
        .filter(|_| is_full)
        .map(|last| (last.tenant.clone(), last.key.clone()));
    Ok(LanePage {
        lanes,
        next: last.or(last_read),
    })
}

async fn lanes(
    connection: &Connection,
    filter: &KeyFilter,
    until: Option<&(String, String)>,
) -> Result<Vec<LaneInfo>, Fault> {
    let (after_tenant, after_key) = filter.after();
    let (until_tenant, until_key) = (until.map(|(tenant, _)| tenant), until.map(|(_, key)| key));
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
            column(row, 0)?,
            column(row, 1)?,
            column(row, 2)?,
            column(row, 3)?,
        );
        Ok((
            LaneInfo {
                tenant,
                key,
                depth,
                awaiting_placement,
                head: None,
            },
            column(row, 4)?,
        ))
    };
    let read = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    with_explanations(connection, read, |lane, head| lane.head = Some(head)).await
}

async fn partitions(
    connection: &Connection,
    filter: &KeyFilter,
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
        let (tenant, key, waiting) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
        Ok((
            PartitionInfo {
                tenant,
                key,
                waiting,
                holder: None,
            },
            column(row, 3)?,
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
        explain(connection, &ids, false, 0).await?
    };
    let put_one = |(mut one, id): (T, Option<i64>)| {
        if let Some(explanation) = id.and_then(|id| explanations.remove(&id)) {
            put(&mut one, explanation);
        }
        one
    };
    Ok(page.into_iter().map(put_one).collect())
}
