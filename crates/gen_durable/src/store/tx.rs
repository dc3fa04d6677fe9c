//! A transaction as an owned value: a step's own, or a caller's.

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

/// A transaction of the pool's own. Everything that a `tokio_postgres::Client` can do is there by deref.
///
/// Dropped without [`commit`](Tx::commit), it is rolled back: its connection is closed, never handed on.
pub struct Tx {
    client: Option<Link>,
    pool: Arc<Inner>,
    /// A place among the pool's transactions, given back when this ends.
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

    /// Make it so. When this has returned, it is durable.
    pub async fn commit(self) -> Result<(), Error> {
        self.finish("commit")
            .await
            .map_err(|fault| fault.into_error("commit a transaction"))
    }

    /// Undo it. (Dropping it does the same, and costs the connection.)
    pub async fn rollback(self) -> Result<(), Error> {
        self.finish("rollback")
            .await
            .map_err(|fault| fault.into_error("roll a transaction back"))
    }

    pub(crate) async fn finish(mut self, word: &str) -> Result<(), Fault> {
        let Some(client) = self.client.take() else {
            return Ok(());
        };
        // A transaction in which a statement failed answers COMMIT with a rollback and no error: so it is asked first.
        let text = if word == "commit" {
            "select 1; commit"
        } else {
            word
        };
        answered(&self.pool.target, client.batch_execute(text)).await?;
        // Only a connection that is known to be outside any transaction may serve again.
        self.pool.keep(client);
        Ok(())
    }
}

/// A transaction that is dropped may have a statement under way: it would go on in the server, with its locks.
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
            .expect("a transaction has its connection until it ends")
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

/// Anything that an act can ride in: our own [`Tx`], or a caller's `tokio_postgres::Transaction`. With the feature `sqlx` also
/// a caller's `sqlx::Transaction`, `PgConnection` or `PoolConnection`.
pub trait Transaction: sealed::Sealed {}
impl<T: sealed::Sealed> Transaction for T {}

pub(crate) mod sealed {
    use super::{Fault, Fields, Param, Row, Type};

    pub trait Sealed: Send {
        /// A row of its driver's answers.
        type Row: Fields;

        /// One statement, without a name: it works through every pooler and leaves nothing behind.
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

/// One of our statements in a transaction that is not ours to end.
pub(crate) async fn ride<T: Transaction>(
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
    answered(target, tx.rows(target.render(sql.text), &typed)).await
}

/// An answer within the time that every statement has, or the news that the connection is lost: an instance must not hang
/// on a silent network. Whoever gets that news lets the connection go.
pub(crate) async fn answered<T, E: Into<Fault>>(
    target: &Target,
    sent: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault> {
    let limit = target.statement_timeout();
    match tokio::time::timeout(limit, sent).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Fault::Lost(format!("no answer within {limit:?}"))),
    }
}
