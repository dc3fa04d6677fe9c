//! Read models: what follows from a tenant's events, kept in tables of the host's own.

use std::fmt;

use tokio_postgres::types::ToSql;

use crate::{
    error::{Error, StepError},
    event::{Events, Recorded},
    policy::Policy,
    store::{projections, tx::Tx},
};

/// A read model: what follows from the events of a tenant. Registered by [`EngineBuilder::project`](crate::EngineBuilder::project).
///
/// A batch of events, what [`apply`](Projection::apply) writes through `cx.tx`, and the cursor are one transaction: each event
/// counts once, whatever dies. So `apply` writes through `cx.tx` and nowhere else, and decides by the events alone: no clock, no
/// random numbers, or a rebuild ends in something else.
pub trait Projection: Send + Sync + 'static {
    /// The name in the rows.
    const NAME: &'static str;
    /// Of what it makes of events. When it changes, what is there is the old version's: a rebuild is offered, see
    /// [`on_new_version`](Projection::on_new_version).
    const VERSION: u16 = 1;
    /// Its rows carry [`cx.generation`](Projecting::generation) in their key, and readers ask `<schema>.generation(tenant, projection)`
    /// which to read. Then it can be rebuilt in a shadow while it is read, and verified.
    const GENERATIONS: bool = false;
    /// What it reads.
    type Events: Events;

    /// Write what follows from these events, in order, without a gap, once.
    fn apply(
        &self,
        batch: &[Recorded<Self::Events>],
        cx: &mut Projecting<'_>,
    ) -> impl Future<Output = Result<(), StepError>> + Send;

    /// Forget all rows of this tenant (and generation): before a rebuild in place, and after a shadow was swapped in.
    fn clear(&self, cx: &mut Projecting<'_>) -> impl Future<Output = Result<(), StepError>> + Send;

    /// A digest of the rows of this tenant and generation, the generation itself left out: [`Projecting::digest`] makes one.
    /// Without it nothing can be verified.
    fn digest(
        &self,
        cx: &mut Projecting<'_>,
    ) -> impl Future<Output = Result<Option<Digest>, StepError>> + Send {
        let _ = cx;
        async { Ok(None) }
    }

    /// How often an event is tried, with which pauses; how long a batch may take.
    fn policy(&self) -> Policy {
        Policy::default()
    }

    /// What becomes of an event that cannot be applied.
    fn on_poison(&self) -> Poison {
        Poison::Halt
    }

    /// What this build does where the rows are those of an older [`VERSION`](Projection::VERSION).
    fn on_new_version(&self) -> NewVersion {
        NewVersion::Offer
    }
}

/// What becomes of an event that cannot be applied, after all attempts or at once when the error is [fatal](crate::fatal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Poison {
    /// The scope stands still, visibly, until it is told to [try again](crate::Projections::retry).
    #[default]
    Halt,
    /// The event is set aside, visibly, and the scope goes on. It can be [tried again](crate::Projections::redrive) by itself.
    Park,
}

/// What a build does where the rows are those of an older version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum NewVersion {
    /// It leaves them alone, and says so: builds of the old version go on, and an operator asks for a rebuild.
    #[default]
    Offer,
    /// It asks for the rebuild by itself: in a shadow if it has generations, else in place.
    Rebuild,
    /// It goes on with the rows as they are.
    GoOn,
}

/// Where a projection writes: the transaction that also moves its cursor.
#[non_exhaustive]
pub struct Projecting<'a> {
    /// Whose events these are.
    pub tenant: &'a str,
    /// Which rows to write, for one that keeps [generations](Projection::GENERATIONS).
    pub generation: i32,
    /// These events have been seen before: nothing may leave the database.
    pub replaying: bool,
    /// The transaction.
    pub tx: &'a mut Tx,
}

impl Projecting<'_> {
    /// The digest of the rows that this query answers, whatever their order. Leave the generation out.
    pub async fn digest(
        &mut self,
        query: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Digest, Error> {
        let bytes = projections::digest(self.tx, query, params).await?;
        let bytes = bytes
            .try_into()
            .map_err(|_| Error::broken("a digest does not have 32 bytes"))?;
        Ok(Digest(bytes))
    }
}

impl fmt::Debug for Projecting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Projecting {
            tenant,
            generation,
            replaying,
            tx: _,
        } = self;
        f.debug_struct("Projecting")
            .field("tenant", tenant)
            .field("generation", generation)
            .field("replaying", replaying)
            .finish_non_exhaustive()
    }
}

/// What rows come to: equal rows, equal digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// One that was made elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }
    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// In hexadecimal.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
