//! Queues: pause, resume, depth; and rows that were set aside.

use super::{connection::Connection, fault::Fault, row::column, sql};

sql!(PAUSE, "pause.sql", [TEXT, TEXT]);
sql!(RESUME, "resume.sql", [TEXT]);
sql!(DEPTH, "depth.sql", [TEXT, INT2_ARRAY]);
sql!(UNSTICK, "unstick.sql", [TEXT_ARRAY]);

/// Nothing more is claimed from this queue until it is resumed.
pub(crate) async fn pause(connection: &Connection, queue: &str, by: &str) -> Result<(), Fault> {
    connection.query(&PAUSE, &[&queue, &by]).await.map(drop)
}

/// Open it again. Answers whether it was paused.
pub(crate) async fn resume(connection: &Connection, queue: &str) -> Result<bool, Fault> {
    Ok(!connection.query(&RESUME, &[&queue]).await?.is_empty())
}

/// How many rows of a queue are due, counted up to 10,001.
pub(crate) async fn depth(connection: &Connection, queue: &str, priorities: &[i16]) -> Result<i64, Fault> {
    let rows = connection.query(&DEPTH, &[&queue, &priorities]).await?;
    rows.first().map_or(Ok(0), |row| column(row, 0))
}

/// A build that knows these machines has come: what another build could not decode gets another try.
pub(crate) async fn unstick(connection: &Connection, machines: &[String]) -> Result<usize, Fault> {
    Ok(connection.query(&UNSTICK, &[&machines]).await?.len())
}
