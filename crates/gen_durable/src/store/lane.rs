//! Rare operations on lanes and partition keys: placement, the repair of lanes without a head and
//! of partition keys without a holder, and the operations of an operator that unblock a lane.

use super::{
    connection::{Connection, Param},
    fault::Fault,
    operate::WakeRange,
    row::named,
    sql,
};
use crate::lane::LaneKey;

#[cfg(feature = "testing")]
sql!(PLACE, "place.sql", []);
sql!(REPAIR, "repair.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);
sql!(RETRY, "lane_retry.sql", [TEXT, TEXT]);
sql!(SKIP, "lane_skip.sql", [TEXT, TEXT]);
sql!(DISCARD, "lane_discard.sql", [TEXT, TEXT, TEXT]);
sql!(DEPTH, "lane_depth.sql", []);

/// The lane and the partition key at which the next call of `repair` begins. Each call checks a
/// part of all lanes and partition keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct RepairCursor {
    lane: (String, String),
    partition: (String, String),
}

/// Assigns lane positions and partition holders to all instances that have arrived. Every pick runs
/// placement too; this function is for tests that do not pick.
#[cfg(feature = "testing")]
pub(crate) async fn place(connection: &Connection) -> Result<(), Fault> {
    let mut before = 0;
    loop {
        let rows = connection.query(&PLACE, &[]).await?;
        let more: Option<i64> = rows.first().map_or(Ok(None), super::row::only)?;
        // Ends if the last call of placement made no progress: no instance is left, another worker
        // holds the placement lock, or another transaction holds a lock on the first instance that
        // is left.
        match more {
            Some(reached) if reached > before => before = reached,
            _ => return Ok(()),
        }
    }
}

/// Checks up to `limit` lanes and partition keys. Returns how many of them had waiting instances
/// but no instance that may run. In each of these, the repair gives one waiting instance a new
/// arrival number, so that the next placement processes that instance.
pub(crate) async fn repair(
    connection: &Connection,
    rounds: &mut RepairCursor,
    limit: i32,
) -> Result<i32, Fault> {
    let params: &[Param<'_>] = &[
        &rounds.lane.0,
        &rounds.lane.1,
        &rounds.partition.0,
        &rounds.partition.1,
        &limit,
    ];
    let rows = connection.query(&REPAIR, params).await?;
    let Some(row) = rows.first() else {
        return Ok(0);
    };
    let text = |name| named::<Option<String>>(row, name).map(Option::unwrap_or_default);
    rounds.lane = (text("lane_tenant")?, text("lane_key")?);
    rounds.partition = (text("tenant")?, text("key")?);
    named(row, "repaired")
}

/// The operation by which an operator unblocks a lane that a failed instance blocks.
#[derive(Debug, Clone)]
pub(crate) enum Unblock {
    /// `durable lanes retry`: the failed instance runs again, at its lane position.
    Retry,
    /// `durable lanes skip`: the failed instance leaves the lane and stays failed, and the next
    /// instance of the lane may run.
    Skip,
    /// `durable lanes discard`: the operator cancels the failed instance with this reason, and the
    /// next instance of the lane may run.
    Discard(String),
}

/// Unblocks a lane. Returns the id of the instance that blocked the lane, and the queue, priority
/// and due time for which the caller wakes the pickers. Returns `None` if the lane is not blocked.
pub(crate) async fn unblock(
    connection: &Connection,
    lane: &LaneKey,
    act: &Unblock,
) -> Result<Option<(i64, WakeRange)>, Fault> {
    let (tenant, key) = (lane.tenant(), lane.key());
    let rows = match act {
        Unblock::Retry => connection.act_alone(&RETRY, &[&tenant, &key]).await?,
        Unblock::Skip => connection.act_alone(&SKIP, &[&tenant, &key]).await?,
        Unblock::Discard(why) => {
            connection
                .act_alone(&DISCARD, &[&tenant, &key, &why.as_str()])
                .await?
        }
    };
    rows.first()
        .map(|row| {
            Ok((
                named(row, "id")?,
                (
                    named(row, "queue")?,
                    named(row, "priority")?,
                    named(row, "eligible_at")?,
                ),
            ))
        })
        .transpose()
}

/// Returns how many instances are in lanes, and how many lanes are blocked. Each number is counted
/// up to 10,001.
pub(crate) async fn depth(connection: &Connection) -> Result<(i64, i64), Fault> {
    let rows = connection.query(&DEPTH, &[]).await?;
    rows.first().map_or(Ok((0, 0)), |row| {
        Ok((named(row, "depth")?, named(row, "blocked")?))
    })
}
