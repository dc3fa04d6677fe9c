//! Lanes and partition keys to look at: who has them, who waits, and why it does not go on.

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

sql!(LANES, "lanes.sql", [TEXT, TEXT, BOOL, TEXT, TEXT, INT4]);
sql!(PARTITIONS, "partitions.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);

/// The most that one page holds.
const PAGE_MAX: usize = 200;

/// A lane that somebody stands in.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LaneInfo {
    /// Whose it is.
    pub tenant: String,
    /// Its key: `server:7`.
    pub key: String,
    /// How many stand in it, its head included, counted up to 10,001.
    pub depth: i64,
    /// How many have arrived besides and have no place yet, among the first 10,001 arrivals in all.
    pub unplaced: i64,
    /// Who has the lane, and why it has not ended. None: no pick has given it to anybody yet. One that is `queued` is the
    /// next, and the next pick lets it go on.
    pub head: Option<Explanation>,
}

impl LaneInfo {
    /// Whether it stands still because its head failed for good and was to keep its place.
    pub fn is_blocked(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.instance.blocks_its_lane())
    }
}

/// A partition key under which somebody could run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// Whose it is.
    pub tenant: String,
    /// The key.
    pub key: String,
    /// How many wait for their turn, counted up to 10,001.
    pub waiting: i64,
    /// Whose turn it is, and why it has not ended. None: no pick has seen to the key yet.
    pub turn: Option<Explanation>,
}

/// Which lanes or partition keys to list: by tenant and key, page by page.
#[derive(Debug, Clone, Default)]
pub struct KeyFilter {
    /// Of this tenant only; the empty one is that of work without a tenant.
    pub tenant: Option<String>,
    /// Only this key.
    pub key: Option<String>,
    /// Only lanes that stand still behind one that failed.
    pub blocked: bool,
    /// Only those after this tenant and key: the last of the page before.
    pub after: Option<(String, String)>,
    /// At most this many (200 at the most; 0 is 50).
    pub limit: usize,
}

impl KeyFilter {
    fn limit(&self) -> i32 {
        let limit = if self.limit == 0 { 50 } else { self.limit.min(PAGE_MAX) };
        i32::try_from(limit).unwrap_or(50)
    }
    fn after(&self) -> (&str, &str) {
        self.after.as_ref().map_or(("", ""), |(tenant, key)| (tenant, key))
    }
}

impl Inspect {
    /// The lanes that somebody stands in, by tenant and key. What a page costs depends neither on how many stand in a lane
    /// nor on how many lanes there are.
    pub async fn lanes(&self, filter: KeyFilter) -> Result<Vec<LaneInfo>, Error> {
        self.read("list lanes", move |connection| async move { lanes(&connection, &filter).await }).await
    }

    /// One lane. `None`: nobody stands in it.
    pub async fn lane(&self, lane: impl Into<LaneKey>) -> Result<Option<LaneInfo>, Error> {
        let lane = lane.into();
        self.read("look at a lane", move |connection| async move { one(&connection, &lane).await }).await
    }

    /// The partition keys under which somebody has the turn or waits for it, by tenant and key.
    pub async fn partitions(&self, filter: KeyFilter) -> Result<Vec<PartitionInfo>, Error> {
        self.read("list partition keys", move |connection| async move { partitions(&connection, &filter).await }).await
    }
}

/// One lane, if anybody stands in it.
pub(crate) async fn one(connection: &Connection, lane: &LaneKey) -> Result<Option<LaneInfo>, Fault> {
    let (tenant, key) = (Some(lane.tenant().to_owned()), Some(lane.key().to_owned()));
    Ok(lanes(connection, &KeyFilter { tenant, key, limit: 1, ..KeyFilter::default() }).await?.pop())
}

async fn lanes(connection: &Connection, filter: &KeyFilter) -> Result<Vec<LaneInfo>, Fault> {
    let (after_tenant, after_key) = filter.after();
    let params: &[Param<'_>] =
        &[&filter.tenant, &filter.key, &filter.blocked, &after_tenant, &after_key, &filter.limit()];
    let rows = connection.query(&LANES, params).await?;
    let read = |row: &Row| -> Result<(LaneInfo, Option<i64>), Fault> {
        let (tenant, key, depth, unplaced) = (column(row, 0)?, column(row, 1)?, column(row, 2)?, column(row, 3)?);
        Ok((LaneInfo { tenant, key, depth, unplaced, head: None }, column(row, 4)?))
    };
    let read = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    with_explanations(connection, read, |lane, head| lane.head = Some(head)).await
}

async fn partitions(connection: &Connection, filter: &KeyFilter) -> Result<Vec<PartitionInfo>, Fault> {
    let (after_tenant, after_key) = filter.after();
    let params: &[Param<'_>] = &[&filter.tenant, &filter.key, &after_tenant, &after_key, &filter.limit()];
    let rows = connection.query(&PARTITIONS, params).await?;
    let read = |row: &Row| -> Result<(PartitionInfo, Option<i64>), Fault> {
        let (tenant, key, waiting) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
        Ok((PartitionInfo { tenant, key, waiting, turn: None }, column(row, 3)?))
    };
    let read = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    with_explanations(connection, read, |key, turn| key.turn = Some(turn)).await
}

/// All of a page at once: as many statements for fifty as for one.
async fn with_explanations<T>(
    connection: &Connection,
    page: Vec<(T, Option<i64>)>,
    put: impl Fn(&mut T, Explanation),
) -> Result<Vec<T>, Fault> {
    let ids: Vec<i64> = page.iter().filter_map(|(_, id)| *id).collect();
    let mut explanations =
        if ids.is_empty() { Default::default() } else { explain(connection, &ids, false, 0).await? };
    let put_one = |(mut one, id): (T, Option<i64>)| {
        if let Some(explanation) = id.and_then(|id| explanations.remove(&id)) {
            put(&mut one, explanation);
        }
        one
    };
    Ok(page.into_iter().map(put_one).collect())
}
