//! Upkeep: what the dead held, what the picker could not see, what is old, and endings that somebody else's lock
//! keeps waiting. One loop on a thread of its own, every task at its own pace.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{
    commit,
    core::Core,
    failures::InstanceFailure,
    led::{self, Doubts},
    local::Run,
    pick::{hand_out, set_aside},
    stuck,
};
use crate::{
    id::Status,
    store::{
        collect::{self, collect},
        connection::Connection,
        fault::Fault,
        lane, lease,
        pick::{self, Mark, Wanted, give_back},
        queue, timer,
    },
    wake::Hint,
};

/// Rows taken back from a dead worker in one statement.
const REAP_BATCH: i32 = 500;
/// Rows deleted in one statement.
const COLLECT_BATCH: i32 = 1_000;
/// What the collector had to keep (a live parent may read it) it reads again after this many times `collect_every`.
const COLLECT_PASS_PAUSE: u32 = 10;
/// A sweep costs more the more dead entries there are: it takes at most this share of the time…
const SWEEP_SHARE: u32 = 100;
/// …and comes at least and at most this often.
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(250);
const SWEEP_EVERY_IDLE: Duration = Duration::from_secs(2);
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(5);
/// How often the depth of the queues is measured.
const DEPTH_EVERY: Duration = Duration::from_secs(15);
/// How often is looked for what was claimed and cannot begin.
const OVERDUE_EVERY: Duration = Duration::from_millis(500);
/// How often lanes and partition keys are looked after, and how many of them at a time.
const REPAIR_EVERY: Duration = Duration::from_secs(5);
const REPAIR_BATCH: i32 = 500;
/// How often running steps that ask are told whether they were cancelled: one statement for all of them.
const CLAIMS_EVERY: Duration = Duration::from_secs(1);
/// What could not be released is tried again this often.
const RELEASE_EVERY: Duration = Duration::from_secs(1);
/// An ending that waits for a lock is tried again this often, and while the database is away less and less often.
const BLOCKED_EVERY: Duration = Duration::from_millis(50);
const BLOCKED_EVERY_MAX: Duration = Duration::from_secs(2);

