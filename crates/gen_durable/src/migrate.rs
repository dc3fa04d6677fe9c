//! Installing and upgrading the schema.
//!
//! [`Pool::migrate`](crate::Pool::migrate) installs everything;
//! [`Pool::migrations`](crate::Pool::migrations) shows, prints and reverts single migrations.

pub use crate::model::migration::{DEFAULT_SCHEMA, MigrationStatus};

use crate::{error::Error, pool::Pool, store::migrate};

/// The migrations of a pool's schema: `pool.migrations().up(None)`.
#[derive(Debug, Clone)]
pub struct Migrations {
    pool: Pool,
}

impl Migrations {
    pub(crate) fn new(pool: Pool) -> Migrations {
        Migrations { pool }
    }

    /// Migrates the schema up, to version `to` or to the version of this build. Returns the
    /// versions that it applied.
    ///
    /// # Errors
    ///
    /// Fails if this build does not know the version, if the database cannot be reached, or if it
    /// refuses a statement.
    pub async fn up(&self, to: Option<i32>) -> Result<Vec<i32>, Error> {
        migrate::up(&self.pool.connections, to).await
    }

    /// Migrates the schema down to version `to`. Version 0 removes the whole schema and all its
    /// data. Returns the versions that it undid.
    ///
    /// # Errors
    ///
    /// Fails if this build does not know the version, if the database cannot be reached, or if it
    /// refuses a statement.
    pub async fn down(&self, to: i32) -> Result<Vec<i32>, Error> {
        migrate::down(&self.pool.connections, to).await
    }

    /// Returns the installed tables that a [`down`](Migrations::down) to this version deletes.
    ///
    /// # Errors
    ///
    /// Fails if this build does not know the version, or if the database cannot be reached.
    pub async fn tables_dropped_by(&self, to: i32) -> Result<Vec<&'static str>, Error> {
        migrate::tables_dropped_by(&self.pool.connections, to).await
    }

    /// Returns the installed schema version, and the schema version that this build needs.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn status(&self) -> Result<MigrationStatus, Error> {
        migrate::status(&self.pool.connections).await
    }

    /// Checks whether this build can work with the installed schema.
    ///
    /// # Errors
    ///
    /// Fails if the schema is missing, too old or too new; the message says what to do. Also fails
    /// if the database cannot be reached.
    pub async fn check(&self) -> Result<(), Error> {
        migrate::check(&self.pool.connections).await
    }

    /// Returns the SQL that migrates the schema from one version to another, up or down, for the
    /// migration tool of the host.
    ///
    /// # Errors
    ///
    /// Fails if this build does not know one of the versions.
    pub fn sql(&self, from: i32, to: Option<i32>) -> Result<String, Error> {
        migrate::print(&self.pool.connections.target, from, to)
    }

    /// Grants two existing roles their rights: `runtime` may run steps and make calls, but no DDL;
    /// `reader` may only read.
    ///
    /// # Errors
    ///
    /// Fails if a name cannot be the name of a role, if the database cannot be reached, or if it
    /// refuses the grants.
    pub async fn grant(&self, runtime: &str, reader: &str) -> Result<(), Error> {
        migrate::grant(&self.pool.connections, runtime, reader).await
    }

    /// Returns the SQL statements that [`grant`](Migrations::grant) sends.
    ///
    /// # Errors
    ///
    /// Fails if a name cannot be the name of a role.
    pub fn grants_sql(&self, runtime: &str, reader: &str) -> Result<String, Error> {
        migrate::grants(&self.pool.connections.target, runtime, reader)
    }
}
