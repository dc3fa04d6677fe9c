//! Retention: settled instances leave after a while.

use jiff::Timestamp;

use super::{connection::Connection, fault::Fault, row::column, sql};

sql!(COLLECT, "collect.sql", [TIMESTAMPTZ, FLOAT8, INT4]);

/// Delete up to `limit` instances that settled more than `retention_seconds` ago, from a remembered start on. Answers
/// how many, and where the next batch may begin: below that the index holds nothing but what is already gone.
pub(crate) async fn collect(
    connection: &Connection,
    from: Timestamp,
    retention_seconds: f64,
    limit: i32,
) -> Result<(i64, Option<Timestamp>), Fault> {
    let rows = connection.query(&COLLECT, &[&from, &retention_seconds, &limit]).await?;
    match rows.first() {
        Some(row) => Ok((column(row, 0)?, column(row, 1)?)),
        None => Ok((0, None)),
    }
}
