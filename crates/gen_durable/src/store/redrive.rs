//! Statements about parked events: an operator marks them for a redrive, and a worker applies them.

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::named,
    sql,
    target::Target,
    tx::{Session, query_in},
};

sql!(REDRIVE, "redrive.sql", [TEXT, TEXT, INT8]);
sql!(REDRIVES, "redrives_due.sql", [TEXT_ARRAY]);
sql!(REDRIVEN, "redriven.sql", [TEXT, TEXT, INT8, TEXT]);

/// Marks parked events of a scope for a redrive. Returns how many events it marked.
pub(crate) async fn mark(
    connection: &Connection,
    tenant: &str,
    projection: &str,
    position: Option<i64>,
) -> Result<usize, Fault> {
    Ok(connection
        .act_alone(&REDRIVE, &[&tenant, &projection, &position])
        .await?
        .len())
}

/// Returns the parked events that an operator has marked for a redrive.
pub(crate) async fn marked(
    connection: &Connection,
    projections: &[&'static str],
) -> Result<Vec<(String, String, i64)>, Fault> {
    let rows = connection.query(&REDRIVES, &[&projections]).await?;
    rows.iter()
        .map(|row| {
            Ok((
                named(row, "tenant")?,
                named(row, "projection")?,
                named(row, "position")?,
            ))
        })
        .collect()
}

/// Records that a redrive has applied a parked event, in the transaction that applied the event.
/// Returns `false` if the event was not parked any more.
pub(crate) async fn applied(
    tx: &mut impl Session<Row = Row>,
    target: &Target,
    (tenant, projection, position): (&str, &str, i64),
) -> Result<bool, Fault> {
    let params: &[Param<'_>] = &[&tenant, &projection, &position, &None::<&str>];
    Ok(!query_in(tx, target, &REDRIVEN, params).await?.is_empty())
}

/// Records that a redrive of a parked event failed.
pub(crate) async fn failed(
    connection: &Connection,
    (tenant, projection, position): (&str, &str, i64),
    error: &str,
) -> Result<(), Fault> {
    connection
        .query(&REDRIVEN, &[&tenant, &projection, &position, &Some(error)])
        .await
        .map(drop)
}
