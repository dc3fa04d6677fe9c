//! The projector: the loop of a worker that runs projections. A scope is one projection over the
//! log of one tenant. The projector assigns log positions to events that have none, finds the logs
//! that have grown, and runs one batch of each of their scopes in order, over a few connections. A
//! scope that is idle costs nothing.

mod batch;
mod discover;
mod known;
mod project;
mod reader;
mod redrive;
mod run;
mod schedule;
#[cfg(feature = "testing")]
mod settle;
mod version;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

#[cfg(feature = "testing")]
pub(crate) use self::settle::settle;
use self::{discover::Discovery, schedule::Schedule};
pub(crate) use self::{
    project::Projector,
    reader::{Reader, erased},
};
use super::core::Core;
use crate::{settings::Settings, wake::LogWake};

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
/// An engine without projections polls only after it has recorded events itself. The sweeps of its
/// group find the events of other processes.
const NO_POLL: Duration = Duration::from_secs(3_600);
/// How often the projector reads the runs that other processes have requested.
const RUNS_EVERY: Duration = Duration::from_secs(1);

/// Assigns log positions and runs projections until the shutdown of the engine begins.
pub(crate) async fn run(core: Arc<Core>, projector: Arc<Projector>, log_wake: Arc<LogWake>) {
    let (report, mut reports) = mpsc::unbounded_channel();
    let mut rounds = Rounds::new(core.clone(), projector);
    loop {
        tokio::select! {
            biased;
            () = core.phase.draining() => break,
            Some((key, ended)) = reports.recv() => rounds.schedule.ended(key, ended),
            () = log_wake.woken() => rounds.logs_woken(&log_wake),
            () = tokio::time::sleep_until(rounds.next().into()) => {}
        }
        rounds.run_due(Instant::now()).await;
        while let Some((key, work)) = rounds.schedule.next() {
            let report = report.clone();
            core.record_work();
            super::spawn::on_host(&core, async move {
                let ended = work.await;
                let _ = report.send((key, ended));
            });
        }
    }
    drop(report);
    // The projector waits until the batches that are under way have ended, or until the shutdown of
    // the engine aborts them at its deadline.
    while rounds.schedule.running > 0 {
        match reports.recv().await {
            Some((key, ended)) => rounds.schedule.ended(key, ended),
            None => return,
        }
    }
}

/// The regular tasks of the projector, with the times at which they are due.
struct Rounds {
    core: Arc<Core>,
    discovery: Discovery,
    schedule: Schedule,
    /// An engine without projections only assigns log positions that other processes have not
    /// assigned, and this is not urgent.
    no_readers: bool,
    poll: Instant,
    sweep: Instant,
    swept_at: Instant,
    /// When the projector next reads the runs and redrives that operators have requested.
    seek: Instant,
    trim: Instant,
    /// When this process last recorded or found a new event.
    news_at: Option<Instant>,
}

impl Rounds {
    fn new(core: Arc<Core>, projector: Arc<Projector>) -> Rounds {
        let no_readers = projector.readers.is_empty();
        let begin = Instant::now()
            + if no_readers {
                SWEEP_EVERY_MAX
            } else {
                Duration::ZERO
            };
        Rounds {
            discovery: Discovery::new(projector.clone()),
            schedule: Schedule::new(projector, core.settings.projection_concurrency),
            no_readers,
            poll: begin,
            sweep: begin,
            swept_at: begin,
            seek: begin,
            trim: Instant::now() + core.settings.collect_every,
            news_at: (!no_readers).then(Instant::now),
            core,
        }
    }

    /// Returns the time at which the next task or batch is due.
    fn next(&self) -> Instant {
        [self.poll, self.sweep, self.seek, self.trim]
            .into_iter()
            .chain(self.schedule.next_due())
            .min()
            .unwrap_or(self.poll)
    }

    /// Schedules the scopes of the tenants that a wake reports.
    fn logs_woken(&mut self, log_wake: &LogWake) {
        let grown = log_wake.take().into_iter();
        self.schedule
            .logs_grown(grown.map(|tenant| (tenant, i64::MAX)));
        // This process has recorded an event, perhaps without a log position, or is about to record
        // one. The projector polls often from now on.
        let now = Instant::now();
        self.news_at = Some(now);
        self.poll = self.poll.min(now + self.core.settings.busy_poll);
        if log_wake.take_runs() {
            (self.seek, self.sweep) = (now, now);
        }
    }

    /// Runs the tasks that are due, and makes the batches that are due ready.
    async fn run_due(&mut self, now: Instant) {
        self.schedule.start_due(now);
        if self.is_sweep_due(now) {
            self.sweep(now).await;
        }
        if self.poll <= now {
            self.poll().await;
        }
        if self.seek <= now {
            if !self.no_readers {
                self.schedule.seek().await;
            }
            self.seek = Instant::now() + RUNS_EVERY;
        }
        if self.trim <= now {
            self.trim().await;
        }
    }

    /// Returns whether a sweep is due. For an engine without projections that depends on its group,
    /// which may have lost its first worker since the last sweep; the loop runs at least once per
    /// `RUNS_EVERY`, and asks again.
    fn is_sweep_due(&self, now: Instant) -> bool {
        let shared = self.no_readers.then(|| {
            // Any worker of the group can assign the positions.
            self.swept_at + self.core.fleet.upkeep(SWEEP_EVERY_MAX)
        });
        self.sweep.min(shared.unwrap_or(self.sweep)) <= now
    }

    async fn sweep(&mut self, begun: Instant) {
        let behind = self.discovery.sweep(false).await;
        self.schedule.known.forget(Instant::now());
        let least = match behind.scopes.is_empty() && !behind.more {
            true => SWEEP_EVERY_IDLE,
            false => SWEEP_EVERY_MIN,
        };
        self.schedule.scopes_behind(behind.scopes);
        let pause = (begun.elapsed() * SWEEP_SHARE).clamp(least, SWEEP_EVERY_MAX);
        self.swept_at = Instant::now();
        self.sweep = self.swept_at + if self.no_readers { NO_POLL } else { pause };
    }

    async fn poll(&mut self) {
        let grown = self.discovery.poll().await;
        if !grown.is_empty() || self.discovery.waits() {
            self.news_at = Some(Instant::now());
        }
        self.schedule.logs_grown(grown);
        self.poll = Instant::now() + pace(&self.core.settings, self.news_at, self.no_readers);
    }

    /// Deletes a few old events, runs and failures at a time, so that no batch waits for the
    /// deletion.
    async fn trim(&mut self) {
        let settings = &self.core.settings;
        let trimmed = self
            .discovery
            .trim(settings.event_retention, settings.collect_every)
            .await;
        let more = self.discovery.collect(settings.timer_retention).await || trimmed;
        self.trim = Instant::now()
            + if more {
                Duration::ZERO
            } else {
                self.core.fleet.upkeep(settings.collect_every)
            };
    }
}

/// Returns the delay before the projector's next poll: short for a while after an event was
/// recorded, then longer and longer.
fn pace(settings: &Settings, news_at: Option<Instant>, no_readers: bool) -> Duration {
    let pause = match news_at.map(|at| at.elapsed()) {
        Some(idle) if idle < BUSY_FOR => settings.busy_poll,
        _ if no_readers => return NO_POLL,
        Some(idle) if idle < CALM_AFTER => CALM_POLL,
        Some(idle) if idle < QUIET_AFTER => QUIET_POLL,
        _ => settings.idle_poll,
    };
    pause.clamp(settings.busy_poll, settings.idle_poll)
}
