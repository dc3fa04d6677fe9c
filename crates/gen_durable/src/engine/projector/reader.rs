//! Erases the type of a projection. Only this module of the engine is generic over projections.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use tokio_postgres::error::SqlState;

use crate::{
    codec,
    error::{Error, StepError, chain, fatal, storable},
    event::{Events, Recorded},
    id::NAME_BYTES_MAX,
    policy::Policy,
    projection::{Digest, OnVersionChange, PoisonPolicy, Projection, ProjectionContext},
    store::{fault::Fault, projections::LogRow},
};

/// A projection without its type.
pub(crate) trait Reader: Send + Sync {
    fn name(&self) -> &'static str;
    fn version(&self) -> u16;
    fn generations(&self) -> bool;
    fn names(&self) -> &'static [&'static str];
    fn policy(&self) -> Policy;
    fn on_poison(&self) -> PoisonPolicy;
    fn on_version_change(&self) -> OnVersionChange;
    fn apply<'a>(
        &'a self,
        rows: &'a [LogRow],
        cx: ProjectionContext<'a>,
    ) -> BoxFuture<'a, Result<(), StepError>>;
    fn clear<'a>(&'a self, cx: ProjectionContext<'a>) -> BoxFuture<'a, Result<(), StepError>>;
    fn digest<'a>(
        &'a self,
        cx: ProjectionContext<'a>,
    ) -> BoxFuture<'a, Result<Option<Digest>, StepError>>;
}

struct TypedProjection<P>(P);

impl<P: Projection> Reader for TypedProjection<P> {
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
    fn on_poison(&self) -> PoisonPolicy {
        self.0.on_poison()
    }
    fn on_version_change(&self) -> OnVersionChange {
        self.0.on_version_change()
    }
    fn apply<'a>(
        &'a self,
        rows: &'a [LogRow],
        mut cx: ProjectionContext<'a>,
    ) -> BoxFuture<'a, Result<(), StepError>> {
        Box::pin(async move {
            let wanted = rows
                .iter()
                .filter_map(|row| row.payload.as_deref().map(|payload| (row, payload)));
            let batch = wanted
                .map(|(row, payload)| decode::<P>(row, payload))
                .collect::<Result<Vec<_>, _>>()?;
            if batch.is_empty() {
                return Ok(());
            }
            self.0.apply(&batch, &mut cx).await
        })
    }
    fn clear<'a>(&'a self, mut cx: ProjectionContext<'a>) -> BoxFuture<'a, Result<(), StepError>> {
        Box::pin(async move { self.0.clear(&mut cx).await })
    }
    fn digest<'a>(
        &'a self,
        mut cx: ProjectionContext<'a>,
    ) -> BoxFuture<'a, Result<Option<Digest>, StepError>> {
        Box::pin(async move { self.0.digest(&mut cx).await })
    }
}

