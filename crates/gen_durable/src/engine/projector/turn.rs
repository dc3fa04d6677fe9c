//! One batch of one scope: events, what follows from them, and the cursor, in one transaction. No process and no timer: it
//! is the same for a live worker, for a run, and for a test bench.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::reader::{Reader, Trouble, guarded};
use crate::{
    codec,
    error::Error,
    projection::{NewVersion, Poison, Projecting},
    settings::Settings,
    store::{
        connection::Connection,
        fault::Fault,
        pool::Pool,
        projections::{self, Ask, Fate, LogRow, Move, Opened, Swept, Verdict},
        runs::{self, Request, RunKind},
        target::Target,
        tx::Tx,
    },
};

/// About how much payload a batch may weigh.
pub(crate) const BATCH_BYTES_MAX: i64 = 8 * 1024 * 1024;
/// Whoever moved a cursor is left alone with it for this long.
pub(crate) const OWNED: Duration = Duration::from_secs(2);
/// A scope whose row somebody holds: a batch, or a swap, which live should not notice.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);
/// How long a rollback may take.
const UNDO_PATIENCE: Duration = Duration::from_secs(1);
/// After an outage.
const OUTAGE_PAUSE: Duration = Duration::from_millis(500);
/// A scope that waits for an operator, or for another build.
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// What all batches of a process have in common.
pub(crate) struct Projector {
    pub(crate) pool: Pool,
    pub(crate) target: Arc<Target>,
    /// By this name others know that somebody is at it.
    pub(crate) worker: String,
    pub(crate) readers: Vec<Arc<dyn Reader>>,
    pub(crate) batch: i32,
    pub(crate) timeout: Duration,
    /// One connection for each batch under way, beside those of steps and callers.
    permits: Arc<Semaphore>,
}

/// What came of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There may be more at once.
    More,
    /// It has caught up.
    Idle,
    /// Not before this long.
    Wait(Duration),
    /// Somebody else is at it.
    Theirs,
}

impl Projector {
    pub(crate) fn new(pool: Pool, worker: String, readers: Vec<Arc<dyn Reader>>, settings: &Settings) -> Projector {
        Projector {
            target: pool.inner.target.clone(),
            pool,
            worker,
            readers,
            batch: i32::try_from(settings.projection_batch).unwrap_or(i32::MAX),
            timeout: settings.step_timeout,
            permits: Arc::new(Semaphore::new(settings.projectors.max(1))),
        }
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.readers.iter().map(|reader| reader.name()).collect()
    }

    pub(crate) fn builds(&self) -> Vec<(&'static str, i32)> {
        self.readers.iter().map(|reader| (reader.name(), reader.version().into())).collect()
    }

    pub(crate) fn swept(&self) -> Vec<Swept> {
        let eager = |reader: &Arc<dyn Reader>| reader.on_new_version() != NewVersion::Offer;
        self.readers.iter().map(|reader| (reader.name(), reader.version().into(), eager(reader))).collect()
    }

    pub(crate) fn reader(&self, name: &str) -> Option<&Arc<dyn Reader>> {
        self.readers.iter().find(|reader| reader.name() == name)
    }

