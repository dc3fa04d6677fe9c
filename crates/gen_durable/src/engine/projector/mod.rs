//! The projector: the loop of a worker that runs projections. A scope is one projection over the
//! log of one tenant. The projector assigns log positions to events that have none, finds the logs
//! that have grown, and runs one batch of each of their scopes in order, over a few connections. A
//! scope that is idle costs nothing.

mod batch;
mod discover;
mod known;
mod project;
mod reader;
mod run;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use self::{discover::Discovery, known::Known};
pub(crate) use self::{
    project::{BatchOutcome, Projector},
    reader::{Reader, erased},
};
use super::core::Core;
use crate::{
    settings::Settings,
    store::{
        projections,
        runs::{self, Due},
    },
    wake::LogWake,
};

/// The projector polls the event logs fast until `BUSY_FOR` after the last new event. After that it
/// polls less often, in stages, as the picker does.
const BUSY_FOR: Duration = Duration::from_secs(5);
const CALM_AFTER: Duration = Duration::from_secs(30);
const CALM_POLL: Duration = Duration::from_millis(50);
const QUIET_AFTER: Duration = Duration::from_secs(60);
const QUIET_POLL: Duration = Duration::from_millis(250);
/// A sweep of the projector reads the index of events without a log position from the beginning.
/// Sweeps use at most one part in `SWEEP_SHARE` of the time, with intervals within these bounds.
const SWEEP_SHARE: u32 = 100;
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(500);
const SWEEP_EVERY_IDLE: Duration = Duration::from_secs(2);
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(5);
/// How often the projector reads the runs that other processes have requested.
const RUNS_EVERY: Duration = Duration::from_secs(1);

/// A unit of work: a scope (the index of its projection, and its tenant), a parked event of a
/// scope, or a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Scope(usize, String),
    Parked(usize, String, i64),
    Run(i64),
}

/// The state of a unit of work (a scope, a parked event or a run) that has a batch scheduled or
/// under way.
#[derive(Debug)]
struct Entry {
    limit: i32,
    /// The highest log position that a hint or a poll reported while a batch of this unit was under
    /// way.
    again: i64,
    under_way: bool,
    run: Option<Due>,
}

struct Schedule {
    projector: Arc<Projector>,
    entries: HashMap<Key, Entry>,
    known: Known,
    /// Units of work (scopes, parked events, runs) that can start their batch now, in order.
    ready: VecDeque<Key>,
    /// Units of work (scopes, parked events, runs) that start their batch at a later time.
    later: Vec<(Instant, Key)>,
    running: usize,
    batches_max: usize,
    /// Whether the projector has recorded in the database which scopes need a rebuild by this
    /// build.
    offered: bool,
}

/// Assigns log positions and runs projections until the shutdown of the engine begins.
pub(crate) async fn run(core: Arc<Core>, projector: Arc<Projector>, log_wake: Arc<LogWake>) {
    let (report, mut reports) = mpsc::unbounded_channel();
    let mut discovery = Discovery::new(projector.clone());
    let batches_max = core.settings.projectors;
    let mut schedule = Schedule {
        projector: projector.clone(),
        entries: HashMap::new(),
        known: Known::default(),
        ready: VecDeque::new(),
        later: Vec::new(),
        running: 0,
        batches_max,
        offered: false,
    };
    let settings = &core.settings;
    // An engine without projections only assigns log positions that other processes have not
    // assigned, and this is not urgent.
    let no_readers = projector.readers.is_empty();
    let begin = Instant::now()
        + if no_readers {
            SWEEP_EVERY_MAX
        } else {
            Duration::ZERO
        };
    let (mut poll, mut sweep, mut seek) = (begin, begin, begin);
    let mut trim = Instant::now() + settings.collect_every;
    let mut news_at = (!no_readers).then(Instant::now);
    loop {
        let next = schedule
            .later
            .iter()
            .map(|(at, _)| *at)
            .chain([poll, sweep, seek, trim])
            .min()
            .unwrap_or(poll);
        tokio::select! {
            biased;
            () = core.phase.draining() => break,
            Some((key, ended)) = reports.recv() => schedule.ended(key, ended),
            () = log_wake.woken() => {
                schedule.logs_grown(log_wake.take().into_iter().map(|tenant| (tenant, i64::MAX)));
                // This process has recorded an event, perhaps without a log position, or is about
                // to record one. The projector polls often from now on.
                let now = Instant::now();
                news_at = Some(now);
                poll = poll.min(now + settings.busy_poll);
                if log_wake.take_runs() {
                    (seek, sweep) = (now, now);
                }
            }
            () = tokio::time::sleep_until(next.into()) => {}
        }
        let now = Instant::now();
        schedule.start_due(now);
        if sweep <= now {
            let behind = discovery.sweep(false).await;
            schedule.known.forget(Instant::now());
            let least = match (no_readers, behind.scopes.is_empty() && !behind.more) {
                (true, _) => SWEEP_EVERY_MAX,
                (false, true) => SWEEP_EVERY_IDLE,
                (false, false) => SWEEP_EVERY_MIN,
            };
            schedule.scopes_behind(behind.scopes);
            sweep = Instant::now() + (now.elapsed() * SWEEP_SHARE).clamp(least, SWEEP_EVERY_MAX);
        }
        if poll <= now {
            let grown = discovery.poll().await;
            if !grown.is_empty() || discovery.waits() {
                news_at = Some(Instant::now());
            }
            schedule.logs_grown(grown);
            poll = Instant::now() + pace(settings, news_at, no_readers);
        }
        if seek <= now {
            if !no_readers {
                schedule.seek().await;
            }
            seek = Instant::now() + RUNS_EVERY;
        }
        if trim <= now {
            // The projector deletes a few old events at a time, so that no batch waits for the
            // deletion.
            let trimmed = discovery
                .trim(settings.event_retention, settings.collect_every)
                .await;
            let more = discovery.collect(settings.timer_retention).await || trimmed;
            trim = Instant::now()
                + if more {
                    Duration::ZERO
                } else {
                    settings.collect_every
                };
        }
        while let Some((key, work)) = schedule.next() {
            let report = report.clone();
            super::start(&core, async move {
                let ended = work.await;
                let _ = report.send((key, ended));
            });
        }
    }
    drop(report);
    // The projector waits until the batches that are under way have ended, or until the shutdown of
    // the engine aborts them at its deadline.
    while schedule.running > 0 {
        match reports.recv().await {
            Some((key, ended)) => schedule.ended(key, ended),
            None => return,
        }
    }
}

