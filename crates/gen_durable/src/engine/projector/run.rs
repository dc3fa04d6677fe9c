//! Runs: replays, rebuilds, verifications. Each turn is a short transaction of its own that begins with what the row of the run
//! says, so that any process can go on where another died.

use std::{sync::Arc, time::Duration};

use super::{
    batch::{gap, missing, running_hash},
    reader::{Reader, Trouble, guarded},
    turn::{BATCH_BYTES_MAX, OUTAGE_ATTEMPTS_MIN, OWNED, Projector, Turn, shrunk, undo},
};
use crate::{
    projection::{Digest, Poison, Projecting},
    store::{
        fault::Fault,
        projections::{self, Cursor},
        runs::{self, Advance, Ask, Due, Held, Opened, RunKind, Standing},
        tx::Tx,
    },
};

/// After an outage, or when somebody else is at it.
const PAUSE: Duration = Duration::from_millis(500);

/// What a batch of a run came to.
enum Filled {
    /// It moved on.
    On,
    /// There is nothing more to apply, here.
    Full(Standing),
    /// The run is over, is another worker's, or has failed just now.
    Over,
    /// It met an outage: not before this long.
    Wait(Duration),
}

impl Projector {
    /// One turn of a run.
    pub(crate) async fn run_turn(&self, due: &Due, limit: &mut i32) -> Turn {
        let Some(reader) = self.reader(&due.projection).cloned() else {
            return Turn::Idle;
        };
        let turned = match due.retired {
            Some(_) => self.clear_retired(&reader, due).await,
            None => self.try_run(&reader, due, limit).await,
        };
        turned.unwrap_or_else(|fault| {
            let error = fault.message();
            match fault {
                Fault::Refused { .. } => {
                    tracing::warn!(run = due.id, error, "a turn of a run could not begin")
                }
                _ => tracing::debug!(run = due.id, error, "a turn of a run was lost"),
            }
            Turn::Wait(PAUSE)
        })
    }