    pub(crate) async fn begin(&self) -> Result<Tx, Fault> {
        let closed = || Fault::Away("the projector has ended".into());
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| closed())?;
        self.pool.begin_with(permit).await
    }

    pub(crate) fn timeout(&self, reader: &dyn Reader) -> Duration {
        reader.policy().timeout.unwrap_or(self.timeout)
    }

    /// One batch of one scope. `limit` shrinks to one event where something is wrong, so that it is known with which, and grows again.
    /// Answers also how far the cursor is known to have come.
    pub(crate) async fn turn(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        limit: &mut i32,
        force: bool,
    ) -> (Turn, i64) {
        let mut reached = 0;
        match self.try_turn(reader, tenant, limit, force, &mut reached).await {
            Ok(turn) => (turn, reached),
            Err(fault) => {
                tracing::debug!(projection = reader.name(), tenant, error = fault.message(), "a batch was lost");
                (Turn::Wait(OUTAGE_PAUSE), 0)
            }
        }
    }

    async fn try_turn(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        limit: &mut i32,
        force: bool,
        reached: &mut i64,
    ) -> Result<Turn, Fault> {
        let mut tx = self.begin().await?;
        let ask = self.ask(reader.as_ref(), tenant, *limit, force);
        let opened = projections::open(&mut tx, &self.target, &ask).await?;
        *reached = opened.position;
        if opened.verdict != Verdict::Go || opened.events.is_empty() {
            tx.finish("commit").await?;
            return self.not_now(reader, tenant, &opened).await;
        }
        let count = opened.events.len();
        let cx = Projecting {
            tenant,
            generation: opened.generation,
            replaying: opened.position < opened.replaying_to,
            tx: &mut tx,
        };
        let applied = match gap(opened.position, &opened.events) {
            Some(gone) => Err(Trouble::Failed { message: gone, fatal: true }),
            None => guarded(self.timeout(reader.as_ref()), reader.apply(&opened.events, cx)).await,
        };
        match applied {
            Ok(()) => {
                let new = opened.events.last().map_or(opened.position, |row| row.position);
                let cursor = Move {
                    generation: opened.generation,
                    old: opened.position,
                    new,
                    applied: running_hash(opened.applied, &opened.events),
                };
                let scope = (tenant, reader.name());
                if !projections::close(&mut tx, &self.target, scope, cursor, &self.worker, OWNED.as_secs_f64()).await? {
                    tx.finish("rollback").await?;
                    return Ok(Turn::Theirs);
                }
                tx.finish("commit").await?;
                *reached = new;
                metrics::counter!("durable_projected_total", "projection" => reader.name())
                    .increment(count.try_into().unwrap_or_default());
                let full = count >= usize::try_from(*limit).unwrap_or_default()
                    || weight(&opened.events) >= BATCH_BYTES_MAX / 4;
                *limit = limit.saturating_mul(2).min(self.batch);
                Ok(if full { Turn::More } else { Turn::Idle })
            }
            Err(trouble) => {
                undo(tx).await;
                self.failed(reader, tenant, &opened, trouble, limit).await
            }
        }
    }

    pub(crate) fn ask<'a>(&'a self, reader: &'a dyn Reader, tenant: &'a str, limit: i32, force: bool) -> Ask<'a> {
        Ask {
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

    async fn not_now(&self, reader: &Arc<dyn Reader>, tenant: &str, opened: &Opened) -> Result<Turn, Fault> {
        Ok(match opened.verdict {
            Verdict::Go => Turn::Idle,
            Verdict::Locked => Turn::Wait(LOCKED_PAUSE),
            Verdict::Theirs => Turn::Theirs,
            Verdict::Newer | Verdict::Halted => Turn::Wait(LONG_PAUSE),
            Verdict::Waiting(seconds) => Turn::Wait(Duration::try_from_secs_f64(seconds).unwrap_or(LONG_PAUSE)),
            Verdict::Outdated => self.outdated(reader, tenant, opened.scope_version).await?,
        })
    }

    /// The rows are those of an older version of this code.
    async fn outdated(&self, reader: &Arc<dyn Reader>, tenant: &str, rows_of: i32) -> Result<Turn, Fault> {
        let (name, version) = (reader.name(), i32::from(reader.version()));
        let whose = tenant.to_owned();
        match reader.on_new_version() {
            NewVersion::GoOn => {
                self.call(
                    move |connection| async move { projections::go_on(&connection, &whose, name, version).await },
                )
                .await?;
                return Ok(Turn::More);
            }
            NewVersion::Rebuild => {
                let kind = if reader.generations() { RunKind::Shadow } else { RunKind::Rebuild };
                let by = format!("version {version}");
                let (tenant, projection) = (whose, name.to_owned());
                let version = Some(version);
                let request = Request { tenant, projection, kind, from: 0, to: None, anyway: true, by, version };
                self.call(move |connection| async move { runs::request(&connection, &request).await.map(drop) })
                    .await?;
                self.pool.inner.log.poke_runs();
            }
            NewVersion::Offer => {
                tracing::warn!(
                    projection = name,
                    tenant,
                    "the rows are those of version {rows_of}, this build has version {version}: it leaves them alone until `durable projections rebuild {name} --tenant {tenant}` is asked for"
                );
                self.offer(vec![(name, version)], Some(whose)).await?;
            }
        }
        Ok(Turn::Wait(LONG_PAUSE))
    }

    /// What this build offers to rebuild is told once as it starts, and again where it is met.
    pub(crate) async fn offer_all(&self) -> Result<(), Fault> {
        let offering = self.readers.iter().filter(|reader| reader.on_new_version() == NewVersion::Offer);
        self.offer(offering.map(|reader| (reader.name(), reader.version().into())).collect(), None).await
    }

    async fn offer(&self, builds: Vec<(&'static str, i32)>, tenant: Option<String>) -> Result<(), Fault> {
        self.call(move |connection| async move { projections::offer(&connection, &builds, tenant.as_deref()).await })
            .await
    }

    async fn failed(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        opened: &Opened,
        trouble: Trouble,
        limit: &mut i32,
    ) -> Result<Turn, Fault> {
        let (message, fatal) = match trouble {
            Trouble::Outage(message) => {
                tracing::debug!(projection = reader.name(), tenant, error = message, "a batch met an outage");
                return Ok(Turn::Wait(OUTAGE_PAUSE));
            }
            Trouble::Failed { message, fatal } => (message, fatal),
        };
        if opened.events.len() > 1 && *limit > 1 {
            *limit = 1;
            return Ok(Turn::More);
        }
        let policy = reader.policy();
        let before = u32::try_from(opened.attempts).unwrap_or_default();
        let pause = policy.delay(before);
        let fate = match reader.on_poison() {
            _ if !fatal && before + 1 < policy.attempts => Fate::Retry(codec::delay_seconds(pause)),
            Poison::Park => Fate::Park,
            Poison::Halt => Fate::Halt,
        };
        let (whose, name, old) = (tenant.to_owned(), reader.name(), opened.position);
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
            projections::fail(&connection, (&whose, name), old, &message, fate, version).await
        })
        .await?;
        Ok(match fate {
            Fate::Retry(_) => Turn::Wait(pause),
            Fate::Park => Turn::More,
            Fate::Halt => Turn::Wait(LONG_PAUSE),
        })
    }

    /// A parked event, once more, by itself.
    pub(crate) async fn redrive(&self, reader: &Arc<dyn Reader>, tenant: &str, position: i64) -> Turn {
        self.try_redrive(reader, tenant, position).await.unwrap_or_else(|fault| {
            tracing::debug!(tenant, position, error = fault.message(), "could not try a parked event again");
            Turn::Wait(OUTAGE_PAUSE)
        })
    }

    async fn try_redrive(&self, reader: &Arc<dyn Reader>, tenant: &str, position: i64) -> Result<Turn, Fault> {
        let mut tx = self.begin().await?;
        let ask = Ask { redrive: Some(position), ..self.ask(reader.as_ref(), tenant, 1, true) };
        let opened = projections::open(&mut tx, &self.target, &ask).await?;
        if opened.verdict != Verdict::Go {
            tx.finish("commit").await?;
            return Ok(if opened.verdict == Verdict::Locked { Turn::Wait(LOCKED_PAUSE) } else { Turn::Idle });
        }
        let cx = Projecting { tenant, generation: opened.generation, replaying: false, tx: &mut tx };
        let gone = || Trouble::Failed { message: "it is no longer in the log".into(), fatal: true };
        let applied = match opened.events.is_empty() {
            true => Err(gone()),
            false => guarded(self.timeout(reader.as_ref()), reader.apply(&opened.events, cx)).await,
        };
        match applied {
            Ok(()) => {
                let key = (tenant, reader.name(), position);
                let word = if projections::redriven(&mut tx, &self.target, key).await? { "commit" } else { "rollback" };
                tx.finish(word).await.map(|()| Turn::Idle)
            }
            Err(Trouble::Outage(message)) => Err(Fault::Away(message)),
            Err(Trouble::Failed { message, .. }) => {
                undo(tx).await;
                let (whose, name) = (tenant.to_owned(), reader.name());
                self.call(move |connection| async move {
                    projections::redrive_failed(&connection, (&whose, name, position), &message).await
                })
                .await
                .map(|()| Turn::Idle)
            }
        }
    }

    pub(crate) async fn call<T, F, Fut>(&self, act: F) -> Result<T, Fault>
    where
        T: Send + 'static,
        F: FnOnce(std::rc::Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        self.pool.call(act).await.map_err(|error: Error| Fault::Away(error.to_string()))?
    }
}