/// Keep things up until the engine has stopped.
pub(crate) async fn run(core: Arc<Core>) {
    let connection = Connection::for_loop(core.target.clone());
    let now = Instant::now();
    let settings = &core.settings;
    let mut due = Due {
        reap: now + settings.reap_every,
        // The picker itself begins at the beginning.
        sweep: now + SWEEP_EVERY_MIN,
        collect: now + settings.collect_every,
        depth: now,
        overdue: now + OVERDUE_EVERY,
        blocked: None,
        release: None,
        claims: None,
        led: None,
        repair: now,
        stuck: now,
    };
    let (mut rounds, mut doubts) = (lane::Rounds::default(), Doubts::default());
    let mut stuck_after = 0;
    let mut blocked_pause = BLOCKED_EVERY;
    let (mut timers_collected_to, mut signals_collected_to) =
        (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
    loop {
        let next = due.next();
        tokio::select! {
            () = core.phase.stopped() => {
                for _ in 0..core.blocked.len().div_ceil(commit::BLOCKED_BATCH_MAX) {
                    settle_blocked(&core, &connection, &mut blocked_pause).await;
                }
                return;
            }
            // What is put back rings as well: it does not hasten the next try.
            () = core.blocked.rung() => {
                due.blocked.get_or_insert_with(Instant::now);
            }
            () = core.environment.watch.rung() => {
                due.claims.get_or_insert_with(|| Instant::now() + CLAIMS_EVERY);
            }
            () = core.led.rung() => {
                due.led.get_or_insert_with(|| Instant::now() + led::LASTS);
            }
            () = core.releases.rung() => due.release = Some(Instant::now()),
            () = core.wake.doubted() => due.claims = Some(Instant::now()),
            () = tokio::time::sleep_until(next.into()) => {}
        }
        let now = Instant::now();
        if due.blocked.is_some_and(|at| at <= now) {
            due.blocked = settle_blocked(&core, &connection, &mut blocked_pause).await;
        }
        if due.release.is_some_and(|at| at <= now) {
            report(
                "release what cancelled steps held",
                core.releases.write(&core, &connection).await,
            );
            due.release = (!core.releases.is_empty()).then(|| Instant::now() + RELEASE_EVERY);
        }
        if due.claims.is_some_and(|at| at <= now) {
            report(
                "look for lost claims of running steps",
                core.environment.watch.look(&connection).await,
            );
            due.claims =
                (!core.environment.watch.is_empty()).then(|| Instant::now() + CLAIMS_EVERY);
        }
        if due.led.is_some_and(|at| at <= now) {
            let looked = led::claim_lasting(&core, &connection).await;
            due.led = match &looked {
                Ok(false) => None,
                Ok(true) => Some(Instant::now() + led::LASTS),
                Err(_) => Some(Instant::now() + CLAIMS_EVERY),
            };
            report("claim what runs in lanes", looked.map(drop));
        }
        if core.phase.is_draining() {
            // Nothing more is claimed; the lock-bound endings above still are.
            (due.sweep, due.reap) = (now + SWEEP_EVERY_MAX, now + settings.reap_every);
            (due.collect, due.depth) = (now + settings.collect_every, now + DEPTH_EVERY);
            (due.overdue, due.repair) = (now + OVERDUE_EVERY, now + REPAIR_EVERY);
            due.stuck = now + settings.stuck_retry_every;
            continue;
        }
        if due.overdue <= now {
            report(
                "give back what waits too long",
                return_overdue(&core, &connection).await,
            );
            due.overdue = Instant::now() + OVERDUE_EVERY;
        }
        if due.sweep <= now {
            let (cost, idle) = sweep(&core, &connection).await;
            let pause = (cost * SWEEP_SHARE).clamp(SWEEP_EVERY_MIN, SWEEP_EVERY_MAX);
            due.sweep = Instant::now()
                + if idle {
                    SWEEP_EVERY_IDLE.max(pause)
                } else {
                    pause
                };
        }
        if due.reap <= now {
            report("reap", reap(&core, &connection).await);
            report(
                "look for lost claims",
                return_orphans(&core, &connection).await,
            );
            report(
                "look for lost heads of lanes",
                doubts.look(&core, &connection).await,
            );
            report(
                "register the schedules",
                core.schedules.register(&connection).await,
            );
            due.reap = Instant::now() + settings.reap_every;
        }
        if due.repair <= now {
            report(
                "look after the lanes",
                repair(&connection, &mut rounds).await,
            );
            due.repair = Instant::now() + REPAIR_EVERY;
        }
        if due.stuck <= now {
            report(
                "retry stuck rows",
                stuck::retry(&core, &connection, &mut stuck_after).await,
            );
            due.stuck = Instant::now() + settings.stuck_retry_every;
        }
        if due.collect <= now {
            let instances = collect_some(&core, &connection).await;
            let timers = collect_timers(&core, &connection, &mut timers_collected_to).await;
            let signals = collect_signals(&core, &connection, &mut signals_collected_to).await;
            let more = instances || timers || signals;
            due.collect = Instant::now()
                + if more {
                    Duration::ZERO
                } else {
                    settings.collect_every
                };
        }
        if due.depth <= now {
            report("measure the queues", measure(&core, &connection).await);
            due.depth = Instant::now() + DEPTH_EVERY;
        }
    }
}

struct Due {
    reap: Instant,
    sweep: Instant,
    collect: Instant,
    depth: Instant,
    overdue: Instant,
    blocked: Option<Instant>,
    release: Option<Instant>,
    claims: Option<Instant>,
    led: Option<Instant>,
    repair: Instant,
    stuck: Instant,
}

impl Due {
    fn next(&self) -> Instant {
        let soonest = self
            .reap
            .min(self.sweep)
            .min(self.collect)
            .min(self.depth)
            .min(self.overdue);
        let soonest = soonest.min(self.repair).min(self.stuck);
        [self.blocked, self.release, self.claims, self.led]
            .into_iter()
            .flatten()
            .fold(soonest, Instant::min)
    }
}

/// From the very beginning of the index: what committed late, what was locked when the picker came by, what has a
/// priority that nobody here knew. Answers what it cost, and whether there was nothing anywhere.
async fn sweep(core: &Arc<Core>, connection: &Connection) -> (Duration, bool) {
    let begun = Instant::now();
    let found = sweep_once(core, connection).await;
    let cost = begun.elapsed();
    match found {
        Ok(idle) => (cost, idle),
        Err(fault) => {
            tracing::debug!(error = fault.message(), "a sweep failed");
            (cost.max(Duration::from_millis(10)), false)
        }
    }
}

async fn sweep_once(core: &Arc<Core>, connection: &Connection) -> Result<bool, Fault> {
    let used = pick::priorities(connection, &core.worker.queues).await?;
    let idle = used.is_empty();
    {
        let mut priorities = core
            .priorities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        priorities.clear();
        for (queue, priority) in &used {
            priorities
                .entry(queue.clone())
                .or_default()
                .insert(*priority);
        }
    }
    let mut wanted = Wanted::default();
    for queue in &core.queues {
        let room = queue.room();
        let name = queue.queue.name();
        let ranges = used
            .iter()
            .filter(|(queue, _)| queue == name)
            .map(|(_, priority)| (*priority, Mark::START));
        if room > 0 {
            wanted.add(name, room, ranges);
        }
    }
    // A drain waits for this lock: what was claimed must be in its queue before the queues are emptied.
    let _claiming = core.claiming.lock().await;
    if idle || wanted.queues.is_empty() || core.lease.left().is_zero() || core.phase.is_draining() {
        return Ok(idle);
    }
    let picked = pick::claim(
        connection,
        &wanted,
        &core.worker.steps,
        &core.worker.id,
        core.lease_seconds(),
    )
    .await;
    let picked = match picked {
        // The picker may not meet it: it may stand below the picker's marks.
        Err(fault) if set_aside(core, connection, &wanted, &fault).await => return Ok(false),
        picked => picked?,
    };
    for row in picked.rows {
        // Where one was overlooked there may be many (a large transaction that committed late): the picker goes back there.
        core.wake.hint(Hint {
            queue: row.queue.clone(),
            priority: row.priority,
            from: row.eligible_at,
        });
        let queue = row.queue.clone();
        hand_out(core, &queue, vec![Run::new(row)]);
    }
    Ok(false)
}

/// Makes the rows of expired workers runnable again. Never within one lease of a loss of contact: every worker must have had
/// the chance to renew.
async fn reap(core: &Arc<Core>, connection: &Connection) -> Result<(), Fault> {
    // By the connection of the lease alone: another one is also lost to a statement that was slow.
    let lost_contact = || !core.renews() || core.target.lost_contact_within(core.settings.lease);
    if lost_contact() {
        return Ok(());
    }
    for worker in lease::adopt(connection, core.lease_seconds()).await? {
        tracing::warn!(
            worker,
            "worker {worker} holds claims but has no lease row; granting it one lease period"
        );
    }
    let expired = lease::expired(connection, core.lease_seconds(), &core.worker.id).await?;
    // An answer to a question that was asked before an outage arrives after it.
    if lost_contact() {
        return Ok(());
    }
    let mut refused = Ok(());
    for worker in expired {
        match reap_one(core, connection, &worker).await {
            // What the database refuses of one must not keep the rows of the others.
            Err(fault @ (Fault::Refused { .. } | Fault::Busy(_))) => refused = Err(fault),
            outcome => outcome?,
        }
    }
    refused
}

async fn reap_one(core: &Core, connection: &Connection, worker: &str) -> Result<(), Fault> {
    let deaths_max = i16::try_from(core.settings.deaths_max).unwrap_or(i16::MAX);
    loop {
        let reaped = lease::reap(connection, worker, REAP_BATCH, deaths_max).await?;
        let count = reaped.len();
        metrics::counter!("durable_reaped_total").increment(count.try_into().unwrap_or_default());
        if count > 0 {
            tracing::warn!(worker, count, "took back the rows of a dead worker");
            core.wake.ring();
        }
        for row in reaped.into_iter().filter(|row| row.is_stuck) {
            core.failures.tell(InstanceFailure {
                machine: row.fsm,
                id: row.id,
                step: row.step,
                attempt: u32::try_from(row.attempt).unwrap_or_default(),
                error: row.last_error.unwrap_or_default(),
                status: Status::Stuck,
            });
        }
        if count < usize::try_from(REAP_BATCH).unwrap_or_default() {
            break;
        }
    }
    while lease::release_expired(connection, worker, REAP_BATCH).await? > 0 {
        core.wake.ring();
    }
    lease::bury(connection, worker).await
}

/// Rows are claimed ahead by how long steps took so far. When they take longer of a sudden, what was claimed would wait
/// here for its turn while others are idle: it goes back.
async fn return_overdue(core: &Arc<Core>, connection: &Connection) -> Result<(), Fault> {
    for queue in &core.queues {
        let overdue = queue.overdue();
        if overdue.is_empty() {
            continue;
        }
        let claims: Vec<_> = overdue.iter().map(|run| run.row.claim()).collect();
        // Whatever comes of it, they are not here any more: what could not be given back is found as a lost claim.
        queue.let_go(claims.iter().copied());
        overdue
            .iter()
            .for_each(|run| core.let_go_of_suspect(&run.row));
        give_back(connection, &claims).await?;
        tracing::debug!(count = claims.len(), "gave back what could not begin");
    }
    Ok(())
}

/// A pick whose answer was lost claimed rows that nobody here knows of, and our lease keeps them from everybody else.
async fn return_orphans(core: &Arc<Core>, connection: &Connection) -> Result<(), Fault> {
    let held = lease::held(
        connection,
        &core.worker.id,
        core.settings.orphan_after().as_secs_f64(),
    )
    .await?;
    let lost: Vec<_> = held
        .into_iter()
        .filter(|claim| !core.holds(claim))
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    let count = give_back(connection, &lost).await?;
    tracing::warn!(count, "gave back rows whose claim was lost on the way here");
    core.wake.ring();
    Ok(())
}

/// A lane or a partition key that has somebody waiting and nobody who could go on has lost its head: by hand, most likely.
/// A part of them is looked at each time.
async fn repair(connection: &Connection, rounds: &mut lane::Rounds) -> Result<(), Fault> {
    let count = lane::repair(connection, rounds, REPAIR_BATCH).await?;
    if count > 0 {
        metrics::counter!("durable_lanes_repaired_total")
            .increment(count.try_into().unwrap_or_default());
        tracing::warn!(
            count,
            "lanes or partition keys had somebody waiting and nobody at their head: they go on"
        );
    }
    Ok(())
}

/// Deletes a page of settled instances past their retention. Returns whether there may be more.
async fn collect_some(core: &Core, connection: &Connection) -> bool {
    let pause = core.settings.collect_every * COLLECT_PASS_PAUSE;
    match collect(
        connection,
        core.settings.retentions(),
        pause.as_secs_f64(),
        COLLECT_BATCH,
    )
    .await
    {
        Ok((count, more)) => {
            metrics::counter!("durable_collected_total")
                .increment(count.try_into().unwrap_or_default());
            more
        }
        Err(fault) => {
            tracing::warn!(
                error = fault.message(),
                "could not delete settled instances past their retention"
            );
            false
        }
    }
}

/// Fired, missed and cancelled timers, by their own end.
async fn collect_timers(core: &Core, connection: &Connection, from: &mut Timestamp) -> bool {
    let Some(retention) = core.settings.timer_retention else {
        return false;
    };
    match timer::collect(connection, *from, retention.as_secs_f64(), COLLECT_BATCH).await {
        Ok((0, _)) => {
            *from = Timestamp::UNIX_EPOCH;
            false
        }
        Ok((count, to)) => {
            *from = to.unwrap_or(*from);
            count >= COLLECT_BATCH.into()
        }
        Err(fault) => {
            tracing::debug!(error = fault.message(), "could not collect timers");
            false
        }
    }
}

/// Consumed letters that are kept for their dedup keys, by the time of consumption. Returns whether there may be more.
async fn collect_signals(core: &Core, connection: &Connection, from: &mut Timestamp) -> bool {
    let Some(retention) = core.settings.dedup_retention else {
        return false;
    };
    match collect::collect_signals(connection, *from, retention.as_secs_f64(), COLLECT_BATCH).await
    {
        Ok((0, _)) => {
            *from = Timestamp::UNIX_EPOCH;
            false
        }
        Ok((count, to)) => {
            *from = to.unwrap_or(*from);
            count >= COLLECT_BATCH.into()
        }
        Err(fault) => {
            tracing::debug!(
                error = fault.message(),
                "could not collect consumed signals"
            );
            false
        }
    }
}

async fn measure(core: &Core, connection: &Connection) -> Result<(), Fault> {
    for local in &core.queues {
        let used: Vec<i16> = {
            let priorities = core
                .priorities
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            priorities
                .get(local.queue.name())
                .into_iter()
                .flatten()
                .copied()
                .collect()
        };
        let depth = queue::depth(connection, local.queue.name(), &used).await?;
        metrics::gauge!("durable_queue_depth", "queue" => local.queue.name()).set(depth as f64);
    }
    let (depth, blocked) = lane::depth(connection).await?;
    metrics::gauge!("durable_lanes_depth").set(depth as f64);
    metrics::gauge!("durable_lanes_blocked").set(blocked as f64);
    let overdue = timer::overdue(connection, super::clockwork::FRESH.as_secs_f64()).await?;
    metrics::gauge!("durable_timers_overdue").set(overdue as f64);
    Ok(())
}

/// Endings that wait for a lock of another transaction. Returns when to try again, if any are left.
async fn settle_blocked(
    core: &Arc<Core>,
    connection: &Connection,
    pause: &mut Duration,
) -> Option<Instant> {
    let is_away = !commit::write_blocked(core, connection).await;
    *pause = if is_away {
        (*pause * 2).min(BLOCKED_EVERY_MAX)
    } else {
        BLOCKED_EVERY
    };
    (!core.blocked.is_empty()).then(|| Instant::now() + *pause)
}

fn report(what: &str, done: Result<(), Fault>) {
    if let Err(fault) = done {
        tracing::warn!(error = fault.message(), "could not {what}");
    }
}
