//! The pool: a database, a schema in it, and the connections that a host opens to it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    error::Error,
    migrate::Migrations,
    model::migration::DEFAULT_SCHEMA,
    store::{
        migrate,
        pool::{Connections, TRANSACTIONS},
        target::Target,
    },
    transaction::Tx,
};

/// A database and a schema in it. A `Pool` is cheap to clone; all clones share their connections.
///
/// ```no_run
/// # async fn demo() -> Result<(), gen_durable::Error> {
/// let pool = gen_durable::Pool::connect("postgres://app@localhost/shop").await?;
/// pool.migrate().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Pool {
    pub(crate) connections: Arc<Connections>,
}

impl Pool {
    /// Connects to this database (`postgres://…`, or `host=… user=…`) and uses the schema
    /// `gen_durable`. The connection string may name several hosts,
    /// `target_session_attrs=read-write` and `sslmode`.
    ///
    /// # Errors
    ///
    /// Fails if the connection string is invalid, or if the database cannot be reached.
    pub async fn connect(url: &str) -> Result<Pool, Error> {
        Pool::connect_to(url, DEFAULT_SCHEMA).await
    }

    /// Connects as [`connect`](Pool::connect) does, and uses a schema of another name.
    ///
    /// # Errors
    ///
    /// Fails if the connection string or the name of the schema is invalid, or if the database
    /// cannot be reached.
    pub async fn connect_to(url: &str, schema: &str) -> Result<Pool, Error> {
        let pool = Pool::open(url, schema, TRANSACTIONS)?;
        pool.connections.reach().await?;
        Ok(pool)
    }

    /// Creates a pool without connecting, for a process that must start while its database is not
    /// reachable. At most `transactions` of its transactions are open at once.
    ///
    /// # Errors
    ///
    /// Fails if the connection string or the name of the schema is invalid, or if the thread for
    /// calls cannot be started.
    pub fn open(url: &str, schema: &str, transactions: usize) -> Result<Pool, Error> {
        Pool::on(Target::new(url, schema)?, transactions)
    }

    /// Creates a pool as [`open`](Pool::open) does. The pool closes its connections after another
    /// time without use, and a worker that uses the pool rests after that time. For the tests of
    /// this crate.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn open_with_idle_time(
        url: &str,
        schema: &str,
        transactions: usize,
        idle_after: std::time::Duration,
    ) -> Result<Pool, Error> {
        let target = Target::new(url, schema)?.idle_for(idle_after);
        Pool::on(target, transactions)
    }

    pub(crate) fn on(target: Target, transactions: usize) -> Result<Pool, Error> {
        let connections = Connections::open(target, transactions)?;
        Ok(Pool { connections })
    }

    /// Creates a pool for the same database and schema, with connections of its own that have this
    /// application name. Use the new pool for reads that must not delay other work. The new pool
    /// connects when a caller first uses it.
    ///
    /// # Errors
    ///
    /// Fails if the thread for calls cannot be started.
    pub fn beside(&self, application_name: &str) -> Result<Pool, Error> {
        Pool::on(self.connections.target.beside(application_name), 1)
    }

    /// Returns how often callers sent each statement through this pool, by the name of the
    /// statement.
    pub fn statements(&self) -> BTreeMap<&'static str, u64> {
        self.connections.target.sent()
    }

    /// Returns the name of the schema that this pool uses.
    pub fn schema(&self) -> &str {
        self.connections.target.schema()
    }

    /// Migrates the schema up to the version of this build. Many processes may call this function
    /// at once. If the schema has that version, the function does nothing.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses a migration.
    pub async fn migrate(&self) -> Result<(), Error> {
        migrate::up(&self.connections, None).await.map(drop)
    }

    /// Returns the migrations of the schema, to apply them, undo them, check them or print them as
    /// SQL.
    pub fn migrations(&self) -> Migrations {
        Migrations::new(self.clone())
    }

    /// Begins a transaction on one of the pool's connections.
    ///
    /// # Errors
    ///
    /// Fails if no connection becomes free within 10 seconds, or if the database cannot be reached.
    pub async fn begin(&self) -> Result<Tx, Error> {
        self.connections.begin().await.map(Tx::new)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connections.fmt(f)
    }
}
