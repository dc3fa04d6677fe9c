//! Compares the rows that a run has built with the rows of the current generation, and swaps the
//! generations.

use std::sync::Arc;

use super::{Filled, PAUSE};
use crate::{
    engine::projector::{
        project::{BatchOutcome, Projector, undo},
        reader::{ApplyFailure, Reader, guarded},
    },
    model::projection::RunKind,
    projection::{Digest, ProjectionContext},
    store::{
        fault::Fault,
        projections::{self, ScopeState},
        runs::{self, DueRun, Held, OpenRun, OpenedRun, Standing},
    },
};

impl Projector {
    /// Compares the rebuilt rows with the rows of the current generation of the projection at one
    /// log position, after the run has caught up. Then makes the rebuilt rows the current
    /// generation, or records whether the rows are equal.
    pub(super) async fn compare(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
        limit: &mut i32,
    ) -> Result<BatchOutcome, Fault> {
        // One snapshot reads the rows of the current generation and the cursor of the scope,
        // because workers apply batches to the scope during the comparison.
        let (live, live_digest) = match self.digest_of_live(reader, due).await? {
            Ok(found) => found,
            Err(trouble) => return self.trouble(due, trouble).await,
        };
        let run = loop {
            match self.fill(reader, due, limit, Some(live.position)).await? {
                Filled::On => {}
                Filled::Full(run) => break run,
                Filled::Over => return Ok(BatchOutcome::Idle),
                Filled::Wait(pause) => return Ok(BatchOutcome::Wait(pause)),
            }
        };
        if run.position != live.position {
            // Another worker has continued the run, or another run has rebuilt the rows of the
            // current generation. So the run begins the comparison again.
            return Ok(BatchOutcome::Wait(PAUSE));
        }
        let digest = match self.digest_of_run(reader, due, &run).await? {
            Ok(digest) => digest,
            Err(trouble) => return self.trouble(due, trouble).await,
        };
        let at = live.position;
        let (equal, verdict) = match (live_digest, digest) {
            (Some(a), Some(b)) if a == b => (true, format!("equal at position {at}: {a}")),
            (Some(a), Some(b)) => (
                false,
                format!("differs at position {at}: live {a}, rebuilt {b}"),
            ),
            _ => (
                true,
                format!("not compared at position {at}: the projection has no digest"),
            ),
        };
        let hashes = if live.applied == run.applied {
            ""
        } else {
            "; and different events were applied"
        };
        let verdict = format!("{verdict}{hashes}");
        self.note(due, live_digest, at, &verdict).await?;
        if due.kind == RunKind::Verify {
            let error = live_digest
                .is_none()
                .then(|| "the projection has no digest: it cannot be verified".to_owned());
            return self.end(due, error, Some(verdict)).await;
        }
        // Another version of the projection produces other rows on purpose, so a difference between
        // the rows does not prevent the swap of the generations.
        let same_version = live.version == i32::from(reader.version());
        if !equal && same_version && !run.force {
            let error = format!("{verdict}: not swapped");
            return self.end(due, Some(error), Some(verdict)).await;
        }
        self.swap(reader, due, limit).await
    }

