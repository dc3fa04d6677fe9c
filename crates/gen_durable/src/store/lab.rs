//! Statements that only `Lab`, the test environment, uses: they set up the schema and the roles of
//! the `Lab`, and move its clock.

use jiff::Timestamp;

use super::{connection::Connection, fault::Fault, row::only, sql};

sql!(CLOCK_SET, "lab_clock_set.sql", [TIMESTAMPTZ]);
sql!(CLOCK_READ, "lab_clock_read.sql", []);
sql!(NEXT_DUE, "lab_next_due.sql", [TIMESTAMPTZ, TEXT_ARRAY]);
sql!(HELD_GROUPS, "lab_held_groups.sql", []);

const SETUP: &str = include_str!("sql/lab_setup.sql");
const ROLES: &str = include_str!("sql/lab_roles.sql");

/// The two database roles to which a `Lab` grants rights.
pub(crate) const RUNTIME_ROLE: &str = "gen_durable_runtime";
pub(crate) const READER_ROLE: &str = "gen_durable_reader";

/// Replaces the schema's clock by a clock that changes only when a test sets it.
pub(crate) async fn freeze_clock(connection: &Connection) -> Result<(), Fault> {
    connection.batch(&connection.target().render(SETUP)).await
}

/// Creates the runtime role and the reader role, if the database user may create roles.
pub(crate) async fn make_roles(connection: &Connection) -> Result<(), Fault> {
    connection.batch(ROLES).await
}

/// Grants the runtime role all rights on the tables and sequences that the owner of the schema
/// creates in this schema from now on.
pub(crate) async fn grant_new_tables(connection: &Connection) -> Result<(), Fault> {
    let grants = ["tables", "sequences"].map(|kind| {
        format!(
            "alter default privileges in schema {} grant all on {kind} to {RUNTIME_ROLE}",
            connection.target().schema()
        )
    });
    connection.batch(&grants.join(";")).await
}

pub(crate) async fn drop_schema(connection: &Connection) -> Result<(), Fault> {
    connection
        .batch(&format!(
            "drop schema if exists {} cascade",
            connection.target().schema()
        ))
        .await
}

pub(crate) async fn set_clock(connection: &Connection, to: Timestamp) -> Result<(), Fault> {
    connection.query(&CLOCK_SET, &[&to]).await.map(drop)
}

pub(crate) async fn clock(connection: &Connection) -> Result<Timestamp, Fault> {
    let rows = connection.query(&CLOCK_READ, &[]).await?;
    only(rows.first().ok_or_else(Fault::no_row)?)
}

/// Returns the earliest future due time of an instance, a deadline, a timer or a retry of a
/// projection that is not after `until`, if there is one.
pub(crate) async fn next_due(
    connection: &Connection,
    until: Timestamp,
    schedules: &[String],
) -> Result<Option<Timestamp>, Fault> {
    let rows = connection.query(&NEXT_DUE, &[&until, &schedules]).await?;
    rows.first().map_or(Ok(None), only)
}

/// Returns the groups of instances that wait for the end of a claim in their limits.
pub(crate) async fn held_groups(connection: &Connection) -> Result<Vec<String>, Fault> {
    let rows = connection.query(&HELD_GROUPS, &[]).await?;
    rows.iter().map(only).collect()
}
