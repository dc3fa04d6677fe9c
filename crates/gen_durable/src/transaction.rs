//! Transactions: of the pool, of a caller, and of a step.

use std::{fmt, ops::Deref};

use tokio_postgres::{Client, Row, types::Type};

use crate::{
    error::Error,
    model::step_result::StepResult,
    store::{
        commit::NextInputs,
        connection::Param,
        fault::Fault,
        step_tx::{self, Owned},
        target::Target,
        tx::{OpenTx, Session},
    },
};

/// A transaction on one of the pool's connections. `Tx` dereferences to a `tokio_postgres::Client`,
/// with all its methods.
///
/// If a caller drops the transaction without [`commit`](Tx::commit), the transaction is rolled
/// back, and the pool closes its connection and does not use it again.
pub struct Tx {
    open: OpenTx,
}

impl Tx {
    pub(crate) fn new(open: OpenTx) -> Tx {
        Tx { open }
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

    pub(crate) async fn finish(self, word: &str) -> Result<(), Fault> {
        self.open.finish(word).await
    }
}

impl Deref for Tx {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.open
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

impl Session for Tx {
    type Row = Row;
    async fn rows(
        &mut self,
        text: String,
        params: &[(Param<'_>, Type)],
    ) -> Result<Vec<Row>, Fault> {
        self.open.rows(text, params).await
    }
}

/// A transaction in which the client can run its statements: a [`Tx`], or a caller's
/// `tokio_postgres::Transaction`. With the feature `sqlx`, a caller's `sqlx::Transaction`,
/// `PgConnection` or `PoolConnection` is such a transaction too.
pub trait Transaction: Session {}
impl<T: Session> Transaction for T {}

/// A step's own transaction: a [`Tx`] from [`Context::begin`](crate::Context::begin), or with the
/// feature `sqlx` a `sqlx::Transaction` of the host's own pool.
/// [`Transition::within`](crate::Transition::within) accepts either.
pub struct StepTx(Box<dyn Owned>);

impl StepTx {
    /// Writes the step result into the step's transaction and commits the transaction. If the
    /// worker has lost the claim, rolls the transaction back and returns `None`.
    pub(crate) async fn write_and_commit(
        self,
        target: &Target,
        result: &StepResult,
    ) -> Result<Option<NextInputs>, Fault> {
        step_tx::write_and_commit(self.0, target, result).await
    }
}

impl From<Tx> for StepTx {
    fn from(tx: Tx) -> StepTx {
        StepTx(Box::new(tx.open))
    }
}

#[cfg(feature = "sqlx")]
impl From<sqlx::Transaction<'static, sqlx::Postgres>> for StepTx {
    fn from(tx: sqlx::Transaction<'static, sqlx::Postgres>) -> StepTx {
        StepTx(Box::new(tx))
    }
}

impl fmt::Debug for StepTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepTx")
    }
}