/// Returns the delay before the projector's next poll: short for a while after an event was
/// recorded, then longer and longer.
fn pace(settings: &Settings, news_at: Option<Instant>, no_readers: bool) -> Duration {
    let pause = match news_at.map(|at| at.elapsed()) {
        Some(idle) if idle < BUSY_FOR => settings.busy_poll,
        _ if no_readers => return SWEEP_EVERY_MAX,
        Some(idle) if idle < CALM_AFTER => CALM_POLL,
        Some(idle) if idle < QUIET_AFTER => QUIET_POLL,
        _ => settings.idle_poll,
    };
    pause.clamp(settings.busy_poll, settings.idle_poll)
}

/// The outcome of a projection batch, the maximum number of events of the next batch, and the
/// position of the scope's cursor.
type Ended = (BatchOutcome, i32, i64);
type Work = futures_util::future::BoxFuture<'static, Ended>;

impl Schedule {
    /// Schedules a batch of each scope of these tenants. The log of each tenant has grown at least
    /// to the given position.
    fn logs_grown(&mut self, tenants: impl IntoIterator<Item = (String, i64)>) {
        let now = Instant::now();
        for (tenant, position) in tenants {
            for index in 0..self.projector.readers.len() {
                let key = Key::Scope(index, tenant.clone());
                if self.known.is_news(&key, position, now) {
                    self.wanted(key, position, None);
                }
            }
        }
    }

    fn scopes_behind(&mut self, scopes: Vec<(String, String)>) {
        for (tenant, projection) in scopes {
            if let Some(index) = self.index(&projection) {
                self.make_due(&Key::Scope(index, tenant.clone()));
                self.wanted(Key::Scope(index, tenant), i64::MAX, None);
            }
        }
    }

    fn index(&self, projection: &str) -> Option<usize> {
        self.projector
            .readers
            .iter()
            .position(|reader| reader.name() == projection)
    }

    /// Schedules a batch of a unit of work (a scope, a parked event or a run), unless a batch of it
    /// is already scheduled.
    fn wanted(&mut self, key: Key, position: i64, run: Option<Due>) {
        match self.entries.get_mut(&key) {
            // A batch that has not begun will read the new events anyway.
            Some(entry) if !entry.under_way => {}
            Some(entry) => entry.again = entry.again.max(position),
            None => {
                let limit = self.projector.batch;
                self.entries.insert(
                    key.clone(),
                    Entry {
                        limit,
                        again: 0,
                        under_way: false,
                        run,
                    },
                );
                self.ready.push_back(key);
            }
        }
    }

    /// Makes a scope that waits for a later batch due now, because the row of the scope says that
    /// the scope can continue, for example after an operator resumed it.
    fn make_due(&mut self, key: &Key) {
        let now = Instant::now();
        self.later
            .iter_mut()
            .filter(|(_, later)| later == key)
            .for_each(|(at, _)| *at = now);
    }

