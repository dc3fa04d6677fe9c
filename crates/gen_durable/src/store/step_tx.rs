//! A step's own transaction, of the driver `tokio_postgres` or `sqlx`: the engine writes the step
//! result into the transaction, and commits the transaction.

use std::fmt;

use futures_util::future::BoxFuture;

use super::{
    fault::Fault,
    step_results::{NextInputs, StepResult, write_within},
    target::Target,
    tx::Tx,
};

/// A step's own transaction: a [`Tx`] from [`Context::begin`](crate::Context::begin), or with the
/// feature `sqlx` a `sqlx::Transaction` of the host's own pool.
/// [`Transition::within`](crate::Transition::within) accepts either.
pub struct StepTx(Box<dyn Owned>);

/// The operations of the engine on a transaction that a step returns. The engine calls these
/// operations through a trait object, so that its code is compiled once for all drivers.
pub(crate) trait Owned: Send {
    /// Writes the step result in one statement. Returns `None` if the worker has lost the claim;
    /// the caller must then not commit the transaction.
    fn write<'a>(
        &'a mut self,
        target: &'a Target,
        result: &'a StepResult,
    ) -> BoxFuture<'a, Result<Option<NextInputs>, Fault>>;

    /// Commits the step's transaction. After [`Fault::Lost`] it is unknown whether the transaction
    /// has committed.
    fn commit(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>>;

    /// Rolls the step's transaction back. Dropping the transaction does the same, but a [`Tx`] that
    /// is dropped closes its connection too.
    fn rollback(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>>;
}

impl Owned for Tx {
    fn write<'a>(
        &'a mut self,
        target: &'a Target,
        result: &'a StepResult,
    ) -> BoxFuture<'a, Result<Option<NextInputs>, Fault>> {
        Box::pin(write_within(self, target, result))
    }
    fn commit(self: Box<Self>, _: &Target) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move { self.finish("commit").await })
    }
    fn rollback(self: Box<Self>, _: &Target) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move { self.finish("rollback").await })
    }
}

impl StepTx {
    pub(super) fn new(tx: impl Owned + 'static) -> StepTx {
        StepTx(Box::new(tx))
    }

    /// Writes the step result into the step's transaction and commits the transaction. If the
    /// worker has lost the claim, rolls the transaction back and returns `None`.
    pub(crate) async fn conclude(
        self,
        target: &Target,
        result: &StepResult,
    ) -> Result<Option<NextInputs>, Fault> {
        let StepTx(mut tx) = self;
        match tx.write(target, result).await? {
            Some(found) => tx.commit(target).await.map(|()| Some(found)),
            None => {
                drop(tx.rollback(target).await);
                Ok(None)
            }
        }
    }
}

impl From<Tx> for StepTx {
    fn from(tx: Tx) -> StepTx {
        StepTx::new(tx)
    }
}

impl fmt::Debug for StepTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepTx")
    }
}