fn decode<P: Projection>(row: &LogRow, payload: &str) -> Result<Recorded<P::Events>, StepError> {
    let shape = |error: &dyn std::fmt::Display| {
        fatal(format!(
            "event {} ({} v{}) cannot be decoded: {error}",
            row.position, row.name, row.version
        ))
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

/// Checks the constants of a projection and erases its type. Returns an error if the projection
/// cannot be registered.
pub(crate) fn erased<P: Projection>(projection: P) -> Result<Arc<dyn Reader>, Error> {
    let refused = |error: String| Error::invalid(format!("cannot project {:?}: {error}", P::NAME));
    codec::check_name("a projection's name", P::NAME, 1, NAME_BYTES_MAX).map_err(refused)?;
    if P::Events::NAMES.is_empty() {
        return Err(refused("it reads no events".into()));
    }
    Ok(Arc::new(TypedProjection(projection)))
}

/// Why a transaction of a projection failed after it had begun.
#[derive(Debug)]
pub(crate) enum ApplyFailure {
    /// Another transaction held a lock on a row, or Postgres detected a deadlock. The failure
    /// counts as no attempt of the event.
    Busy(String),
    /// The server cancelled a statement, lacked memory or disk, or the connection broke. The
    /// projector retries the batch with fewer events. If a batch of a single event meets an outage
    /// repeatedly, the outage counts as a failure of that event.
    Outage { message: String, lost: bool },
    /// The projection's own code failed.
    Failed { message: String, fatal: bool },
}

impl ApplyFailure {
    /// Converts a fault of one of the engine's statements in the transaction of a projection, or of
    /// the COMMIT of that transaction: both can report an error that `apply` caused.
    pub(crate) fn of(fault: Fault) -> ApplyFailure {
        let message = storable(fault.message());
        match fault {
            Fault::Busy(_) => ApplyFailure::Busy(message),
            Fault::Away(_) | Fault::TimedOut(_) => ApplyFailure::Outage {
                message,
                lost: false,
            },
            Fault::Lost(_) => ApplyFailure::Outage {
                message,
                lost: true,
            },
            Fault::Refused {
                code: Some(code), ..
            } if code == SqlState::IN_FAILED_SQL_TRANSACTION => {
                let message = format!(
                    "a statement of `apply` or `clear` failed, and its error was not returned: {message}"
                );
                ApplyFailure::Failed {
                    message,
                    fatal: false,
                }
            }
            Fault::Refused { .. } => ApplyFailure::Failed {
                message: format!("refused: {message}"),
                fatal: false,
            },
        }
    }
}

impl ApplyFailure {
    /// Adds to the message the log position of the event, if the batch had only one event.
    pub(crate) fn with_event(self, position: i64) -> ApplyFailure {
        let with = |message| format!("event {position}: {message}");
        match self {
            ApplyFailure::Busy(message) => ApplyFailure::Busy(message),
            ApplyFailure::Outage { message, lost } => ApplyFailure::Outage {
                message: with(message),
                lost,
            },
            ApplyFailure::Failed { message, fatal } => ApplyFailure::Failed {
                message: with(message),
                fatal,
            },
        }
    }
}

/// Runs the user's code of a projection with a timeout, and catches its panics.
pub(crate) async fn guarded<T>(
    timeout: Duration,
    code: impl Future<Output = Result<T, StepError>>,
) -> Result<T, ApplyFailure> {
    let bounded =
        AssertUnwindSafe(async move { tokio::time::timeout(timeout, code).await }).catch_unwind();
    let failed = |message: String, fatal| {
        Err(ApplyFailure::Failed {
            message: storable(&message),
            fatal,
        })
    };
    match bounded.await {
        Ok(Ok(Ok(done))) => Ok(done),
        Ok(Ok(Err(error))) => Err(outage(&error).unwrap_or_else(|| ApplyFailure::Failed {
            message: storable(&error.to_string()),
            fatal: error.is_fatal(),
        })),
        Ok(Err(_)) => failed(
            format!("it ran longer than its timeout of {timeout:?}"),
            false,
        ),
        Err(panic) => {
            let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
            failed(
                format!(
                    "it panicked: {}",
                    message.unwrap_or_else(|| "without a message".into())
                ),
                false,
            )
        }
    }
}

/// Returns the outage that an error reports, or `None` if the projection's own code caused the
/// error. A projection uses only the engine's database, so every connection error counts as an
/// outage.
fn outage(error: &StepError) -> Option<ApplyFailure> {
    if error.is_fatal() {
        return None;
    }
    let fault = error.causes().find_map(|cause| {
        let of_ours = cause.downcast_ref::<Error>().and_then(|error| {
            match (error.is_transient(), error.is_unknown()) {
                (true, _) => Some(Fault::Away(chain(error))),
                (_, true) => Some(Fault::Lost(chain(error))),
                _ => None,
            }
        });
        let of_postgres = || cause.downcast_ref::<tokio_postgres::Error>().map(Fault::of);
        of_ours
            .or_else(of_postgres)
            .filter(|fault| !matches!(fault, Fault::Refused { .. }))
    })?;
    Some(ApplyFailure::of(fault))
}
