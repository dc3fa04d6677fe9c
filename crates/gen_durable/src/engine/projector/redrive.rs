//! Redrives: applies a parked event again.

use std::sync::Arc;

use super::{
    project::{BatchOutcome, LOCKED_PAUSE, Projector, lost, undo},
    reader::{ApplyFailure, Reader, guarded},
};
use crate::{
    projection::ProjectionContext,
    store::{
        fault::Fault,
        projections::{self, OpenScope, ScopeVerdict},
        redrive,
    },
    transaction::Tx,
};

impl Projector {
    /// Applies one parked event of a scope again, in a transaction of its own.
    pub(crate) async fn redrive(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        position: i64,
    ) -> BatchOutcome {
        self.try_redrive(reader, tenant, position)
            .await
            .unwrap_or_else(|fault| lost(reader.name(), tenant, &fault))
    }

    async fn try_redrive(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        position: i64,
    ) -> Result<BatchOutcome, Fault> {
        let mut tx = self.begin().await?;
        let ask = OpenScope {
            redrive: Some(position),
            ..self.ask(reader.as_ref(), tenant, 1, true)
        };
        let opened = projections::open(&mut tx, &self.target, &ask).await?;
        if opened.verdict != ScopeVerdict::Go {
            tx.finish("commit").await?;
            return Ok(if opened.verdict == ScopeVerdict::Locked {
                BatchOutcome::Wait(LOCKED_PAUSE)
            } else {
                BatchOutcome::Idle
            });
        }
        let cx = ProjectionContext {
            tenant,
            generation: opened.generation,
            replaying: false,
            tx: &mut tx,
        };
        let gone = || ApplyFailure::Failed {
            message: "the event is no longer in the log".into(),
            fatal: true,
        };
        let applied = match opened.events.is_empty() {
            true => Err(gone()),
            false => {
                guarded(
                    self.timeout(reader.as_ref()),
                    reader.apply(&opened.events, cx),
                )
                .await
            }
        };
        let done = match applied {
            Ok(()) => {
                self.close_redrive(tx, (tenant, reader.name(), position))
                    .await
            }
            Err(trouble) => {
                undo(tx).await;
                Err(trouble)
            }
        };
        let message = match done {
            Ok(()) => return Ok(BatchOutcome::Idle),
            Err(ApplyFailure::Busy(message)) => return Err(Fault::Busy(message)),
            Err(ApplyFailure::Outage { message, .. } | ApplyFailure::Failed { message, .. }) => {
                message
            }
        };
        tracing::warn!(
            projection = reader.name(),
            tenant,
            position,
            "a parked event could not be applied: {message}"
        );
        let (owned_tenant, name) = (tenant.to_owned(), reader.name());
        self.call(move |connection| async move {
            redrive::failed(&connection, (&owned_tenant, name, position), &message).await
        })
        .await
        .map(|()| BatchOutcome::Idle)
    }

    /// Marks the failure of a parked event as resolved and commits. Does not commit if the event is
    /// not parked any more.
    async fn close_redrive(&self, mut tx: Tx, key: (&str, &str, i64)) -> Result<(), ApplyFailure> {
        match redrive::applied(&mut tx, &self.target, key).await {
            Ok(parked) => tx
                .finish(if parked { "commit" } else { "rollback" })
                .await
                .map_err(ApplyFailure::of),
            Err(fault) => {
                undo(tx).await;
                Err(ApplyFailure::of(fault))
            }
        }
    }
}