    async fn try_run(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
        limit: &mut i32,
    ) -> Result<Turn, Fault> {
        if !reader.generations() && matches!(due.kind, RunKind::Shadow | RunKind::Verify) {
            let why =
                "its rows carry no generation (`GENERATIONS`): it can only be rebuilt in place";
            return self.end(due, Some(why.into()), None).await;
        }
        match due.kind {
            RunKind::Rebuild => self.begin_in_place(reader, due).await,
            RunKind::Replay => match self.fill(reader, due, limit, None).await? {
                Filled::On => Ok(Turn::More),
                Filled::Full(run) => {
                    self.end(
                        due,
                        None,
                        Some(format!("replayed up to position {}", run.position)),
                    )
                    .await
                }
                Filled::Over => Ok(Turn::Idle),
                Filled::Wait(pause) => Ok(Turn::Wait(pause)),
            },
            RunKind::Shadow | RunKind::Verify => match self.fill(reader, due, limit, None).await? {
                Filled::On => Ok(Turn::More),
                Filled::Full(_) => self.compare(reader, due, limit).await,
                Filled::Over => Ok(Turn::Idle),
                Filled::Wait(pause) => Ok(Turn::Wait(pause)),
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

    /// Clear, and let live begin anew: one transaction. The digest of the rows as they are is noted before, for a projection that
    /// has no generations to compare.
    async fn begin_in_place(&self, reader: &Arc<dyn Reader>, due: &Due) -> Result<Turn, Fault> {
        match self.digest_of_live(reader, due).await? {
            Ok((live, Some(digest))) => self.note_digest(due, digest, live.position).await?,
            Ok((_, None)) => {}
            // Rows that no digest can be taken of are a reason to rebuild.
            Err(trouble) => tracing::warn!(
                run = due.id,
                ?trouble,
                "no digest of the rows that are cleared"
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
            Held::Theirs => return tx.finish("commit").await.map(|()| Turn::Wait(PAUSE)),
            Held::Outdated => {
                tx.finish("commit").await?;
                return self.outdated_run(due).await;
            }
        };
        // What is cleared must come back: better the old rows than none.
        if let Some(gone) = missing(0, run.scope_position, &events) {
            tx.finish("rollback").await?;
            return self
                .end(
                    due,
                    Some(format!("{gone}; the rows are left as they are")),
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
            return self.trouble(due, Trouble::of(fault)).await;
        }
        self.pool
            .inner
            .log
            .poke(std::iter::once(due.tenant.as_str()));
        Ok(Turn::Idle)
    }

    async fn clear(
        &self,
        reader: &Arc<dyn Reader>,
        tx: &mut Tx,
        tenant: &str,
        generation: i32,
    ) -> Result<(), Trouble> {
        let cx = Projecting {
            tenant,
            generation,
            replaying: true,
            tx,
        };
        guarded(self.timeout(reader.as_ref()), reader.clear(cx)).await
    }

    /// One batch of a run, no further than `to`.
    async fn fill(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
        limit: &mut i32,
        to: Option<i64>,
    ) -> Result<Filled, Fault> {
        let mut tx = self.begin().await?;
        // A replay writes to the rows that live writes to: live stands still for this batch.
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
            Err(Trouble::Failed { .. }) if events.len() > 1 => {
                *limit = 1;
                Ok(Filled::On)
            }
            Err(Trouble::Outage { message, .. }) if events.len() > 1 => {
                *limit = shrunk(*limit, events.len());
                tracing::warn!(
                    run = due.id,
                    error = message,
                    limit,
                    "a batch of a run is made smaller"
                );
                Ok(Filled::On)
            }
            Err(Trouble::Failed { message, .. }) if reader.on_poison() == Poison::Park => {
                self.pass_over(reader, due, last.position, &message).await?;
                Ok(Filled::On)
            }
            Err(trouble) => match self.trouble(due, trouble.with_event(last.position)).await? {
                // An outage of one event: another try, later.
                Turn::Wait(pause) => Ok(Filled::Wait(pause)),
                _ => Ok(Filled::Over),
            },
        }
    }

    /// A run's move to a position; without the hash of what was applied, the events are passed over.
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

    /// Moves the run and commits, or rolls back if the run is not where it was found.
    async fn close_run(&self, mut tx: Tx, advance: &Advance<'_>) -> Result<(), Trouble> {
        match runs::advance(&mut tx, &self.target, advance).await {
            Ok(ours) => tx
                .finish(if ours { "commit" } else { "rollback" })
                .await
                .map_err(Trouble::of),
            Err(fault) => {
                undo(tx).await;
                Err(Trouble::of(fault))
            }
        }
    }

    /// Live has parked this event, or would: the run goes on without it. When the rows of a shadow are read, it is parked. The
    /// run is opened again: what began it was rolled back with the batch, if this is its first event.
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
            "a run passes over an event that it could not apply: {error}"
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
    ) -> Result<i64, Trouble> {
        if let Some(gone) = gap(run.position, events) {
            return Err(Trouble::Failed {
                message: gone,
                fatal: true,
            });
        }
        let cx = Projecting {
            tenant,
            generation: run.run_generation,
            replaying: true,
            tx,
        };
        guarded(self.timeout(reader.as_ref()), reader.apply(events, cx)).await?;
        Ok(running_hash(run.applied, events))
    }

    /// Full up to where live stood: compare the rows of both at one position, then swap or say what came of it.
    async fn compare(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
        limit: &mut i32,
    ) -> Result<Turn, Fault> {
        // Live's rows and live's cursor, as one snapshot has them: live goes on meanwhile.
        let (live, live_digest) = match self.digest_of_live(reader, due).await? {
            Ok(found) => found,
            Err(trouble) => return self.trouble(due, trouble).await,
        };
        let run = loop {
            match self.fill(reader, due, limit, Some(live.position)).await? {
                Filled::On => {}
                Filled::Full(run) => break run,
                Filled::Over => return Ok(Turn::Idle),
                Filled::Wait(pause) => return Ok(Turn::Wait(pause)),
            }
        };
        if run.position != live.position {
            // Somebody else went on with it, or live was rebuilt: from the beginning of this act.
            return Ok(Turn::Wait(PAUSE));
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
                format!("not compared at position {at}: it offers no digest"),
            ),
        };
        let hashes = if live.applied == run.applied {
            ""
        } else {
            "; and other events were applied"
        };
        let verdict = format!("{verdict}{hashes}");
        self.note(due, live_digest, at, &verdict).await?;
        if due.kind == RunKind::Verify {
            let error = live_digest
                .is_none()
                .then(|| "it offers no digest: nothing can be verified".to_owned());
            return self.end(due, error, Some(verdict)).await;
        }
        // Another version makes other rows: that is what it is for.
        let same_version = live.version == i32::from(reader.version());
        if !equal && same_version && !run.anyway {
            let error = format!("{verdict}: not swapped");
            return self.end(due, Some(error), Some(verdict)).await;
        }
        self.swap(reader, due, limit).await
    }

    async fn digest_of_live(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
    ) -> Result<Result<(Cursor, Option<Digest>), Trouble>, Fault> {
        let mut tx = self.begin().await?;
        projections::one_snapshot(&mut tx, &self.target).await?;
        let Some(live) =
            projections::cursor_in(&mut tx, &self.target, &due.tenant, reader.name()).await?
        else {
            tx.finish("rollback").await?;
            return Ok(Err(Trouble::Failed {
                message: "there is no such scope any more".into(),
                fatal: true,
            }));
        };
        let cx = Projecting {
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
    ) -> Result<Result<Option<Digest>, Trouble>, Fault> {
        let mut tx = self.begin().await?;
        // A digest may take longer than we are left alone with the run: what is compared is one snapshot's.
        projections::one_snapshot(&mut tx, &self.target).await?;
        if runs::position_in(&mut tx, &self.target, due.id).await? != Some(run.position) {
            tx.finish("rollback").await?;
            return Ok(Err(Trouble::Busy(
                "another worker went on with the run".into(),
            )));
        }
        let (tenant, generation) = (due.tenant.as_str(), run.run_generation);
        let cx = Projecting {
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

    /// Under the lock of the scope: apply what live has done since, and let readers see these rows. While more than a batch is
    /// missing, live is not held up.
    async fn swap(
        &self,
        reader: &Arc<dyn Reader>,
        due: &Due,
        limit: &mut i32,
    ) -> Result<Turn, Fault> {
        loop {
            match self.fill(reader, due, limit, None).await? {
                Filled::On => continue,
                Filled::Full(_) => {}
                Filled::Over => return Ok(Turn::Idle),
                Filled::Wait(pause) => return Ok(Turn::Wait(pause)),
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
                return tx.finish("commit").await.map(|()| Turn::Idle);
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
                            return self.trouble(due, Trouble::of(fault)).await;
                        }
                    }
                    // The batches before the lock find out with which event.
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
                Err(fault) => return self.trouble(due, Trouble::of(fault)).await,
            };
            if swapped {
                tracing::info!(
                    projection = reader.name(),
                    tenant = due.tenant,
                    run = due.id,
                    "a rebuilt generation is read"
                );
                self.pool
                    .inner
                    .log
                    .poke(std::iter::once(due.tenant.as_str()));
                self.pool.inner.log.poke_runs();
                return Ok(Turn::Idle);
            }
        }
    }

    /// Rows that nobody reads any more.
    async fn clear_retired(&self, reader: &Arc<dyn Reader>, due: &Due) -> Result<Turn, Fault> {
        let mut tx = self.begin().await?;
        let Some(generation) = runs::lock_retired(&mut tx, &self.target, due.id).await? else {
            return tx.finish("commit").await.map(|()| Turn::Idle);
        };
        if let Err(trouble) = self.clear(reader, &mut tx, &due.tenant, generation).await {
            tracing::warn!(
                run = due.id,
                generation,
                ?trouble,
                "could not clear what nobody reads any more"
            );
            return Ok(Turn::Wait(PAUSE * 10));
        }
        runs::cleared(&mut tx, &self.target, due.id).await?;
        tx.finish("commit").await.map(|()| Turn::Idle)
    }

    async fn outdated_run(&self, due: &Due) -> Result<Turn, Fault> {
        let why = "it was begun by an older version of the projection, or would replay onto the rows of one: ask for a rebuild";
        self.end(due, Some(why.into()), None).await
    }

    async fn trouble(&self, due: &Due, trouble: Trouble) -> Result<Turn, Fault> {
        match trouble {
            Trouble::Busy(message) => Err(Fault::Busy(message)),
            Trouble::Failed { message, .. } => self.end(due, Some(message), None).await,
            Trouble::Outage { message, .. } => {
                tracing::warn!(
                    run = due.id,
                    error = message,
                    "a turn of a run met an outage"
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
                Ok(Turn::Wait(PAUSE * 2_u32.pow(tries)))
            }
        }
    }

    async fn end(
        &self,
        due: &Due,
        error: Option<String>,
        verdict: Option<String>,
    ) -> Result<Turn, Fault> {
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
        self.pool.inner.log.poke_runs();
        Ok(Turn::Idle)
    }
}
