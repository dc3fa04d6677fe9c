//! Upkeep: reaps expired workers, sweeps for rows that the picker missed, deletes old rows, and
//! commits step results that waited for locks of other transactions. Upkeep is one loop, and every
//! task has its own interval.

mod collect;
mod measure;
mod reap;
mod sweep;

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use self::collect::Collector;
use super::{
    commit, connections::EngineConnections, core::Core, fleet::FOLLOWER_UPKEEP, rollup,
    start::leased, stuck,
};
use crate::{
    settings::Settings,
    store::{connection::Connection, fault::Fault, lane},
};

/// A sweep for runnable instances costs more if there are more dead index entries, so sweeps use at
/// most one part in this many of the time.
const SWEEP_SHARE: u32 = 100;
/// Bounds for the interval between two sweeps for runnable instances that the picker missed.
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(250);
const SWEEP_EVERY_IDLE: Duration = Duration::from_secs(2);
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(5);
/// A worker of a group without work sweeps at least this often, however many workers the group has.
const SWEEP_SHARED_IDLE_MAX: Duration = Duration::from_secs(30);
/// How often upkeep measures how many instances wait in each queue. Each worker reports gauges, so
/// even in a large group they are at most `DEPTH_EVERY_MAX` old.
const DEPTH_EVERY: Duration = Duration::from_secs(15);
const DEPTH_EVERY_MAX: Duration = Duration::from_secs(60);
/// How often upkeep releases claimed instances that have waited too long for a worker task.
const OVERDUE_EVERY: Duration = Duration::from_millis(500);
/// How often upkeep checks lanes for a lost head and partition keys for a lost holder, and how many
/// of them at a time.
const REPAIR_EVERY: Duration = Duration::from_secs(5);
const REPAIR_BATCH: i32 = 500;
/// How often upkeep checks the claims of running steps that ask whether they were cancelled. One
/// statement checks all of them.
const CLAIMS_EVERY: Duration = Duration::from_secs(1);
/// How often upkeep tries again to release the lanes and partition keys of cancelled instances
/// after a failed attempt.
const RELEASE_EVERY: Duration = Duration::from_secs(1);
/// How often upkeep tries again to commit a step result that waits for a lock. The interval grows
/// while the database cannot be reached.
const BLOCKED_EVERY: Duration = Duration::from_millis(50);
const BLOCKED_EVERY_MAX: Duration = Duration::from_secs(2);

/// Runs all upkeep tasks until the engine has stopped.
pub(crate) async fn run(core: Arc<Core>, connections: Rc<EngineConnections>) {
    leased(&core).await;
    let mut upkeep = Upkeep::new(core, connections);
    while upkeep.wait().await {
        let now = Instant::now();
        upkeep.follow_fleet(now);
        upkeep.serve_running_steps(now).await;
        // The tasks of upkeep are due often enough that this one needs no timer of its own.
        rollup::write(&upkeep.core, &upkeep.connections.side(), false).await;
        if upkeep.core.phase.is_draining() {
            // During the shutdown of the engine, upkeep claims no more instances. It still commits
            // the step results that wait for a lock.
            upkeep.due.postpone(now, &upkeep.core.settings);
            continue;
        }
        upkeep.find_instances(now).await;
        upkeep.repair(now).await;
        upkeep.collect_and_measure(now).await;
    }
    for _ in 0..upkeep
        .core
        .blocked
        .len()
        .div_ceil(commit::BLOCKED_BATCH_MAX)
    {
        upkeep.commit_blocked().await;
    }
}

/// The state of the upkeep loop.
struct Upkeep {
    core: Arc<Core>,
    connections: Rc<EngineConnections>,
    due: DueTasks,
    /// Delay before the next attempt to commit step results that wait for a lock.
    blocked_pause: Duration,
    repair_cursor: lane::RepairCursor,
    /// How often the reaper was due.
    reaps: u32,
    /// Whether this worker was the first of its group at the last round.
    was_first: bool,
    /// The id of the last stuck row that upkeep has retried.
    stuck_after: i64,
    collector: Collector,
}

impl Upkeep {
    fn new(core: Arc<Core>, connections: Rc<EngineConnections>) -> Upkeep {
        Upkeep {
            connections,
            due: DueTasks::new(Instant::now(), &core.settings),
            blocked_pause: BLOCKED_EVERY,
            repair_cursor: lane::RepairCursor::default(),
            reaps: 1,
            was_first: true,
            stuck_after: 0,
            collector: Collector::default(),
            core,
        }
    }

