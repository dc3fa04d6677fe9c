//! Runs of a projection: replays, rebuilds, verifications. Each batch is a short transaction that
//! reads the state of the run from its row, so that any process can continue the run after a crash.

use std::{sync::Arc, time::Duration};

use super::{
    batch::{gap, missing, running_hash},
    project::{BATCH_BYTES_MAX, BatchOutcome, OUTAGE_ATTEMPTS_MIN, OWNED, Projector, shrunk, undo},
    reader::{ApplyFailure, Reader, guarded},
};
use crate::{
    projection::{Digest, PoisonPolicy, ProjectionContext},
    store::{
        fault::Fault,
        projections::{self, Cursor},
        runs::{self, Advance, Ask, Due, Held, Opened, RunKind, Standing},
        tx::Tx,
    },
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
    pub(crate) async fn run_batch(&self, due: &Due, limit: &mut i32) -> BatchOutcome {
        let Some(reader) = self.reader(&due.projection).cloned() else {
            return BatchOutcome::Idle;
        };
        let turned = match due.retired {
            Some(_) => self.clear_retired(&reader, due).await,
            None => self.try_run(&reader, due, limit).await,
        };
        turned.unwrap_or_else(|fault| {
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
        due: &Due,
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

    fn run_ask<'a>(&'a self, reader: &'a dyn Reader, due: &Due, limit: i32) -> Ask<'a> {
        Ask {
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

    /// Begins a rebuild in place: deletes the rows of the projection and sets the cursor of the
    /// scope to the beginning of the log, in one transaction. The run first records the digest of
    /// the current rows, because a projection without generations has nothing else to compare the
    /// new rows with.
    async fn begin_in_place(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
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
        let ask = Ask {
            scope: true,
            ..self.run_ask(reader.as_ref(), due, 1)
        };
        let Opened { run, events } = runs::open(&mut tx, &self.target, &ask).await?;
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
            .inner
            .log
            .wake_readers(std::iter::once(due.tenant.as_str()));
        Ok(BatchOutcome::Idle)
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

    /// Applies one batch of events of a run, at most up to the log position `to`.
    async fn fill(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
        limit: &mut i32,
        to: Option<i64>,
    ) -> Result<Filled, Fault> {
        let mut tx = self.begin().await?;
        // A replay writes to the rows of the current generation of the projection, as batches of
        // workers do, so it locks the row of the scope for this batch.
        let ask = Ask {
            to,
            scope: due.kind == RunKind::Replay,
            ..self.run_ask(reader.as_ref(), due, *limit)
        };
        let Opened { run, events } = runs::open(&mut tx, &self.target, &ask).await?;
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
        due: &Due,
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
        due: &Due,
        position: i64,
        error: &str,
    ) -> Result<(), Fault> {
        tracing::warn!(
            run = due.id,
            position,
            "a run skips an event that it could not apply: {error}"
        );
        let mut tx = self.begin().await?;
        let ask = Ask {
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

    /// Compares the rebuilt rows with the rows of the current generation of the projection at one
    /// log position, after the run has caught up. Then makes the rebuilt rows the current
    /// generation, or records whether the rows are equal.
    async fn compare(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
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

    async fn digest_of_live(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
    ) -> Result<Result<(Cursor, Option<Digest>), ApplyFailure>, Fault> {
        let mut tx = self.begin().await?;
        projections::one_snapshot(&mut tx, &self.target).await?;
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
        due: &Due,
        run: &Standing,
    ) -> Result<Result<Option<Digest>, ApplyFailure>, Fault> {
        let mut tx = self.begin().await?;
        // The digest may need more time than the time for which no other worker may continue the
        // run, so the transaction computes the digest in one snapshot.
        projections::one_snapshot(&mut tx, &self.target).await?;
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
        due: &Due,
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

    async fn note_digest(&self, due: &Due, digest: Digest, position: i64) -> Result<(), Fault> {
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
        due: &Due,
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
            let ask = Ask {
                scope: true,
                ..self.run_ask(reader.as_ref(), due, self.batch)
            };
            let Opened {
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
                    .inner
                    .log
                    .wake_readers(std::iter::once(due.tenant.as_str()));
                self.pool.inner.log.wake_runs();
                return Ok(BatchOutcome::Idle);
            }
        }
    }

    /// Deletes the rows of a retired generation of the projection, which readers no longer use.
    async fn clear_retired(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
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

    async fn outdated_run(&self, due: &Due) -> Result<BatchOutcome, Fault> {
        let why = "the run was started by an older version of the projection, or would replay onto the rows of an older version: request a rebuild";
        self.end(due, Some(why.into()), None).await
    }

    async fn trouble(&self, due: &Due, trouble: ApplyFailure) -> Result<BatchOutcome, Fault> {
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
        due: &Due,
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
        self.pool.inner.log.wake_runs();
        Ok(BatchOutcome::Idle)
    }
}
