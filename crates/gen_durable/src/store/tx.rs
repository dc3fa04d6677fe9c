//! Transactions as values: a transaction of a step, or a transaction of a caller.

use std::{fmt, ops::Deref, sync::Arc};

use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::{Client, Row, types::Type};

use super::{
    Sql,
    connection::{Param, cancel_in_background},
    fault::Fault,
    link::Link,
    pool::Inner,
    row::Fields,
    target::Target,
};
use crate::error::Error;

/// A transaction on one of the pool's connections. `Tx` dereferences to a `tokio_postgres::Client`,
/// with all its methods.
///
/// If a caller drops the transaction without [`commit`](Tx::commit), the transaction is rolled
/// back, and the pool closes its connection and does not use it again.
pub struct Tx {
    client: Option<Link>,
    pool: Arc<Inner>,
    /// The permit of the pool for this transaction. The end of the transaction returns the permit
    /// to the pool.
    _permit: OwnedSemaphorePermit,
}

impl Tx {
    pub(crate) fn new(client: Link, pool: Arc<Inner>, permit: OwnedSemaphorePermit) -> Tx {
        Tx {
            client: Some(client),
            pool,
            _permit: permit,
        }
    }

    /// Commits the transaction. The changes of the transaction are durable when this function has
    /// returned without an error.
    ///
    /// # Errors
    ///
    /// Fails if the database refuses the commit, or if a statement of the transaction has failed
    /// before. If the connection breaks, it is unknown whether the transaction has committed.
    pub async fn commit(self) -> Result<(), Error> {
        self.finish("commit")
            .await
            .map_err(|fault| fault.into_error("commit a transaction"))
    }

    /// Rolls the transaction back. Dropping the transaction does the same, but closes the
    /// connection.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks; the server then rolls the transaction back by itself.
    pub async fn rollback(self) -> Result<(), Error> {
        self.finish("rollback")
            .await
            .map_err(|fault| fault.into_error("roll back a transaction"))
    }

    pub(crate) async fn finish(mut self, word: &str) -> Result<(), Fault> {
        let Some(client) = self.client.take() else {
            return Ok(());
        };
        // If a statement of the transaction has failed, Postgres replies to COMMIT with a rollback
        // and no error. `select 1` fails in such a transaction, so the caller gets an error.
        let text = if word == "commit" {
            "select 1; commit"
        } else {
            word
        };
        within_timeout(&self.pool.target, client.batch_execute(text)).await?;
        // The pool may use a connection again only if the connection is known to be outside any
        // transaction.
        self.pool.keep(client);
        Ok(())
    }
}

/// Cancels the running statement of a transaction that its owner drops. Otherwise the server could
/// continue the statement, and the statement would keep its locks.
impl Drop for Tx {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            client.cut();
            cancel_in_background(&self.pool.runtime, &self.pool.target, client.cancel_token());
        }
    }
}

impl Deref for Tx {
    type Target = Client;
    #[allow(clippy::expect_used)] // The client leaves only with `finish`, which takes `self`.
    fn deref(&self) -> &Client {
        self.client
            .as_ref()
            .expect("a transaction keeps its connection until it ends")
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

/// A transaction in which the store can run its statements: a [`Tx`], or a caller's
/// `tokio_postgres::Transaction`. With the feature `sqlx`, a caller's `sqlx::Transaction`,
/// `PgConnection` or `PoolConnection` is such a transaction too.
pub trait Transaction: sealed::Sealed {}
impl<T: sealed::Sealed> Transaction for T {}

pub(crate) mod sealed {
    use super::{Fault, Fields, Param, Row, Type};

    pub trait Sealed: Send {
        /// The type of a result row of the driver.
        type Row: Fields;

        /// Sends one unnamed statement, which works through every pooler and leaves no prepared
        /// statement on the server.
        fn rows(
            &mut self,
            text: String,
            params: &[(Param<'_>, Type)],
        ) -> impl Future<Output = Result<Vec<Self::Row>, Fault>> + Send;
    }

    impl Sealed for super::Tx {
        type Row = Row;
        async fn rows(
            &mut self,
            text: String,
            params: &[(Param<'_>, Type)],
        ) -> Result<Vec<Row>, Fault> {
            Ok(self.query_typed(&text, params).await?)
        }
    }
    impl Sealed for tokio_postgres::Transaction<'_> {
        type Row = Row;
        async fn rows(
            &mut self,
            text: String,
            params: &[(Param<'_>, Type)],
        ) -> Result<Vec<Row>, Fault> {
            Ok(self.query_typed(&text, params).await?)
        }
    }
}

/// Runs one statement of the store in a transaction that the caller ends.
pub(crate) async fn query_in<T: Transaction>(
    tx: &mut T,
    target: &Target,
    sql: &'static Sql,
    params: &[Param<'_>],
) -> Result<Vec<T::Row>, Fault> {
    target.count(sql.name);
    let typed: Vec<(Param<'_>, Type)> = params
        .iter()
        .copied()
        .zip(sql.types.iter().cloned())
        .collect();
    within_timeout(target, tx.rows(target.render(sql.text), &typed)).await
}

/// Waits for the reply to a statement until the statement timeout. After the timeout the connection
/// counts as lost, so that an instance does not wait forever on a silent network. A caller that
/// gets [`Fault::Lost`] drops the connection.
pub(crate) async fn within_timeout<T, E: Into<Fault>>(
    target: &Target,
    sent: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault> {
    let limit = target.statement_timeout();
    match tokio::time::timeout(limit, sent).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Fault::Lost(format!("no answer within {limit:?}"))),
    }
}