    /// When this worker has become the first of its group, makes the upkeep of the group due within
    /// the usual intervals: the previous first worker may have crashed.
    fn follow_fleet(&mut self, now: Instant) {
        let is_first = self.core.fleet.is_first();
        if is_first && !self.was_first {
            self.due.hasten(now, &self.core.settings);
        }
        self.was_first = is_first;
    }

    /// Waits until a task is due or a wake makes one due. Returns false if the engine has stopped.
    async fn wait(&mut self) -> bool {
        let (core, due) = (&self.core, &mut self.due);
        let next = due.next();
        tokio::select! {
            () = core.phase.stopped() => return false,
            // A step result that upkeep sets aside once more sends this notification too. The
            // notification does not make the next attempt to commit it earlier.
            () = core.blocked.woken() => {
                due.blocked.get_or_insert_with(Instant::now);
            }
            () = core.environment.watch.woken() => {
                due.claims.get_or_insert_with(|| Instant::now() + CLAIMS_EVERY);
            }
            () = core.releases.woken() => due.release = Some(Instant::now()),
            () = core.wake.claims_woken() => due.claims = Some(Instant::now()),
            () = tokio::time::sleep_until(next.into()) => {}
        }
        true
    }

    /// Runs the due tasks for instances that this worker has claimed. These tasks also run during
    /// the shutdown of the engine.
    async fn serve_running_steps(&mut self, now: Instant) {
        if self.due.blocked.is_some_and(|at| at <= now) {
            self.due.blocked = self.commit_blocked().await;
        }
        let (core, connection) = (&self.core, &self.connections.side());
        if self.due.release.is_some_and(|at| at <= now) {
            report(
                "release the lanes and partition keys of cancelled instances",
                core.releases.write(core, connection).await,
            );
            self.due.release = (!core.releases.is_empty()).then(|| Instant::now() + RELEASE_EVERY);
        }
        if self.due.claims.is_some_and(|at| at <= now) {
            report(
                "check the claims of running steps",
                core.environment.watch.look(connection).await,
            );
            self.due.claims =
                (!core.environment.watch.is_empty()).then(|| Instant::now() + CLAIMS_EVERY);
        }
    }

    /// Runs the due tasks that release claims and find runnable instances: overdue claims, the
    /// sweep, and the reaper.
    async fn find_instances(&mut self, now: Instant) {
        let (core, connection) = (&self.core, &self.connections.side());
        if self.due.overdue <= now {
            report(
                "release claims that wait too long",
                reap::release_overdue(core, connection).await,
            );
            self.due.overdue = Instant::now() + OVERDUE_EVERY;
        }
        if self.due.sweep <= now {
            let (cost, idle) = sweep::sweep(core, connection).await;
            let pause = (cost * SWEEP_SHARE).clamp(SWEEP_EVERY_MIN, SWEEP_EVERY_MAX);
            // A sweep helps only the picker of its own process, so every worker sweeps; the more
            // workers there are, the less often each.
            let (pause, max) = if idle {
                (SWEEP_EVERY_IDLE.max(pause), SWEEP_SHARED_IDLE_MAX)
            } else {
                (pause, SWEEP_EVERY_MAX)
            };
            self.due.sweep = Instant::now() + core.fleet.share(pause, max);
        }
        if self.due.reap <= now {
            // The first worker of a group reaps for the group. The others reap too, but rarely.
            let is_rare_turn = self.reaps.is_multiple_of(rare_turns(core));
            self.reaps = self.reaps.wrapping_add(1);
            if core.fleet.is_first() || is_rare_turn {
                report("reap", reap::reap(core, &self.connections).await);
            }
            // A claim can only be lost while there is work.
            if core.fleet.idle() < core.settings.orphan_after() * 2 || is_rare_turn {
                report(
                    "find lost claims",
                    reap::release_lost_claims(core, connection).await,
                );
            }
            report(
                "register the schedules",
                core.schedules.register(connection).await,
            );
            self.due.reap = Instant::now() + core.settings.reap_every;
        }
    }

    /// Repairs lanes and partition keys and retries stuck rows, if that is due.
    async fn repair(&mut self, now: Instant) {
        let connection = &self.connections.side();
        if self.due.repair <= now {
            report(
                "repair lanes and partition keys",
                repair_lanes(connection, &mut self.repair_cursor).await,
            );
            self.due.repair = Instant::now() + self.core.fleet.upkeep(REPAIR_EVERY);
        }
        if self.due.stuck <= now {
            report(
                "retry stuck rows",
                stuck::retry(&self.core, connection, &mut self.stuck_after).await,
            );
            self.due.stuck =
                Instant::now() + self.core.fleet.upkeep(self.core.settings.stuck_retry_every);
        }
    }

