//! Runs one batch of one scope: applies events and moves the cursor of the scope, in one
//! transaction. This module starts no task and no timer, so that the projector, runs and tests can
//! all use it.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{
    batch::{gap, running_hash, weight},
    reader::{ApplyFailure, Reader, guarded},
};
use crate::{
    codec,
    error::{Error, chain},
    pool::Pool,
    projection::{OnVersionChange, PoisonPolicy, ProjectionContext},
    settings::Settings,
    store::{
        calls::Calls,
        connection::Connection,
        fault::Fault,
        projections::{self, Fate, Move, OpenScope, OpenedScope, ScopeVerdict, Swept},
        target::Target,
    },
    transaction::Tx,
};

/// Approximate maximum size of the payloads of a batch, in bytes.
pub(crate) const BATCH_BYTES_MAX: i64 = 8 * 1024 * 1024;
/// After a worker has moved the cursor of a scope, the worker owns the scope for this long, and
/// other workers do not project it.
pub(crate) const OWNED: Duration = Duration::from_secs(2);
/// Delay before the next attempt of a batch if another transaction has locked the row of the scope.
/// That transaction is another batch, or the swap at the end of a rebuild; the delay is short, so
/// that a swap hardly delays the batches that workers apply to the scope.
pub(super) const LOCKED_PAUSE: Duration = Duration::from_millis(20);
/// How long the rollback of a projection's transaction may take.
const UNDO_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before the next batch of a scope after an outage of the database.
const OUTAGE_PAUSE: Duration = Duration::from_millis(500);
/// Delay before the next batch of a scope after the server has refused one of the engine's
/// statements, because the schema or the privileges are wrong.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// After a batch met an outage, the number of events of the next batch is divided by this factor.
const SHRINK: i32 = 8;
/// Minimum number of attempts for an event, whatever the `PoisonPolicy` says, if the server cancels
/// the statements of the event or lacks the resources for them.
pub(crate) const OUTAGE_ATTEMPTS_MIN: u32 = 5;
/// Minimum number of attempts for an event, whatever the `PoisonPolicy` says, if the connection
/// breaks while the event is applied.
const LOST_ATTEMPTS_MIN: u32 = 20;
/// Delay before the next check of a scope that waits for an operator or for another build.
pub(super) const LONG_PAUSE: Duration = Duration::from_secs(30);

/// The state that all projection batches of a process share.
pub(crate) struct Projector {
    pub(crate) pool: Pool,
    pub(crate) target: Arc<Target>,
    /// The channel to the connections of the engine. Without an engine, in a lab, the calls go
    /// through the pool.
    calls: Option<Calls>,
    /// The id of this worker. A batch writes it into the row of the scope as the owner.
    pub(crate) worker: String,
    pub(crate) readers: Vec<Arc<dyn Reader>>,
    pub(crate) batch: i32,
    pub(crate) timeout: Duration,
    /// The permits for connections of projection batches: one connection per batch under way, in
    /// addition to the connections of steps and callers.
    permits: Arc<Semaphore>,
}

/// The outcome of a projection batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// The log may have more events for the scope: run the next batch at once.
    More,
    /// The scope has applied all events of its log.
    Idle,
    /// Run the next batch of the scope after this delay.
    Wait(Duration),
    /// Another worker owns the scope: run no batch now.
    Theirs,
}

impl Projector {
    pub(crate) fn new(
        pool: Pool,
        calls: Option<Calls>,
        worker: String,
        readers: Vec<Arc<dyn Reader>>,
        settings: &Settings,
    ) -> Projector {
        Projector {
            target: pool.connections.target.clone(),
            pool,
            calls,
            worker,
            readers,
            batch: i32::try_from(settings.projection_batch).unwrap_or(i32::MAX),
            timeout: settings.step_timeout,
            permits: Arc::new(Semaphore::new(settings.projection_concurrency.max(1))),
        }
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.readers.iter().map(|reader| reader.name()).collect()
    }

    pub(crate) fn builds(&self) -> Vec<(&'static str, i32)> {
        self.readers
            .iter()
            .map(|reader| (reader.name(), reader.version().into()))
            .collect()
    }

    pub(crate) fn swept(&self) -> Vec<Swept> {
        let eager = |reader: &Arc<dyn Reader>| reader.on_version_change() != OnVersionChange::Offer;
        self.readers
            .iter()
            .map(|reader| (reader.name(), reader.version().into(), eager(reader)))
            .collect()
    }

    pub(crate) fn reader(&self, name: &str) -> Option<&Arc<dyn Reader>> {
        self.readers.iter().find(|reader| reader.name() == name)
    }

