//! What a step is handed.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;

use crate::{
    error::Error,
    id::Id,
    machine::Machine,
    store::{pool::Pool, row::Claimed, tx::Tx},
};

/// What a step is handed: the host's world, who it is, and what time it is.
#[non_exhaustive]
pub struct Context<'a, M: Machine> {
    /// What the host gave the engine.
    pub app: &'a M::App,
    /// This instance.
    pub id: Id<M>,
    /// How many runs of this step have failed before.
    pub attempt: u32,
    /// The database's time when the step was claimed. The one clock: tests move it.
    pub now: Timestamp,
    pub(crate) row: &'a Claimed,
    /// Whether it began a transaction of its own: then an error of the driver is news of our own database.
    pub(crate) began: AtomicBool,
    pub(crate) pool: &'a Pool,
}

impl<M: Machine> Context<'_, M> {
    /// The same for every run and retry of this visit of this step, and for no other: hand it to the outside world, so
    /// that what is done twice counts once.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}/{}", M::NAME, self.id, self.row.visit)
    }

    /// The number of this claim. It only ever rises: a store outside that remembers the largest it has seen can refuse
    /// the write of a worker that was stopped, lost its claim, and woke again.
    pub fn fencing_token(&self) -> i64 {
        self.row.claim_epoch
    }

    /// Whose work this is.
    pub fn tenant(&self) -> &str {
        &self.row.tenant
    }

    /// The W3C trace context of the enqueue, if there was one.
    pub fn traceparent(&self) -> Option<&str> {
        self.row.traceparent.as_deref()
    }

    /// Begin a transaction of the step's own, to write in and to end the step with: `next(…).within(tx)`.
    pub async fn begin(&self) -> Result<Tx, Error> {
        self.began.store(true, Ordering::Relaxed);
        self.pool.begin().await
    }
}

impl<M: Machine> fmt::Debug for Context<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("machine", &M::NAME)
            .field("id", &self.id)
            .field("attempt", &self.attempt)
            .finish()
    }
}
