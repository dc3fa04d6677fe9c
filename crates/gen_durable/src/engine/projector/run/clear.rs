//! Clears rows of a projection: at the beginning of a rebuild in place, and of a generation that
//! readers no longer use.

use std::sync::Arc;

use super::PAUSE;
use crate::{
    engine::projector::{
        batch::missing,
        project::{BatchOutcome, Projector, undo},
        reader::{ApplyFailure, Reader, guarded},
    },
    projection::ProjectionContext,
    store::{
        fault::Fault,
        runs::{self, DueRun, Held, OpenRun, OpenedRun},
    },
    transaction::Tx,
};

impl Projector {
    /// Begins a rebuild in place: deletes the rows of the projection and sets the cursor of the
    /// scope to the beginning of the log, in one transaction. The run first records the digest of
    /// the current rows, because a projection without generations has nothing else to compare the
    /// new rows with.
    pub(super) async fn begin_in_place(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
    ) -> Result<BatchOutcome, Fault> {
        match self.digest_of_live(reader, due).await? {
            Ok((live, Some(digest))) => self.note_digest(due, digest, live.position).await?,
            Ok((_, None)) => {}
            // If the digest of the projection's current rows cannot be computed, the rows may be
            // broken, which is a reason to rebuild them. So the run continues.
            Err(trouble) => tracing::warn!(
                run = due.id,
                ?trouble,
                "could not compute the digest of the rows before they are cleared"
            ),
        }
        let mut tx = self.begin().await?;
        let ask = OpenRun {
            scope: true,
            ..self.run_ask(reader.as_ref(), due, 1)
        };
        let OpenedRun { run, events } = runs::open(&mut tx, &self.target, &ask).await?;
        let run = match run {
            Held::Ours(run) => run,
            Held::Theirs => {
                return tx
                    .finish("commit")
                    .await
                    .map(|()| BatchOutcome::Wait(PAUSE));
            }
            Held::Outdated => {
                tx.finish("commit").await?;
                return self.outdated_run(due).await;
            }
        };
        // The run may delete the rows of the projection only if the log can restore them. If events
        // are missing in the log, the old rows stay.
        if let Some(gone) = missing(0, run.scope_position, &events) {
            tx.finish("rollback").await?;
            return self
                .end(
                    due,
                    Some(format!("{gone}; the rows are left unchanged")),
                    None,
                )
                .await;
        }
        if let Err(trouble) = self
            .clear(reader, &mut tx, &due.tenant, run.generation)
            .await
        {
            undo(tx).await;
            return self.trouble(due, trouble).await;
        }
        let began =
            match runs::restart(&mut tx, &self.target, due.id, reader.version().into()).await {
                Ok(began) => tx.finish(if began { "commit" } else { "rollback" }).await,
                Err(fault) => Err(fault),
            };
        if let Err(fault) = began {
            return self.trouble(due, ApplyFailure::of(fault)).await;
        }
        self.pool
            .connections
            .log
            .wake_readers(std::iter::once(due.tenant.as_str()));
        Ok(BatchOutcome::Idle)
    }

    /// Deletes the rows of a retired generation of the projection, which readers no longer use.
    pub(super) async fn clear_retired(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
    ) -> Result<BatchOutcome, Fault> {
        let mut tx = self.begin().await?;
        let Some(generation) = runs::lock_retired(&mut tx, &self.target, due.id).await? else {
            return tx.finish("commit").await.map(|()| BatchOutcome::Idle);
        };
        if let Err(trouble) = self.clear(reader, &mut tx, &due.tenant, generation).await {
            tracing::warn!(
                run = due.id,
                generation,
                ?trouble,
                "could not clear the rows of a retired generation, trying again"
            );
            return Ok(BatchOutcome::Wait(PAUSE * 10));
        }
        runs::cleared(&mut tx, &self.target, due.id).await?;
        tx.finish("commit").await.map(|()| BatchOutcome::Idle)
    }

    async fn clear(
        &self,
        reader: &Arc<dyn Reader>,
        tx: &mut Tx,
        tenant: &str,
        generation: i32,
    ) -> Result<(), ApplyFailure> {
        let cx = ProjectionContext {
            tenant,
            generation,
            replaying: true,
            tx,
        };
        guarded(self.timeout(reader.as_ref()), reader.clear(cx)).await
    }
}
