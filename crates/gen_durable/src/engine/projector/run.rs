//! Runs of a projection: replays, rebuilds, verifications. Each batch is a short transaction that
//! reads the state of the run from its row, so that any process can continue the run after a crash.

mod clear;
mod compare;

use std::{sync::Arc, time::Duration};

use super::{
    batch::{gap, missing, running_hash},
    project::{BATCH_BYTES_MAX, BatchOutcome, OUTAGE_ATTEMPTS_MIN, OWNED, Projector, shrunk, undo},
    reader::{ApplyFailure, Reader, guarded},
};
use crate::{
    model::projection::RunKind,
    projection::{PoisonPolicy, ProjectionContext},
    store::{
        fault::Fault,
        projections,
        runs::{self, Advance, DueRun, Held, OpenRun, OpenedRun, Standing},
    },
    transaction::Tx,
};

/// Delay before the next batch of a run after an outage, or while another worker executes the run.
const PAUSE: Duration = Duration::from_millis(500);

/// The outcome of a batch of a run.
enum Filled {
    /// The batch has moved the run to a later log position.
    On,
    /// The run has applied all events up to the log position at which it has to end.
    Full(Standing),
    /// The run of the projection has finished, another worker executes it, or it has just failed.
    Over,
    /// The batch of the run met an outage: run the next batch after this delay.
    Wait(Duration),
}

impl Projector {
    /// Executes one batch or one phase of a run.
    pub(crate) async fn run_batch(&self, due: &DueRun, limit: &mut i32) -> BatchOutcome {
        let Some(reader) = self.reader(&due.projection).cloned() else {
            return BatchOutcome::Idle;
        };
        let outcome = match due.retired {
            Some(_) => self.clear_retired(&reader, due).await,
            None => self.try_run(&reader, due, limit).await,
        };
        outcome.unwrap_or_else(|fault| {
            let error = fault.message();
            match fault {
                Fault::Refused { .. } => {
                    tracing::warn!(run = due.id, error, "a batch of a run could not begin")
                }
                _ => tracing::debug!(
                    run = due.id,
                    error,
                    "a batch of a run could not begin, trying again"
                ),
            }
            BatchOutcome::Wait(PAUSE)
        })
    }

    async fn try_run(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
        limit: &mut i32,
    ) -> Result<BatchOutcome, Fault> {
        if !reader.generations() && matches!(due.kind, RunKind::Shadow | RunKind::Verify) {
            let why =
                "its rows carry no generation (`GENERATIONS`): it can only be rebuilt in place";
            return self.end(due, Some(why.into()), None).await;
        }
        match due.kind {
            RunKind::Rebuild => self.begin_in_place(reader, due).await,
            RunKind::Replay => match self.fill(reader, due, limit, None).await? {
                Filled::On => Ok(BatchOutcome::More),
                Filled::Full(run) => {
                    self.end(
                        due,
                        None,
                        Some(format!("replayed up to position {}", run.position)),
                    )
                    .await
                }
                Filled::Over => Ok(BatchOutcome::Idle),
                Filled::Wait(pause) => Ok(BatchOutcome::Wait(pause)),
            },
            RunKind::Shadow | RunKind::Verify => match self.fill(reader, due, limit, None).await? {
                Filled::On => Ok(BatchOutcome::More),
                Filled::Full(_) => self.compare(reader, due, limit).await,
                Filled::Over => Ok(BatchOutcome::Idle),
                Filled::Wait(pause) => Ok(BatchOutcome::Wait(pause)),
            },
        }
    }

    fn run_ask<'a>(&'a self, reader: &'a dyn Reader, due: &DueRun, limit: i32) -> OpenRun<'a> {
        OpenRun {
            run: due.id,
            version: reader.version().into(),
            worker: &self.worker,
            names: reader.names(),
            limit,
            bytes: BATCH_BYTES_MAX,
            to: None,
            scope: false,
        }
    }

    /// Applies one batch of events of a run, at most up to the log position `to`.
    async fn fill(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
        limit: &mut i32,
        to: Option<i64>,
    ) -> Result<Filled, Fault> {
        let mut tx = self.begin().await?;
        // A replay writes to the rows of the current generation of the projection, as batches of
        // workers do, so it locks the row of the scope for this batch.
        let ask = OpenRun {
            to,
            scope: due.kind == RunKind::Replay,
            ..self.run_ask(reader.as_ref(), due, *limit)
        };
        let OpenedRun { run, events } = runs::open(&mut tx, &self.target, &ask).await?;
        let run = match run {
            Held::Ours(run) => run,
            Held::Theirs => return tx.finish("commit").await.map(|()| Filled::Over),
            Held::Outdated => {
                tx.finish("commit").await?;
                self.outdated_run(due).await?;
                return Ok(Filled::Over);
            }
        };
        let Some(last) = events.last() else {
            tx.finish("commit").await?;
            let end = run
                .target
                .filter(|_| due.kind == RunKind::Replay)
                .unwrap_or(run.scope_position);
            let Some(gone) = missing(run.position, to.map_or(end, |to| to.min(end)), &[]) else {
                return Ok(Filled::Full(run));
            };
            self.end(due, Some(gone), None).await?;
            return Ok(Filled::Over);
        };
        let applied = match self
            .apply_run(reader, &due.tenant, &mut tx, &run, &events)
            .await
        {
            Ok(applied) => {
                self.close_run(tx, &self.move_of(due, &run, last.position, Some(applied)))
                    .await
            }
            Err(trouble) => {
                undo(tx).await;
                Err(trouble)
            }
        };
        match applied {
            Ok(()) => {
                *limit = limit.saturating_mul(2).min(self.batch);
                Ok(Filled::On)
            }
            Err(ApplyFailure::Failed { .. }) if events.len() > 1 => {
                *limit = 1;
                Ok(Filled::On)
            }
            Err(ApplyFailure::Outage { message, .. }) if events.len() > 1 => {
                *limit = shrunk(*limit, events.len());
                tracing::warn!(
                    run = due.id,
                    error = message,
                    limit,
                    "a batch of a run met an outage; the next one is smaller"
                );
                Ok(Filled::On)
            }
            Err(ApplyFailure::Failed { message, .. })
                if reader.on_poison() == PoisonPolicy::Park =>
            {
                self.pass_over(reader, due, last.position, &message).await?;
                Ok(Filled::On)
            }
            Err(trouble) => match self.trouble(due, trouble.with_event(last.position)).await? {
                // A batch of one event met an outage, so the run tries the event again later.
                BatchOutcome::Wait(pause) => Ok(Filled::Wait(pause)),
                _ => Ok(Filled::Over),
            },
        }
    }

