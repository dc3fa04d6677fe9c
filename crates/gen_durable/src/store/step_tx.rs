//! A step's own transaction, of the driver `tokio_postgres` or `sqlx`: the engine writes the step
//! result into the transaction, and commits the transaction.

use futures_util::future::BoxFuture;

use super::{
    commit::{NextInputs, write_within},
    fault::Fault,
    target::Target,
    tx::OpenTx,
};
use crate::model::step_result::StepResult;

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

    /// Rolls the step's transaction back. Dropping the transaction does the same, but an
    /// [`OpenTx`] that is dropped closes its connection too.
    fn rollback(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>>;
}

impl Owned for OpenTx {
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

/// Writes the step result into the step's transaction and commits the transaction. If the worker
/// has lost the claim, rolls the transaction back and returns `None`.
pub(crate) async fn write_and_commit(
    mut tx: Box<dyn Owned>,
    target: &Target,
    result: &StepResult,
) -> Result<Option<NextInputs>, Fault> {
    match tx.write(target, result).await? {
        Some(found) => tx.commit(target).await.map(|()| Some(found)),
        None => {
            drop(tx.rollback(target).await);
            Ok(None)
        }
    }
}
