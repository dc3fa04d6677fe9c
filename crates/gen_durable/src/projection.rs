//! Projections: read models that are derived from the events of a tenant, stored in the host's own
//! tables.

pub use crate::{
    admin::{ListFailures, Projections, RunRequest, RunsRequest},
    event::Events,
    log::{Log, TrimLog},
    model::event::EventRow,
    model::projection::{
        Digest, FailureCursor, FailureState, ProjectionFailure, ProjectionInfo, ProjectionRun,
        RunKind, RunStatus, Scope, ScopeCursor, ScopeFilter, ScopeHealth, ScopeStatus,
    },
};

use std::fmt;

use tokio_postgres::types::ToSql;

use crate::{
    error::{Error, StepError},
    event::Recorded,
    policy::Policy,
    store::projections,
    transaction::Tx,
};

/// A read model that is derived from the events of a tenant. Register it with
/// [`EngineBuilder::project`](crate::engine::EngineBuilder::project).
///
/// One transaction commits the writes of [`apply`](Projection::apply) through `cx.tx` for a batch
/// of events, together with the new position of the scope. So each event counts exactly once, even
/// if a worker crashes. Therefore `apply` must write only through `cx.tx`, and depend on the events
/// alone: if it uses a clock or random numbers, a rebuild has a different result.
pub trait Projection: Send + Sync + 'static {
    /// The name of the projection in the database.
    const NAME: &'static str;
    /// The version of the projection's logic. Raise it when the logic changes. The existing rows
    /// are then rows of an older version, and operators see that a rebuild is due: see
    /// [`on_version_change`](Projection::on_version_change).
    const VERSION: u16 = 1;
    /// Whether the key of the projection's rows includes
    /// [`cx.generation`](ProjectionContext::generation). Readers then call
    /// `<schema>.generation(tenant, projection)` to learn which generation to read. A worker can
    /// do a shadow rebuild of such a projection while readers use it, and can verify it.
    const GENERATIONS: bool = false;
    /// The events that the projection reads.
    type Events: Events;

    /// Applies these events to the rows. Events arrive in order, without gaps, and once.
    ///
    /// # Errors
    /// The worker rolls the batch back, and retries its events according to
    /// [`policy`](Projection::policy).
    fn apply(
        &self,
        batch: &[Recorded<Self::Events>],
        cx: &mut ProjectionContext<'_>,
    ) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Deletes all rows of this tenant (and generation). The engine calls it before a rebuild in
    /// place, and for the old generation after readers have moved to a new one.
    ///
    /// # Errors
    /// The worker rolls the transaction back, and the run fails.
    fn clear(
        &self,
        cx: &mut ProjectionContext<'_>,
    ) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Returns a digest of the rows of this tenant and generation, without the generation itself;
    /// use [`ProjectionContext::digest`]. A worker cannot verify a projection without a digest.
    ///
    /// # Errors
    /// The worker rolls the transaction back, and the run fails.
    fn digest(
        &self,
        cx: &mut ProjectionContext<'_>,
    ) -> impl Future<Output = Result<Option<Digest>, StepError>> + Send {
        let _ = cx;
        async { Ok(None) }
    }

    /// Returns the attempts and pauses for a failed event, and the timeout of a batch.
    fn policy(&self) -> Policy {
        Policy::default()
    }

    /// Returns how a worker handles an event that the projection cannot apply.
    fn on_poison(&self) -> PoisonPolicy {
        PoisonPolicy::Halt
    }

    /// Returns how this build handles rows of an older [`VERSION`](Projection::VERSION).
    fn on_version_change(&self) -> OnVersionChange {
        OnVersionChange::Offer
    }
}

/// How a worker handles an event that the projection cannot apply: after all attempts, or at once
/// if the error is [fatal](crate::fatal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoisonPolicy {
    /// The projection of this tenant halts until an operator
    /// [retries](crate::projection::Projections::retry) it.
    #[default]
    Halt,
    /// The projection parks the event and continues with the next one. The event can be
    /// [retried](crate::projection::Projections::redrive) separately.
    Park,
}

/// How a build handles rows that an older version of the projection wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnVersionChange {
    /// The build leaves the rows unchanged and reports them. Builds of the old version continue,
    /// and an operator requests a rebuild.
    #[default]
    Offer,
    /// The build requests a rebuild: a shadow rebuild if the projection has generations, otherwise
    /// in place.
    Rebuild,
    /// The build continues with the rows as they are.
    Continue,
}

/// The context of a call to a projection, with the transaction that also moves the position of the
/// scope.
#[non_exhaustive]
pub struct ProjectionContext<'a> {
    /// The tenant of the events that the projection applies.
    pub tenant: &'a str,
    /// The generation of the rows to write, for a projection that keeps
    /// [generations](Projection::GENERATIONS).
    pub generation: i32,
    /// Whether the projection has already applied these events before, so that this call is a
    /// replay, a rebuild or a verification. If so, do not send anything out of the database.
    pub replaying: bool,
    /// The transaction in which the projection writes its rows.
    pub tx: &'a mut Tx,
}

impl ProjectionContext<'_> {
    /// Returns a digest of the rows of this query, independent of their order. Leave the column of
    /// the generation out of the query.
    ///
    /// # Errors
    /// The database refuses the query.
    pub async fn digest(
        &mut self,
        query: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Digest, Error> {
        let bytes = projections::digest(self.tx, query, params).await?;
        let bytes = bytes
            .try_into()
            .map_err(|_| Error::broken("a digest does not have 32 bytes"))?;
        Ok(Digest::from_bytes(bytes))
    }
}

impl fmt::Debug for ProjectionContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProjectionContext {
            tenant,
            generation,
            replaying,
            tx: _,
        } = self;
        f.debug_struct("ProjectionContext")
            .field("tenant", tenant)
            .field("generation", generation)
            .field("replaying", replaying)
            .finish_non_exhaustive()
    }
}
