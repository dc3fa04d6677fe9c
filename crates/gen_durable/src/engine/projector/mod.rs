//! Who projects what when: a schedule of scopes over a few connections. It places what waits for a position, finds out which
//! logs have grown, and gives every scope its turn; a thousand tenants are a thousand entries in a map, and cost nothing while nothing happens.

mod batch;
mod known;
mod look;
mod reader;
mod run;
mod turn;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use self::{known::Known, look::Look};
pub(crate) use self::{
    reader::{Reader, erased},
    turn::{Projector, Turn},
};
use super::core::Core;
use crate::{
    settings::Settings,
    store::{
        projections,
        runs::{self, Due},
    },
    wake::LogBell,
};

/// How long after the last news the poll stays busy, and how it slows down after that: as the picker's does.
const BUSY_FOR: Duration = Duration::from_secs(5);
const CALM_AFTER: Duration = Duration::from_secs(30);
const CALM_POLL: Duration = Duration::from_millis(50);
const QUIET_AFTER: Duration = Duration::from_secs(60);
const QUIET_POLL: Duration = Duration::from_millis(250);
/// From the beginning: at most this share of the time, and within these bounds.
const SWEEP_SHARE: u32 = 100;
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(500);
const SWEEP_EVERY_IDLE: Duration = Duration::from_secs(2);
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(5);
/// How often runs are looked for that somebody elsewhere asked for.
const RUNS_EVERY: Duration = Duration::from_secs(1);

/// What has its turn: a scope (the number of its projection, and its tenant), a parked event of one, or a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Scope(usize, String),
    Parked(usize, String, i64),
    Run(i64),
}

/// What is known of a scope that is not idle.
#[derive(Debug)]
struct Entry {
    limit: i32,
    /// The highest position told of while it was under way.
    again: i64,
    under_way: bool,
    run: Option<Due>,
}

struct Schedule {
    projector: Arc<Projector>,
    entries: HashMap<Key, Entry>,
    known: Known,
    /// Whose turn it is, in order.
    ready: VecDeque<Key>,
    /// Whose turn comes later.
    later: Vec<(Instant, Key)>,
    running: usize,
    places: usize,
    /// What this build offers to rebuild has been told.
    offered: bool,
}

/// Place and project until the engine drains.
pub(crate) async fn run(core: Arc<Core>, projector: Arc<Projector>, bell: Arc<LogBell>) {
    let (report, mut reports) = mpsc::unbounded_channel();
    let mut look = Look::new(projector.clone());
    let places = core.settings.projectors;
    let mut schedule = Schedule {
        projector: projector.clone(),
        entries: HashMap::new(),
        known: Known::default(),
        ready: VecDeque::new(),
        later: Vec::new(),
        running: 0,
        places,
        offered: false,
    };
    let settings = &core.settings;
    // An engine without projections only places what others leave, and has time for that.
    let only_places = projector.readers.is_empty();
    let begin = Instant::now()
        + if only_places {
            SWEEP_EVERY_MAX
        } else {
            Duration::ZERO
        };
    let (mut poll, mut sweep, mut seek) = (begin, begin, begin);
    let mut trim = Instant::now() + settings.collect_every;
    let mut news_at = (!only_places).then(Instant::now);
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
            () = bell.rung() => {
                schedule.told(bell.take().into_iter().map(|tenant| (tenant, i64::MAX)));
                // Something was recorded here, perhaps without a position, or is about to be: from now on we look often.
                let now = Instant::now();
                news_at = Some(now);
                poll = poll.min(now + settings.busy_poll);
                if bell.take_runs() {
                    (seek, sweep) = (now, now);
                }
            }
            () = tokio::time::sleep_until(next.into()) => {}
        }
        let now = Instant::now();
        schedule.ripen(now);
        if sweep <= now {
            let behind = look.sweep(false).await;
            schedule.known.forget(Instant::now());
            let least = match (only_places, behind.scopes.is_empty() && !behind.more) {
                (true, _) => SWEEP_EVERY_MAX,
                (false, true) => SWEEP_EVERY_IDLE,
                (false, false) => SWEEP_EVERY_MIN,
            };
            schedule.told_scopes(behind.scopes);
            sweep = Instant::now() + (now.elapsed() * SWEEP_SHARE).clamp(least, SWEEP_EVERY_MAX);
        }
        if poll <= now {
            let grown = look.poll().await;
            if !grown.is_empty() || look.waits() {
                news_at = Some(Instant::now());
            }
            schedule.told(grown);
            poll = Instant::now() + pace(settings, news_at, only_places);
        }
        if seek <= now {
            if !only_places {
                schedule.seek().await;
            }
            seek = Instant::now() + RUNS_EVERY;
        }
        if trim <= now {
            // A little at a time: nobody's turn waits for it.
            let trimmed = look
                .trim(settings.event_retention, settings.collect_every)
                .await;
            let more = look.collect(settings.timer_retention).await || trimmed;
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
    // What is under way ends, or the shutdown ends it at its deadline.
    while schedule.running > 0 {
        match reports.recv().await {
            Some((key, ended)) => schedule.ended(key, ended),
            None => return,
        }
    }
}

