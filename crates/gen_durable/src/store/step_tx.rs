//! A step's own transaction, of either driver: the engine writes the step result into it, and
//! commits it.

use std::fmt;

use futures_util::future::BoxFuture;

use super::{
    fault::Fault,
    step_results::{StepResult, NextInputs, settle_within},
    target::Target,
    tx::Tx,
};

/// A step's own transaction: a [`Tx`] from [`Context::begin`](crate::Context::begin), or with the
/// feature `sqlx` a `sqlx::Transaction` of the host's own pool.
/// [`Transition::within`](crate::Transition::within) accepts either.
pub struct StepTx(Box<dyn Owned>);

/// The operations of the engine on a transaction that a step returns. It is an owned value behind
/// one pointer, so that the engine is compiled once for all drivers.
pub(crate) trait Owned: Send {
    /// Writes the step result in one statement. Returns `None` if the claim was lost; the
    /// transaction must then not commit.
    fn settle<'a>(
        &'a mut self,
        target: &'a Target,
        result: &'a StepResult,
    ) -> BoxFuture<'a, Result<Option<NextInputs>, Fault>>;

    /// Commits. After [`Fault::Lost`] it is unknown whether the transaction has committed.
    fn commit(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>>;

    /// Rolls back. Dropping the transaction does the same, but a [`Tx`] then also closes its
    /// connection.
    fn rollback(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>>;
}

impl Owned for Tx {
    fn settle<'a>(
        &'a mut self,
        target: &'a Target,
        result: &'a StepResult,
    ) -> BoxFuture<'a, Result<Option<NextInputs>, Fault>> {
        Box::pin(settle_within(self, target, result))
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

    /// Writes the step result into the transaction and commits it. Returns `None` if the claim was
    /// lost; the transaction is then rolled back.
    pub(crate) async fn conclude(
        self,
        target: &Target,
        result: &StepResult,
    ) -> Result<Option<NextInputs>, Fault> {
        let StepTx(mut tx) = self;
        match tx.settle(target, result).await? {
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