/// Roll back what user code left, so that its locks are gone when we go on; what does not answer is closed, not handed on.
pub(crate) async fn undo(tx: Tx) {
    drop(tokio::time::timeout(UNDO_PATIENCE, tx.finish("rollback")).await);
}

/// What is missing between the cursor and what follows, if something is: nobody passes over a gap.
pub(crate) fn gap(position: i64, events: &[LogRow]) -> Option<String> {
    let mut expected = position;
    events.iter().find_map(|row| {
        expected += 1;
        (row.position != expected)
            .then(|| format!("events {expected} to {} are not in the log any more: it was trimmed", row.position - 1))
    })
}

/// What is missing of the events after a position up to another, if even the first is.
pub(crate) fn missing(position: i64, end: i64, events: &[LogRow]) -> Option<String> {
    match events {
        [] if position < end => {
            Some(format!("events {} to {end} are not in the log any more: it was trimmed", position + 1))
        }
        events => gap(position, events),
    }
}

/// A running hash of what was applied: FNV-1a over positions, names and payloads, whatever the batches were.
pub(crate) fn running_hash(before: i64, events: &[LogRow]) -> i64 {
    let mut hash = if before == 0 { 0xcbf2_9ce4_8422_2325_u64 } else { before.cast_unsigned() };
    let mut take = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for row in events {
        if let Some(payload) = &row.payload {
            take(&row.position.to_le_bytes());
            take(row.name.as_bytes());
            take(payload.as_bytes());
        }
    }
    hash.cast_signed()
}

