//! Transactions in which the store runs its statements: on a connection of the pool, or of a
//! caller.

use std::{ops::Deref, sync::Arc};

use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::{Client, Row, types::Type};

use super::{
    Sql,
    connection::{Param, cancel_in_background},
    fault::Fault,
    link::Link,
    pool::Connections,
    row::Fields,
    target::Target,
};

/// A transaction that is open on one of the pool's connections. If its owner drops it without
/// [`finish`](OpenTx::finish), the transaction is rolled back, and the connection is closed.
pub(crate) struct OpenTx {
    client: Option<Link>,
    connections: Arc<Connections>,
    /// The permit of the pool for this transaction. The end of the transaction returns the permit
    /// to the pool.
    _permit: OwnedSemaphorePermit,
}

impl OpenTx {
    pub(crate) fn new(
        client: Link,
        connections: Arc<Connections>,
        permit: OwnedSemaphorePermit,
    ) -> OpenTx {
        OpenTx {
            client: Some(client),
            connections,
            _permit: permit,
        }
    }

    /// Ends the transaction with `commit` or `rollback`, and returns its connection to the pool.
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
        within_timeout(&self.connections.target, client.batch_execute(text)).await?;
        // The pool may use a connection again only if the connection is known to be outside any
        // transaction.
        self.connections.keep(client);
        Ok(())
    }
}

/// Cancels the running statement of a transaction that its owner drops. Otherwise the server could
/// continue the statement, and the statement would keep its locks.
impl Drop for OpenTx {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            client.cut();
            cancel_in_background(
                &self.connections.runtime,
                &self.connections.target,
                client.cancel_token(),
            );
        }
    }
}

impl Deref for OpenTx {
    type Target = Client;
    #[allow(clippy::expect_used)] // The client leaves only with `finish`, which takes `self`.
    fn deref(&self) -> &Client {
        self.client
            .as_ref()
            .expect("a transaction keeps its connection until it ends")
    }
}

/// A session with an open transaction, of either driver, in which the store runs its statements.
/// The trait is public because `Transaction` has it as its supertrait; users cannot name it.
pub trait Session: Send {
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

impl Session for OpenTx {
    type Row = Row;
    async fn rows(
        &mut self,
        text: String,
        params: &[(Param<'_>, Type)],
    ) -> Result<Vec<Row>, Fault> {
        Ok(self.query_typed(&text, params).await?)
    }
}
impl Session for tokio_postgres::Transaction<'_> {
    type Row = Row;
    async fn rows(
        &mut self,
        text: String,
        params: &[(Param<'_>, Type)],
    ) -> Result<Vec<Row>, Fault> {
        Ok(self.query_typed(&text, params).await?)
    }
}

/// Runs one statement of the store in a transaction that the caller ends.
pub(crate) async fn query_in<T: Session>(
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