    pub(super) async fn digest_of_live(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
    ) -> Result<Result<(ScopeState, Option<Digest>), ApplyFailure>, Fault> {
        let mut tx = self.begin().await?;
        projections::one_snapshot(&tx, &self.target).await?;
        let Some(live) =
            projections::cursor_in(&mut tx, &self.target, &due.tenant, reader.name()).await?
        else {
            tx.finish("rollback").await?;
            return Ok(Err(ApplyFailure::Failed {
                message: "the scope does not exist any more".into(),
                fatal: true,
            }));
        };
        let cx = ProjectionContext {
            tenant: &due.tenant,
            generation: live.generation,
            replaying: true,
            tx: &mut tx,
        };
        match guarded(self.timeout(reader.as_ref()), reader.digest(cx)).await {
            Ok(digest) => tx.finish("commit").await.map(|()| Ok((live, digest))),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    async fn digest_of_run(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
        run: &Standing,
    ) -> Result<Result<Option<Digest>, ApplyFailure>, Fault> {
        let mut tx = self.begin().await?;
        // The digest may need more time than the time for which no other worker may continue the
        // run, so the transaction computes the digest in one snapshot.
        projections::one_snapshot(&tx, &self.target).await?;
        if runs::position_in(&mut tx, &self.target, due.id).await? != Some(run.position) {
            tx.finish("rollback").await?;
            return Ok(Err(ApplyFailure::Busy(
                "another worker continued the run".into(),
            )));
        }
        let (tenant, generation) = (due.tenant.as_str(), run.run_generation);
        let cx = ProjectionContext {
            tenant,
            generation,
            replaying: true,
            tx: &mut tx,
        };
        match guarded(self.timeout(reader.as_ref()), reader.digest(cx)).await {
            Ok(digest) => tx.finish("commit").await.map(|()| Ok(digest)),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    async fn note(
        &self,
        due: &DueRun,
        digest: Option<Digest>,
        position: i64,
        verdict: &str,
    ) -> Result<(), Fault> {
        if let Some(digest) = digest {
            self.note_digest(due, digest, position).await?;
        }
        let (run, verdict) = (due.id, verdict.to_owned());
        self.call(move |connection| async move { runs::verdict(&connection, run, &verdict).await })
            .await
    }

    pub(super) async fn note_digest(
        &self,
        due: &DueRun,
        digest: Digest,
        position: i64,
    ) -> Result<(), Fault> {
        let (tenant, projection) = (due.tenant.clone(), due.projection.clone());
        self.call(move |connection| async move {
            projections::note_digest(
                &connection,
                &tenant,
                &projection,
                digest.as_bytes(),
                position,
            )
            .await
        })
        .await
    }

    /// Makes the rebuilt rows the current generation of the projection. It locks the row of the
    /// scope, applies to the rebuilt rows the events that workers have applied to the scope since
    /// the comparison, and swaps the generations. While more than one batch of events is missing,
    /// it applies them without the lock, so that it does not delay the batches of workers.
    async fn swap(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
        limit: &mut i32,
    ) -> Result<BatchOutcome, Fault> {
        loop {
            match self.fill(reader, due, limit, None).await? {
                Filled::On => continue,
                Filled::Full(_) => {}
                Filled::Over => return Ok(BatchOutcome::Idle),
                Filled::Wait(pause) => return Ok(BatchOutcome::Wait(pause)),
            }
            let mut tx = self.begin().await?;
            let ask = OpenRun {
                scope: true,
                ..self.run_ask(reader.as_ref(), due, self.batch)
            };
            let OpenedRun {
                run: Held::Ours(run),
                events,
            } = runs::open(&mut tx, &self.target, &ask).await?
            else {
                return tx.finish("commit").await.map(|()| BatchOutcome::Idle);
            };
            let reached = events.last().map_or(run.position, |row| row.position);
            if reached < run.scope_position {
                tx.finish("rollback").await?;
                continue;
            }
            if reached > run.position {
                match self
                    .apply_run(reader, &due.tenant, &mut tx, &run, &events)
                    .await
                {
                    Ok(applied) => {
                        let advance = self.move_of(due, &run, reached, Some(applied));
                        if let Err(fault) = runs::advance(&mut tx, &self.target, &advance).await {
                            return self.trouble(due, ApplyFailure::of(fault)).await;
                        }
                    }
                    // The run could not apply the events under the lock of the scope's row. The
                    // next batches of the run, without the lock, find out which event fails.
                    Err(trouble) => {
                        undo(tx).await;
                        return self.trouble(due, trouble).await;
                    }
                }
            }
            let swapped =
                match runs::swap(&mut tx, &self.target, due.id, reader.version().into()).await {
                    Ok(swapped) => tx
                        .finish(if swapped { "commit" } else { "rollback" })
                        .await
                        .map(|()| swapped),
                    Err(fault) => Err(fault),
                };
            let swapped = match swapped {
                Ok(swapped) => swapped,
                Err(fault) => return self.trouble(due, ApplyFailure::of(fault)).await,
            };
            if swapped {
                tracing::info!(
                    projection = reader.name(),
                    tenant = due.tenant,
                    run = due.id,
                    "the rebuilt generation is live"
                );
                self.pool
                    .connections
                    .log
                    .wake_readers(std::iter::once(due.tenant.as_str()));
                self.pool.connections.log.wake_runs();
                return Ok(BatchOutcome::Idle);
            }
        }
    }
}