    /// Deletes rows past their retention and measures the queues, if that is due.
    async fn collect_and_measure(&mut self, now: Instant) {
        let (core, connection) = (&self.core, &self.connections.side());
        if self.due.collect <= now {
            let more = self.collector.collect(core, connection).await;
            self.due.collect = Instant::now()
                + if more {
                    Duration::ZERO
                } else {
                    core.fleet.upkeep(core.settings.collect_every)
                };
        }
        if self.due.depth <= now {
            report(
                "measure the queues",
                measure::measure(core, connection).await,
            );
            self.due.depth = Instant::now() + core.fleet.upkeep(DEPTH_EVERY).min(DEPTH_EVERY_MAX);
        }
    }

    /// Tries to commit the step results that wait for a lock of another transaction. Returns the
    /// time of the next attempt, if any results are left.
    async fn commit_blocked(&mut self) -> Option<Instant> {
        let is_away = !commit::write_blocked(&self.core, &self.connections).await;
        self.blocked_pause = if is_away {
            (self.blocked_pause * 2).min(BLOCKED_EVERY_MAX)
        } else {
            BLOCKED_EVERY
        };
        (!self.core.blocked.is_empty()).then(|| Instant::now() + self.blocked_pause)
    }
}

/// Returns how many times the reaper of a worker that is not the first of its group is due until it
/// reaps.
fn rare_turns(core: &Core) -> u32 {
    let every = core.settings.reap_every.max(Duration::from_millis(1));
    let turns = core.fleet.upkeep(every).as_nanos() / every.as_nanos();
    u32::try_from(turns)
        .unwrap_or(u32::MAX)
        .max(FOLLOWER_UPKEEP)
}

/// When each task of upkeep is due.
struct DueTasks {
    reap: Instant,
    sweep: Instant,
    collect: Instant,
    depth: Instant,
    overdue: Instant,
    blocked: Option<Instant>,
    release: Option<Instant>,
    claims: Option<Instant>,
    repair: Instant,
    stuck: Instant,
}

impl DueTasks {
    fn new(now: Instant, settings: &Settings) -> DueTasks {
        DueTasks {
            reap: now + settings.reap_every,
            // No sweep is due at the start of upkeep, because the first pick reads from the start
            // of the index too.
            sweep: now + SWEEP_EVERY_MIN,
            collect: now + settings.collect_every,
            depth: now,
            overdue: now + OVERDUE_EVERY,
            blocked: None,
            release: None,
            claims: None,
            repair: now,
            stuck: now,
        }
    }

    /// Makes the tasks of a group due within the intervals of its first worker.
    fn hasten(&mut self, now: Instant, settings: &Settings) {
        self.repair = self.repair.min(now + REPAIR_EVERY);
        self.collect = self.collect.min(now + settings.collect_every);
        self.stuck = self.stuck.min(now + settings.stuck_retry_every);
    }

    /// Postpones the tasks that find instances, repair, collect or measure by their intervals.
    fn postpone(&mut self, now: Instant, settings: &Settings) {
        (self.sweep, self.reap) = (now + SWEEP_EVERY_MAX, now + settings.reap_every);
        (self.collect, self.depth) = (now + settings.collect_every, now + DEPTH_EVERY);
        (self.overdue, self.repair) = (now + OVERDUE_EVERY, now + REPAIR_EVERY);
        self.stuck = now + settings.stuck_retry_every;
    }

    fn next(&self) -> Instant {
        let soonest = self
            .reap
            .min(self.sweep)
            .min(self.collect)
            .min(self.depth)
            .min(self.overdue);
        let soonest = soonest.min(self.repair).min(self.stuck);
        [self.blocked, self.release, self.claims]
            .into_iter()
            .flatten()
            .fold(soonest, Instant::min)
    }
}

/// Repairs lanes and partition keys that have waiting instances and no instance that could run: the
/// lane has lost its head, or the key its holder, most likely by a manual change of rows. Each call
/// checks a part of the lanes and keys.
async fn repair_lanes(
    connection: &Connection,
    cursor: &mut lane::RepairCursor,
) -> Result<(), Fault> {
    let count = lane::repair(connection, cursor, REPAIR_BATCH).await?;
    if count > 0 {
        metrics::counter!("durable_lanes_repaired_total")
            .increment(count.try_into().unwrap_or_default());
        tracing::warn!(
            count,
            "repaired {count} lanes or partition keys that had waiting instances and no instance that could run"
        );
    }
    Ok(())
}

fn report(what: &str, done: Result<(), Fault>) {
    if let Err(fault) = done {
        tracing::warn!(error = fault.message(), "could not {what}");
    }
}