    fn start_due(&mut self, now: Instant) {
        let (due, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.later = later;
        let due: Vec<(Instant, Key)> = due;
        self.ready.extend(due.into_iter().map(|(_, key)| key));
    }

    fn ended(&mut self, key: Key, (outcome, limit, position): Ended) {
        self.running -= 1;
        let theirs = outcome == BatchOutcome::Theirs;
        if matches!(key, Key::Scope(..)) {
            self.known
                .note(key.clone(), position, theirs, Instant::now());
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        (entry.limit, entry.under_way) = (limit, false);
        let again = std::mem::take(&mut entry.again);
        match outcome {
            BatchOutcome::More => self.ready.push_back(key),
            // A hint or a poll reported new events while the batch was under way: the batch may
            // have read the log before these events were added.
            BatchOutcome::Idle if again > position && matches!(key, Key::Scope(..)) => {
                self.ready.push_back(key)
            }
            // Another worker moved the cursor of the scope a moment ago. If that worker crashes,
            // this process continues with the scope when the other worker no longer owns it.
            BatchOutcome::Theirs if matches!(key, Key::Scope(..)) => {
                self.later.push((Instant::now() + project::OWNED, key))
            }
            BatchOutcome::Idle | BatchOutcome::Theirs => drop(self.entries.remove(&key)),
            BatchOutcome::Wait(pause) => self.later.push((Instant::now() + pause, key)),
        }
    }

    /// Returns the next projection batch, if one is ready and a connection is free.
    fn next(&mut self) -> Option<(Key, Work)> {
        if self.running >= self.batches_max {
            return None;
        }
        let key = self.ready.pop_front()?;
        let entry = self.entries.get_mut(&key)?;
        entry.under_way = true;
        let (projector, mut limit) = (self.projector.clone(), entry.limit);
        let work: Work = match (&key, entry.run.clone()) {
            (Key::Scope(index, tenant), _) => {
                let reader = projector.readers.get(*index)?.clone();
                let tenant = tenant.clone();
                Box::pin(async move {
                    let (outcome, position) = projector
                        .project_batch(&reader, &tenant, &mut limit, false)
                        .await;
                    (outcome, limit, position)
                })
            }
            (Key::Parked(index, tenant, position), _) => {
                let reader = projector.readers.get(*index)?.clone();
                let (tenant, position) = (tenant.clone(), *position);
                Box::pin(async move {
                    (
                        projector.redrive(&reader, &tenant, position).await,
                        limit,
                        0,
                    )
                })
            }
            (Key::Run(_), Some(due)) => {
                Box::pin(async move { (projector.run_batch(&due, &mut limit).await, limit, 0) })
            }
            (Key::Run(_), None) => return None,
        };
        self.running += 1;
        Some((key, work))
    }

    /// Reads the runs and the redrives of parked events that operators have requested, and
    /// schedules them.
    async fn seek(&mut self) {
        self.offered = self.offered || self.projector.offer_all().await.is_ok();
        let (names, builds) = (self.projector.names(), self.projector.builds());
        let worker = self.projector.worker.clone();
        let found = self
            .projector
            .call(move |connection| async move {
                Ok((
                    runs::due(&connection, &builds, &worker).await?,
                    projections::redrives(&connection, &names).await?,
                ))
            })
            .await;
        match found {
            Ok((due, redrives)) => {
                for run in due {
                    self.wanted(Key::Run(run.id), 0, Some(run));
                }
                for (tenant, projection, position) in redrives {
                    if let Some(index) = self.index(&projection) {
                        self.wanted(Key::Parked(index, tenant, position), 0, None);
                    }
                }
            }
            Err(fault) => tracing::debug!(
                error = fault.message(),
                "could not read requested runs and redrives"
            ),
        }
    }
}

/// Runs projections on the calling task until no work is left. For tests.
#[cfg(feature = "testing")]
pub(crate) async fn settle(projector: &Arc<Projector>) -> Result<(), crate::store::fault::Fault> {
    let mut discovery = Discovery::new(projector.clone());
    projector.offer_all().await?;
    loop {
        let mut moved = false;
        for (tenant, projection) in discovery.sweep(true).await.scopes {
            let Some(reader) = projector.reader(&projection) else {
                continue;
            };
            let mut limit = projector.batch;
            while projector
                .project_batch(reader, &tenant, &mut limit, true)
                .await
                .0
                == BatchOutcome::More
            {
                moved = true;
            }
        }
        let asked = projector.names();
        let redrives = projector.call(move |connection| async move {
            projections::redrives(&connection, &asked).await
        });
        for (tenant, projection, position) in redrives.await? {
            let Some(reader) = projector.reader(&projection) else {
                continue;
            };
            projector.redrive(reader, &tenant, position).await;
        }
        let (builds, worker) = (projector.builds(), projector.worker.clone());
        let due = projector
            .call(move |connection| async move { runs::due(&connection, &builds, &worker).await });
        for run in due.await? {
            let mut limit = projector.batch;
            let outcome = loop {
                match projector.run_batch(&run, &mut limit).await {
                    BatchOutcome::More => {}
                    outcome => break outcome,
                }
            };
            // A run that has to wait does not count as progress, so it does not make the loop of
            // `settle` continue.
            moved = moved || !matches!(outcome, BatchOutcome::Wait(_));
        }
        if !moved {
            return Ok(());
        }
    }
}