/// Fast for a while after something was recorded, slower and slower when nothing is.
fn pace(settings: &Settings, news_at: Option<Instant>, only_places: bool) -> Duration {
    let pause = match news_at.map(|at| at.elapsed()) {
        Some(idle) if idle < BUSY_FOR => settings.busy_poll,
        _ if only_places => return SWEEP_EVERY_MAX,
        Some(idle) if idle < CALM_AFTER => CALM_POLL,
        Some(idle) if idle < QUIET_AFTER => QUIET_POLL,
        _ => settings.idle_poll,
    };
    pause.clamp(settings.busy_poll, settings.idle_poll)
}

/// What came of a turn, how large the next batch may be, and how far the cursor has come.
type Ended = (Turn, i32, i64);
type Work = futures_util::future::BoxFuture<'static, Ended>;

impl Schedule {
    /// These logs have grown, at least to there.
    fn told(&mut self, tenants: impl IntoIterator<Item = (String, i64)>) {
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

    fn told_scopes(&mut self, scopes: Vec<(String, String)>) {
        for (tenant, projection) in scopes {
            if let Some(index) = self.index(&projection) {
                self.hasten(&Key::Scope(index, tenant.clone()));
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

    /// Give it a turn, unless it has one coming.
    fn wanted(&mut self, key: Key, position: i64, run: Option<Due>) {
        match self.entries.get_mut(&key) {
            // What begins later sees it anyway.
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

    /// The rows say that its time has come, whatever we thought: an operator has let it go on, say.
    fn hasten(&mut self, key: &Key) {
        let now = Instant::now();
        self.later
            .iter_mut()
            .filter(|(_, later)| later == key)
            .for_each(|(at, _)| *at = now);
    }

    fn ripen(&mut self, now: Instant) {
        let (ripe, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.later = later;
        let ripe: Vec<(Instant, Key)> = ripe;
        self.ready.extend(ripe.into_iter().map(|(_, key)| key));
    }

    fn ended(&mut self, key: Key, (turn, limit, position): Ended) {
        self.running -= 1;
        let theirs = turn == Turn::Theirs;
        if matches!(key, Key::Scope(..)) {
            self.known
                .note(key.clone(), position, theirs, Instant::now());
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        (entry.limit, entry.under_way) = (limit, false);
        let again = std::mem::take(&mut entry.again);
        match turn {
            Turn::More => self.ready.push_back(key),
            // Told of more while it was at it: what it read may have been read before that.
            Turn::Idle if again > position && matches!(key, Key::Scope(..)) => {
                self.ready.push_back(key)
            }
            // Another worker moved the cursor a moment ago. Should it die, what it leaves is found when its time is over.
            Turn::Theirs if matches!(key, Key::Scope(..)) => {
                self.later.push((Instant::now() + turn::OWNED, key))
            }
            Turn::Idle | Turn::Theirs => drop(self.entries.remove(&key)),
            Turn::Wait(pause) => self.later.push((Instant::now() + pause, key)),
        }
    }

    /// The next turn, if there is one and a place for it.
    fn next(&mut self) -> Option<(Key, Work)> {
        if self.running >= self.places {
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
                    let (turn, position) =
                        projector.turn(&reader, &tenant, &mut limit, false).await;
                    (turn, limit, position)
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
                Box::pin(async move { (projector.run_turn(&due, &mut limit).await, limit, 0) })
            }
            (Key::Run(_), None) => return None,
        };
        self.running += 1;
        Some((key, work))
    }

    /// Runs and parked events that somebody asked for.
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
            Err(fault) => tracing::debug!(error = fault.message(), "could not look for runs"),
        }
    }
}

/// Inline, until nothing is left to do: for a test bench.
#[cfg(feature = "testing")]
pub(crate) async fn settle(projector: &Arc<Projector>) -> Result<(), crate::store::fault::Fault> {
    let mut look = Look::new(projector.clone());
    projector.offer_all().await?;
    loop {
        let mut moved = false;
        for (tenant, projection) in look.sweep(true).await.scopes {
            let Some(reader) = projector.reader(&projection) else {
                continue;
            };
            let mut limit = projector.batch;
            while projector.turn(reader, &tenant, &mut limit, true).await.0 == Turn::More {
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
            let turn = loop {
                match projector.run_turn(&run, &mut limit).await {
                    Turn::More => {}
                    turn => break turn,
                }
            };
            // A run that has to wait is not tried again before the next drain.
            moved = moved || !matches!(turn, Turn::Wait(_));
        }
        if !moved {
            return Ok(());
        }
    }
}
