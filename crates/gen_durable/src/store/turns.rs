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

sql!(
    LANES,
    "lanes.sql",
    [TEXT, TEXT, BOOL, TEXT, TEXT, INT4, TEXT, TEXT, TEXT]
);
sql!(LANES_SEEN, "lanes_seen.sql", [TEXT, TEXT, TEXT, BOOL, INT4]);
sql!(PARTITIONS, "partitions.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);

/// The most that one page holds.
const PAGE_MAX: usize = 200;
/// So many lanes are looked at for one page of a bounded look.
const LOOKED_AT_MAX: i32 = 5_000;

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
    /// next: it has just begun in the worker that leads the lane, or the next pick lets it go on; its first blocker says which.
    pub head: Option<Explanation>,
}

impl LaneInfo {
    /// Whether it stands still because its head failed for good and was to keep its place.
    pub fn is_blocked(&self) -> bool {
        self.head
            .as_ref()
            .is_some_and(|head| head.instance.blocks_its_lane())
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

/// A page of lanes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LanePage {
    /// By tenant and key.
    pub lanes: Vec<LaneInfo>,
    /// Where to go on: the tenant and the key of the last that was looked at. `None`: that was all.
    pub next: Option<(String, String)>,
}

/// Which lanes or partition keys to list: by tenant and key, page by page.
#[derive(Debug, Clone, Default)]
pub struct KeyFilter {
    /// Of this tenant only; the empty one is that of work without a tenant.
    pub tenant: Option<String>,
    /// Only this key.
    pub key: Option<String>,
    /// Only lanes whose keys begin like this.
    pub prefix: Option<String>,
    /// Only lanes that stand still behind one that failed.
    pub blocked: bool,
    /// Only those after this tenant and key: the last of the page before.
    pub after: Option<(String, String)>,
    /// At most this many (200 at the most; 0 is 50).
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
    /// The lanes that somebody stands in, by tenant and key. What a page costs depends neither on how many stand in a lane
    /// nor on how many lanes there are.
    pub async fn lanes(&self, filter: KeyFilter) -> Result<Vec<LaneInfo>, Error> {
        self.read("list lanes", move |connection| async move {
            lanes(&connection, &filter, None).await
        })
        .await
    }

    /// The same, looking at 5,000 lanes at most: a page may hold few and still have a next one.
    pub async fn lanes_page(&self, filter: KeyFilter) -> Result<LanePage, Error> {
        self.read("list lanes", move |connection| async move {
            page(&connection, &filter).await
        })
        .await
    }

    /// One lane. `None`: nobody stands in it.
    pub async fn lane(&self, lane: impl Into<LaneKey>) -> Result<Option<LaneInfo>, Error> {
        let lane = lane.into();
        self.read("look at a lane", move |connection| async move {
            one(&connection, &lane).await
        })
        .await
    }

    /// Lists the partition keys that an instance holds or waits for, by tenant and key.
    ///
    /// # Errors
    /// The filter asks for a prefix or for blocked ones, which there are only for lanes; or the database is away.
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

/// One lane, if anybody stands in it.
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

/// How far this page looks is known before it is read: what has just arrived further on is for the next one.
async fn page(connection: &Connection, filter: &KeyFilter) -> Result<LanePage, Fault> {
    let (after_tenant, after_key) = filter.after();
    let params: &[Param<'_>] = &[
        &filter.tenant,
        &after_tenant,
        &after_key,
        &filter.blocked,
        &LOOKED_AT_MAX,
    ];
    let rows = connection.query(&LANES_SEEN, params).await?;
    let place = |row: &Row| Ok::<(String, String), Fault>((column(row, 0)?, column(row, 1)?));
    let seen = rows.first().map(place).transpose()?;
    let lanes = lanes(connection, filter, seen.as_ref()).await?;
    let is_full = i32::try_from(lanes.len()).is_ok_and(|count| count >= filter.limit());
    let last = lanes
        .last()
        .filter(|_| is_full)
        .map(|last| (last.tenant.clone(), last.key.clone()));
    Ok(LanePage {
        lanes,
        next: last.or(seen),
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
        let (tenant, key, depth, unplaced) = (
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
                unplaced,
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
                turn: None,
            },
            column(row, 3)?,
        ))
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
