//! A projection without its type: generic code ends here.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};

use crate::{
    codec,
    error::{Error, StepError, fatal, storable},
    event::{Events, Recorded},
    id::NAME_BYTES_MAX,
    policy::Policy,
    projection::{Digest, NewVersion, Poison, Projecting, Projection},
    store::{fault::Fault, projections::LogRow},
};

/// A projection without its type.
pub(crate) trait Reader: Send + Sync {
    fn name(&self) -> &'static str;
    fn version(&self) -> u16;
    fn generations(&self) -> bool;
    fn names(&self) -> &'static [&'static str];
    fn policy(&self) -> Policy;
    fn on_poison(&self) -> Poison;
    fn on_new_version(&self) -> NewVersion;
    fn apply<'a>(&'a self, rows: &'a [LogRow], cx: Projecting<'a>) -> BoxFuture<'a, Result<(), StepError>>;
    fn clear<'a>(&'a self, cx: Projecting<'a>) -> BoxFuture<'a, Result<(), StepError>>;
    fn digest<'a>(&'a self, cx: Projecting<'a>) -> BoxFuture<'a, Result<Option<Digest>, StepError>>;
}

struct Typed<P>(P);

impl<P: Projection> Reader for Typed<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }
    fn version(&self) -> u16 {
        P::VERSION
    }
    fn generations(&self) -> bool {
        P::GENERATIONS
    }
    fn names(&self) -> &'static [&'static str] {
        P::Events::NAMES
    }
    fn policy(&self) -> Policy {
        self.0.policy()
    }
    fn on_poison(&self) -> Poison {
        self.0.on_poison()
    }
    fn on_new_version(&self) -> NewVersion {
        self.0.on_new_version()
    }
    fn apply<'a>(&'a self, rows: &'a [LogRow], mut cx: Projecting<'a>) -> BoxFuture<'a, Result<(), StepError>> {
        Box::pin(async move {
            let wanted = rows.iter().filter_map(|row| row.payload.as_deref().map(|payload| (row, payload)));
            let batch = wanted.map(|(row, payload)| decode::<P>(row, payload)).collect::<Result<Vec<_>, _>>()?;
            if batch.is_empty() {
                return Ok(());
            }
            self.0.apply(&batch, &mut cx).await
        })
    }
    fn clear<'a>(&'a self, mut cx: Projecting<'a>) -> BoxFuture<'a, Result<(), StepError>> {
        Box::pin(async move { self.0.clear(&mut cx).await })
    }
    fn digest<'a>(&'a self, mut cx: Projecting<'a>) -> BoxFuture<'a, Result<Option<Digest>, StepError>> {
        Box::pin(async move { self.0.digest(&mut cx).await })
    }
}

fn decode<P: Projection>(row: &LogRow, payload: &str) -> Result<Recorded<P::Events>, StepError> {
    let shape = |error: &dyn std::fmt::Display| {
        fatal(format!("event {} ({} v{}) cannot be decoded: {error}", row.position, row.name, row.version))
    };
    let parse = |text: &str| serde_json::from_str(text).map_err(|error| shape(&error));
    let version = u16::try_from(row.version).unwrap_or_default();
    Ok(Recorded {
        position: row.position,
        at: row.at,
        instance: row.instance_id,
        step: row.step.clone(),
        headers: row.headers.as_deref().map(parse).transpose()?,
        event: P::Events::decode(&row.name, version, payload).map_err(|error| shape(&error))?,
    })
}

/// Check a projection's wiring, and forget its type.
pub(crate) fn erased<P: Projection>(projection: P) -> Result<Arc<dyn Reader>, Error> {
    let refused = |error: String| Error::invalid(format!("cannot project {:?}: {error}", P::NAME));
    codec::check_name("a projection's name", P::NAME, 1, NAME_BYTES_MAX).map_err(refused)?;
    if P::Events::NAMES.is_empty() {
        return Err(refused("it reads no events".into()));
    }
    Ok(Arc::new(Typed(projection)))
}

/// Why user code did not do what it should.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Our own database was away, or two met on a row: no attempt is burned.
    Outage(String),
    /// The projection's own failure.
    Failed { message: String, fatal: bool },
}

/// Run user code, within its time, and catch its panics.
pub(crate) async fn guarded<T>(
    timeout: Duration,
    code: impl Future<Output = Result<T, StepError>>,
) -> Result<T, Trouble> {
    let bounded = AssertUnwindSafe(async move { tokio::time::timeout(timeout, code).await }).catch_unwind();
    let failed = |message: String, fatal| Err(Trouble::Failed { message: storable(&message), fatal });
    match bounded.await {
        Ok(Ok(Ok(done))) => Ok(done),
        Ok(Ok(Err(error))) if is_outage(&error) => Err(Trouble::Outage(error.to_string())),
        Ok(Ok(Err(error))) => failed(error.to_string(), error.is_fatal()),
        Ok(Err(_)) => failed(format!("it ran longer than its timeout of {timeout:?}"), false),
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
            failed(format!("it panicked: {}", said.unwrap_or_else(|| "without a message".into())), false)
        }
    }
}

/// Everything that a projection does to a database, it does to ours.
fn is_outage(error: &StepError) -> bool {
    let of_ours = |fault: Fault| fault.is_infrastructure() || matches!(fault, Fault::Busy(_));
    !error.is_fatal()
        && error.causes().any(|cause| {
            cause.downcast_ref::<Error>().is_some_and(|error| error.is_transient() || error.is_unknown())
                || cause.downcast_ref::<tokio_postgres::Error>().is_some_and(|error| of_ours(Fault::of(error)))
        })
}
