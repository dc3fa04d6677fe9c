//! Lanes and partition keys, from outside the hot path: give out places, and repair what lost its head.

use super::{connection::Connection, fault::Fault, row::column, sql};

#[cfg(feature = "testing")]
sql!(PLACE, "place.sql", []);
sql!(REPAIR, "repair.sql", [TEXT, TEXT, TEXT, TEXT, INT4]);

/// Where a repair goes on: it looks at a part of the lanes and keys at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds {
    lane: (String, String),
    partition: (String, String),
}

/// Give out places and turns to all that arrived. A pick does that by itself; this is for who does not pick.
#[cfg(feature = "testing")]
pub(crate) async fn place(connection: &Connection) -> Result<(), Fault> {
    loop {
        let rows = connection.query(&PLACE, &[]).await?;
        let more: Option<i64> = rows.first().map_or(Ok(None), |row| column(row, 0))?;
        // Zero: somebody else is at it, or the very first is held by somebody.
        if more.is_none_or(|reached| reached == 0) {
            return Ok(());
        }
    }
}

/// Look after up to `limit` lanes and keys. Answers how many had somebody waiting and nobody at their head.
pub(crate) async fn repair(connection: &Connection, rounds: &mut Rounds, limit: i32) -> Result<i32, Fault> {
    let params: &[super::connection::Param<'_>] =
        &[&rounds.lane.0, &rounds.lane.1, &rounds.partition.0, &rounds.partition.1, &limit];
    let rows = connection.query(&REPAIR, params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let text = |index| column::<Option<String>>(row, index).map(Option::unwrap_or_default);
    rounds.lane = (text(0)?, text(1)?);
    rounds.partition = (text(2)?, text(3)?);
    column(row, 4)
}
