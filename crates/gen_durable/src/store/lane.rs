//! Lanes and partition keys, from outside the hot path: give out places, repair what lost its head, let a lane go on that
//! stands still.

use super::{
    connection::{Connection, Param},
    fault::Fault,
    operate::Again,
    row::column,
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

/// Where a repair goes on: it looks at a part of the lanes and keys at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds {
    lane: (String, String),
    partition: (String, String),
}

/// Give out places and turns to all that arrived. A pick does that by itself; this is for who does not pick.
#[cfg(feature = "testing")]
pub(crate) async fn place(connection: &Connection) -> Result<(), Fault> {
    let mut before = 0;
    loop {
        let rows = connection.query(&PLACE, &[]).await?;
        let more: Option<i64> = rows.first().map_or(Ok(None), |row| column(row, 0))?;
        // No further than before: somebody else is at it, or the first that is left is held by somebody.
        match more {
            Some(reached) if reached > before => before = reached,
            _ => return Ok(()),
        }
    }
}

/// Look after up to `limit` lanes and keys. Answers how many had somebody waiting and nobody at their head.
pub(crate) async fn repair(
    connection: &Connection,
    rounds: &mut Rounds,
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
    let text = |index| column::<Option<String>>(row, index).map(Option::unwrap_or_default);
    rounds.lane = (text(0)?, text(1)?);
    rounds.partition = (text(2)?, text(3)?);
    column(row, 4)
}

/// What becomes of a head that failed for good and blocks its lane.
#[derive(Debug, Clone)]
pub(crate) enum Unblock {
    /// It runs again, in its place.
    Retry,
    /// It stays failed, and the lane goes on.
    Skip,
    /// It is cancelled, for this reason, and the lane goes on.
    Discard(String),
}

/// Let a lane go on that stands still. Answers who blocked it and where to look; `None`: it is not blocked.
pub(crate) async fn unblock(
    connection: &Connection,
    lane: &LaneKey,
    act: &Unblock,
) -> Result<Option<(i64, Again)>, Fault> {
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
                column(row, 0)?,
                (column(row, 1)?, column(row, 2)?, column(row, 3)?),
            ))
        })
        .transpose()
}

/// How many stand in lanes, and how many lanes stand still; each counted up to 10,001.
pub(crate) async fn depth(connection: &Connection) -> Result<(i64, i64), Fault> {
    let rows = connection.query(&DEPTH, &[]).await?;
    rows.first()
        .map_or(Ok((0, 0)), |row| Ok((column(row, 0)?, column(row, 1)?)))
}