    /// Builds the update that moves a run to a log position. If no hash of applied events is given,
    /// the run skips the events up to that position.
    fn move_of<'a>(
        &'a self,
        due: &DueRun,
        run: &Standing,
        new: i64,
        applied: Option<i64>,
    ) -> Advance<'a> {
        Advance {
            run: due.id,
            old: run.position,
            new,
            applied: applied.unwrap_or(run.applied),
            has_applied: applied.is_some(),
            worker: &self.worker,
            owned_seconds: OWNED.as_secs_f64(),
        }
    }

    /// Moves the run to its new log position and commits. Rolls back if the run is not at the
    /// position at which the batch began.
    async fn close_run(&self, mut tx: Tx, advance: &Advance<'_>) -> Result<(), ApplyFailure> {
        match runs::advance(&mut tx, &self.target, advance).await {
            Ok(ours) => tx
                .finish(if ours { "commit" } else { "rollback" })
                .await
                .map_err(ApplyFailure::of),
            Err(fault) => {
                undo(tx).await;
                Err(ApplyFailure::of(fault))
            }
        }
    }

    /// Skips an event that the scope has parked or would park, and continues the run. If the run is
    /// a shadow rebuild, its swap of generations later records the event as parked. The function
    /// opens the run a second time: if the event was the first of the run, the rollback of the
    /// batch has undone the changes that opened the run.
    async fn pass_over(
        &self,
        reader: &Arc<dyn Reader>,
        due: &DueRun,
        position: i64,
        error: &str,
    ) -> Result<(), Fault> {
        tracing::warn!(
            run = due.id,
            position,
            "a run skips an event that it could not apply: {error}"
        );
        let mut tx = self.begin().await?;
        let ask = OpenRun {
            scope: due.kind == RunKind::Replay,
            ..self.run_ask(reader.as_ref(), due, 1)
        };
        let ours = match runs::open(&mut tx, &self.target, &ask).await?.run {
            Held::Ours(run) if run.position == position - 1 => {
                runs::pass_over(&mut tx, &self.target, due.id, position, error).await?;
                runs::advance(
                    &mut tx,
                    &self.target,
                    &self.move_of(due, &run, position, None),
                )
                .await?
            }
            _ => false,
        };
        tx.finish(if ours { "commit" } else { "rollback" }).await
    }

    async fn apply_run(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        tx: &mut Tx,
        run: &Standing,
        events: &[projections::LogRow],
    ) -> Result<i64, ApplyFailure> {
        if let Some(gone) = gap(run.position, events) {
            return Err(ApplyFailure::Failed {
                message: gone,
                fatal: true,
            });
        }
        let cx = ProjectionContext {
            tenant,
            generation: run.run_generation,
            replaying: true,
            tx,
        };
        guarded(self.timeout(reader.as_ref()), reader.apply(events, cx)).await?;
        Ok(running_hash(run.applied, events))
    }

    async fn outdated_run(&self, due: &DueRun) -> Result<BatchOutcome, Fault> {
        let why = "the run was started by an older version of the projection, or would replay onto the rows of an older version: request a rebuild";
        self.end(due, Some(why.into()), None).await
    }

    async fn trouble(&self, due: &DueRun, trouble: ApplyFailure) -> Result<BatchOutcome, Fault> {
        match trouble {
            ApplyFailure::Busy(message) => Err(Fault::Busy(message)),
            ApplyFailure::Failed { message, .. } => self.end(due, Some(message), None).await,
            ApplyFailure::Outage { message, .. } => {
                tracing::warn!(
                    run = due.id,
                    error = message,
                    "a batch of a run met an outage"
                );
                let (run, error) = (due.id, message.clone());
                let counted = self.call(move |connection| async move {
                    runs::outage(&connection, run, &error).await
                });
                let tries = counted.await?.map_or(0, i32::unsigned_abs);
                if tries >= OUTAGE_ATTEMPTS_MIN {
                    return self
                        .end(due, Some(format!("{message}; tried {tries} times")), None)
                        .await;
                }
                Ok(BatchOutcome::Wait(PAUSE * 2_u32.pow(tries)))
            }
        }
    }

    async fn end(
        &self,
        due: &DueRun,
        error: Option<String>,
        verdict: Option<String>,
    ) -> Result<BatchOutcome, Fault> {
        let run = due.id;
        if let Some(error) = &error {
            tracing::warn!(
                run,
                projection = due.projection,
                tenant = due.tenant,
                "a run has failed: {error}"
            );
        }
        self.call(move |connection| async move {
            runs::finish(&connection, run, error.as_deref(), verdict.as_deref()).await
        })
        .await?;
        self.pool.connections.log.wake_runs();
        Ok(BatchOutcome::Idle)
    }
}
