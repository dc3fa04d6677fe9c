//! A step's own transaction, of whichever driver: the engine writes the ending into it, and commits.

use std::fmt;

use futures_util::future::BoxFuture;

use super::{
    fault::Fault,
    settle::{Ending, Found, settle_within},
    target::Target,
    tx::Tx,
};

/// A step's own transaction: a [`Tx`] from [`Context::begin`](crate::Context::begin), or with the feature `sqlx` a
/// `sqlx::Transaction` of the host's own pool. [`Transition::within`](crate::Transition::within) takes either as it is.
pub struct StepTx(Box<dyn Owned>);

/// What the engine does with a transaction that a step hands over. An owned value behind one pointer: the engine is compiled
/// once, whatever drivers there are.
pub(crate) trait Owned: Send {
    /// Write the ending: one statement. `None`: the claim was lost, and the transaction must not commit.
    fn settle<'a>(
        &'a mut self,
        target: &'a Target,
        ending: &'a Ending,
    ) -> BoxFuture<'a, Result<Option<Found>, Fault>>;

    /// Commit. `Lost`: it happened, or it did not.
    fn commit(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>>;

    /// Undo it. Dropping it does the same, less kindly to its connection.
    fn rollback(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>>;
}

impl Owned for Tx {
    fn settle<'a>(
        &'a mut self,
        target: &'a Target,
        ending: &'a Ending,
    ) -> BoxFuture<'a, Result<Option<Found>, Fault>> {
        Box::pin(settle_within(self, target, ending))
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

    /// Write the ending into it and commit. `None`: the claim was lost, and nothing of it happened.
    pub(crate) async fn conclude(
        self,
        target: &Target,
        ending: &Ending,
    ) -> Result<Option<Found>, Fault> {
        let StepTx(mut tx) = self;
        match tx.settle(target, ending).await? {
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