    pub(crate) async fn begin(&self) -> Result<Tx, Fault> {
        let closed = || Fault::Away("the projector has ended".into());
        let permit = self
            .permits
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| closed())?;
        self.pool.connections.begin_with(permit).await.map(Tx::new)
    }

    pub(crate) fn timeout(&self, reader: &dyn Reader) -> Duration {
        reader.policy().timeout.unwrap_or(self.timeout)
    }

    /// Runs one batch of one scope. After a failure, `limit` becomes one event, so that the
    /// projector finds the event that fails. `limit` grows after later batches. Returns also the
    /// last known position of the scope's cursor.
    pub(crate) async fn project_batch(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        limit: &mut i32,
        force: bool,
    ) -> (BatchOutcome, i64) {
        let mut reached = 0;
        match self
            .try_batch(reader, tenant, limit, force, &mut reached)
            .await
        {
            Ok(outcome) => (outcome, reached),
            Err(fault) => (lost(reader.name(), tenant, &fault), 0),
        }
    }

    async fn try_batch(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        limit: &mut i32,
        force: bool,
        reached: &mut i64,
    ) -> Result<BatchOutcome, Fault> {
        let mut tx = self.begin().await?;
        let ask = self.ask(reader.as_ref(), tenant, *limit, force);
        let opened = projections::open(&mut tx, &self.target, &ask).await?;
        *reached = opened.position;
        if opened.verdict != ScopeVerdict::Go || opened.events.is_empty() {
            tx.finish("commit").await?;
            return self.not_now(reader, tenant, &opened).await;
        }
        let count = opened.events.len();
        let cx = ProjectionContext {
            tenant,
            generation: opened.generation,
            replaying: opened.position < opened.replaying_to,
            tx: &mut tx,
        };
        let applied = match gap(opened.position, &opened.events) {
            Some(gone) => Err(ApplyFailure::Failed {
                message: gone,
                fatal: true,
            }),
            None => {
                guarded(
                    self.timeout(reader.as_ref()),
                    reader.apply(&opened.events, cx),
                )
                .await
            }
        };
        match applied {
            Ok(()) => {
                let new = opened
                    .events
                    .last()
                    .map_or(opened.position, |row| row.position);
                let cursor = Move {
                    generation: opened.generation,
                    old: opened.position,
                    new,
                    applied: running_hash(opened.applied, &opened.events),
                };
                // An error of `apply` may appear only when the projector closes the batch: a failed
                // statement for which `apply` returned no error, or a constraint that Postgres
                // checks at COMMIT.
                match self.close(reader, tenant, tx, cursor).await {
                    Ok(true) => *reached = new,
                    Ok(false) => return Ok(BatchOutcome::Theirs),
                    Err(trouble) => {
                        return self.failed(reader, tenant, &opened, trouble, limit).await;
                    }
                }
                metrics::counter!("durable_projected_total", "projection" => reader.name())
                    .increment(count.try_into().unwrap_or_default());
                let full = count >= usize::try_from(*limit).unwrap_or_default()
                    || weight(&opened.events) >= BATCH_BYTES_MAX / 4;
                *limit = limit.saturating_mul(2).min(self.batch);
                Ok(if full {
                    BatchOutcome::More
                } else {
                    BatchOutcome::Idle
                })
            }
            Err(trouble) => {
                undo(tx).await;
                self.failed(reader, tenant, &opened, trouble, limit).await
            }
        }
    }

    /// Moves the cursor of the scope and commits. Returns `false`, without a commit, if the cursor
    /// is no longer at the position at which the batch began.
    async fn close(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        mut tx: Tx,
        cursor: Move,
    ) -> Result<bool, ApplyFailure> {
        let (scope, owned) = ((tenant, reader.name()), OWNED.as_secs_f64());
        let closed =
            projections::close(&mut tx, &self.target, scope, cursor, &self.worker, owned).await;
        match closed {
            Ok(moved) => tx
                .finish(if moved { "commit" } else { "rollback" })
                .await
                .map(|()| moved)
                .map_err(ApplyFailure::of),
            Err(fault) => {
                undo(tx).await;
                Err(ApplyFailure::of(fault))
            }
        }
    }

    pub(crate) fn ask<'a>(
        &'a self,
        reader: &'a dyn Reader,
        tenant: &'a str,
        limit: i32,
        force: bool,
    ) -> OpenScope<'a> {
        OpenScope {
            tenant,
            projection: reader.name(),
            version: reader.version().into(),
            worker: &self.worker,
            names: reader.names(),
            limit,
            bytes: BATCH_BYTES_MAX,
            redrive: None,
            force,
        }
    }

    async fn not_now(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        opened: &OpenedScope,
    ) -> Result<BatchOutcome, Fault> {
        Ok(match opened.verdict {
            ScopeVerdict::Go => BatchOutcome::Idle,
            ScopeVerdict::Locked => BatchOutcome::Wait(LOCKED_PAUSE),
            ScopeVerdict::Theirs => BatchOutcome::Theirs,
            ScopeVerdict::Newer | ScopeVerdict::Halted | ScopeVerdict::Blocked => {
                BatchOutcome::Wait(LONG_PAUSE)
            }
            ScopeVerdict::Waiting(seconds) => {
                BatchOutcome::Wait(Duration::try_from_secs_f64(seconds).unwrap_or(LONG_PAUSE))
            }
            ScopeVerdict::Outdated => self.outdated(reader, tenant, opened.scope_version).await?,
        })
    }

    async fn failed(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        opened: &OpenedScope,
        trouble: ApplyFailure,
        limit: &mut i32,
    ) -> Result<BatchOutcome, Fault> {
        let policy = reader.policy();
        let several = opened.events.len() > 1 && *limit > 1;
        let (message, fatal, attempts) = match trouble {
            ApplyFailure::Busy(message) => {
                tracing::debug!(
                    projection = reader.name(),
                    tenant,
                    error = message,
                    "a batch met a locked row, trying again"
                );
                return Ok(BatchOutcome::Wait(OUTAGE_PAUSE));
            }
            ApplyFailure::Outage { message, .. } if several => {
                *limit = shrunk(*limit, opened.events.len());
                tracing::warn!(
                    projection = reader.name(),
                    tenant,
                    error = message,
                    limit,
                    "a batch met an outage; the next one is smaller"
                );
                return Ok(BatchOutcome::More);
            }
            ApplyFailure::Failed { .. } if several => {
                *limit = 1;
                return Ok(BatchOutcome::More);
            }
            ApplyFailure::Outage { message, lost } => {
                let least = if lost {
                    LOST_ATTEMPTS_MIN
                } else {
                    OUTAGE_ATTEMPTS_MIN
                };
                (message, false, policy.attempts.max(least))
            }
            ApplyFailure::Failed { message, fatal } => (message, fatal, policy.attempts),
        };
        let before = u32::try_from(opened.attempts).unwrap_or_default();
        let pause = policy.delay(before);
        let fate = match reader.on_poison() {
            _ if !fatal && before + 1 < attempts => Fate::Retry(codec::delay_seconds(pause)),
            PoisonPolicy::Park => Fate::Park,
            PoisonPolicy::Halt => Fate::Halt,
        };
        let (owned_tenant, name, old) = (tenant.to_owned(), reader.name(), opened.position);
        let version = i32::from(reader.version());
        tracing::warn!(
            projection = name,
            tenant,
            position = old + 1,
            ?fate,
            "an event could not be applied: {message}"
        );
        metrics::counter!("durable_projection_failures_total", "projection" => name).increment(1);
        self.call(move |connection| async move {
            projections::fail(
                &connection,
                (&owned_tenant, name),
                old,
                &message,
                fate,
                version,
            )
            .await
        })
        .await?;
        Ok(match fate {
            Fate::Retry(_) => BatchOutcome::Wait(pause),
            Fate::Park => BatchOutcome::More,
            Fate::Halt => BatchOutcome::Wait(LONG_PAUSE),
        })
    }

    pub(crate) async fn call<T, F, Fut>(&self, act: F) -> Result<T, Fault>
    where
        T: Send + 'static,
        F: FnOnce(std::rc::Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        let called = match &self.calls {
            Some(calls) => calls.call(act).await,
            None => self.pool.connections.call(act).await,
        };
        called.map_err(|error: Error| Fault::Away(chain(&error)))?
    }
}

/// Rolls back the transaction of user code, so that its locks are released before the engine
/// continues. If the server does not reply in time, the engine closes the connection and does not
/// use it any more.
pub(crate) async fn undo(tx: Tx) {
    drop(tokio::time::timeout(UNDO_TIMEOUT, tx.finish("rollback")).await);
}

/// Returns the maximum number of events of the next batch, after a batch of this many events met an
/// outage.
pub(crate) fn shrunk(limit: i32, events: usize) -> i32 {
    (limit.min(i32::try_from(events).unwrap_or(i32::MAX)) / SHRINK).max(1)
}

/// Returns the outcome of a batch for which the transaction failed before user code ran in it.
pub(super) fn lost(projection: &str, tenant: &str, fault: &Fault) -> BatchOutcome {
    let error = fault.message();
    if let Fault::Refused { .. } = fault {
        tracing::warn!(projection, tenant, error, "a batch could not begin");
        return BatchOutcome::Wait(REFUSED_PAUSE);
    }
    tracing::debug!(
        projection,
        tenant,
        error,
        "a batch could not begin, trying again"
    );
    BatchOutcome::Wait(OUTAGE_PAUSE)
}