fn weight(events: &[LogRow]) -> i64 {
    let bytes: usize = events.iter().filter_map(|row| row.payload.as_ref()).map(String::len).sum();
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn row(position: i64, payload: Option<&str>) -> LogRow {
        LogRow {
            position,
            at: Timestamp::UNIX_EPOCH,
            name: "e".into(),
            version: 1,
            payload: payload.map(str::to_owned),
            headers: None,
            instance_id: None,
            step: None,
        }
    }

    #[test]
    fn the_running_hash_is_of_what_was_applied_whatever_the_batches_were() {
        let rows: Vec<LogRow> = (1..=6).map(|n| row(n, (n != 3).then_some("1"))).collect();
        let whole = running_hash(0, &rows);
        for cut in 0..=rows.len() {
            let (first, second) = rows.split_at(cut);
            assert_eq!(running_hash(running_hash(0, first), second), whole, "cut at {cut}");
        }
        let other: Vec<LogRow> = (1..=6).map(|n| row(n, (n != 4).then_some("1"))).collect();
        assert_ne!(running_hash(0, &other), whole);
    }

    #[test]
    fn a_gap_is_told_wherever_it_is() {
        let rows = |positions: &[i64]| positions.iter().map(|n| row(*n, None)).collect::<Vec<_>>();
        assert_eq!(gap(4, &rows(&[5, 6, 7])), None);
        assert_eq!(gap(0, &[]), None);
        assert!(gap(4, &rows(&[7])).is_some_and(|gone| gone.contains("events 5 to 6 are not in the log")));
        assert!(gap(4, &rows(&[5, 8])).is_some_and(|gone| gone.contains("events 6 to 7")));
        assert_eq!(missing(4, 4, &[]), None);
        assert!(missing(4, 9, &[]).is_some_and(|gone| gone.contains("events 5 to 9 are not in the log")));
        assert!(missing(4, 9, &rows(&[7])).is_some_and(|gone| gone.contains("events 5 to 6")));
    }
}
