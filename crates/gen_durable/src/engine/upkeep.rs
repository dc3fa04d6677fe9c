//! Upkeep: reaps expired workers, sweeps for rows that the picker missed, deletes old rows, and
//! commits step results that waited for locks of other transactions. Upkeep is one loop on a thread
//! of its own, and every task has its own interval.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{
    commit,
    core::Core,
    failures::InstanceFailure,
    lane_worker::{self, UnknownHeads},
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
        pick::{self, Mark, Wanted, release_claims},
        queue, timer,
    },
    wake::Hint,
};

/// Maximum number of instances of an expired worker that the reaper processes in one statement.
const REAP_BATCH: i32 = 500;
/// Maximum number of settled instances, timers or signals that upkeep deletes in one statement.
const COLLECT_BATCH: i32 = 1_000;
/// Upkeep keeps settled instances beyond their retention if a live parent may read them. It checks
/// these instances again after this many times `collect_every`.
const COLLECT_PASS_PAUSE: u32 = 10;
/// A sweep for runnable instances costs more if there are more dead index entries, so sweeps use at
/// most one part in this many of the time.
const SWEEP_SHARE: u32 = 100;
/// Bounds for the interval between two sweeps for runnable instances that the picker missed.
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(250);
const SWEEP_EVERY_IDLE: Duration = Duration::from_secs(2);
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(5);
/// How often upkeep measures how many instances wait in each queue.
const DEPTH_EVERY: Duration = Duration::from_secs(15);
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
pub(crate) async fn run(core: Arc<Core>) {
    let connection = Connection::for_loop(core.target.clone());
    let now = Instant::now();
    let settings = &core.settings;
    let mut due = Due {
        reap: now + settings.reap_every,
        // No sweep is due at the start of upkeep, because the first pick reads from the start of
        // the index too.
        sweep: now + SWEEP_EVERY_MIN,
        collect: now + settings.collect_every,
        depth: now,
        overdue: now + OVERDUE_EVERY,
        blocked: None,
        release: None,
        claims: None,
        lane_worker: None,
        repair: now,
        stuck: now,
    };
    let (mut rounds, mut unknown_heads) = (lane::RepairCursor::default(), UnknownHeads::default());
    let mut stuck_after = 0;
    let mut blocked_pause = BLOCKED_EVERY;
    let (mut timers_collected_to, mut signals_collected_to) =
        (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
    loop {
        let next = due.next();
        tokio::select! {
            () = core.phase.stopped() => {
                for _ in 0..core.blocked.len().div_ceil(commit::BLOCKED_BATCH_MAX) {
                    commit_blocked(&core, &connection, &mut blocked_pause).await;
                }
                return;
            }
            // A step result that upkeep sets aside once more sends this notification too. The
            // notification does not make the next attempt to commit it earlier.
            () = core.blocked.woken() => {
                due.blocked.get_or_insert_with(Instant::now);
            }
            () = core.environment.watch.woken() => {
                due.claims.get_or_insert_with(|| Instant::now() + CLAIMS_EVERY);
            }
            () = core.lane_worker.woken() => {
                due.lane_worker.get_or_insert_with(|| Instant::now() + lane_worker::CLAIM_AFTER);
            }
            () = core.releases.woken() => due.release = Some(Instant::now()),
            () = core.wake.doubted() => due.claims = Some(Instant::now()),
            () = tokio::time::sleep_until(next.into()) => {}
        }
        let now = Instant::now();
        if due.blocked.is_some_and(|at| at <= now) {
            due.blocked = commit_blocked(&core, &connection, &mut blocked_pause).await;
        }
        if due.release.is_some_and(|at| at <= now) {
            report(
                "release the lanes and partition keys of cancelled instances",
                core.releases.write(&core, &connection).await,
            );
            due.release = (!core.releases.is_empty()).then(|| Instant::now() + RELEASE_EVERY);
        }
        if due.claims.is_some_and(|at| at <= now) {
            report(
                "check the claims of running steps",
                core.environment.watch.look(&connection).await,
            );
            due.claims =
                (!core.environment.watch.is_empty()).then(|| Instant::now() + CLAIMS_EVERY);
        }
        if due.lane_worker.is_some_and(|at| at <= now) {
            let claimed = lane_worker::claim_long_running(&core, &connection).await;
            due.lane_worker = match &claimed {
                Ok(false) => None,
                Ok(true) => Some(Instant::now() + lane_worker::CLAIM_AFTER),
                Err(_) => Some(Instant::now() + CLAIMS_EVERY),
            };
            report(
                "claim the steps that run in lanes of this worker",
                claimed.map(drop),
            );
        }
        if core.phase.is_draining() {
            // During the shutdown of the engine, upkeep claims no more instances. It still commits
            // the step results that wait for a lock.
            (due.sweep, due.reap) = (now + SWEEP_EVERY_MAX, now + settings.reap_every);
            (due.collect, due.depth) = (now + settings.collect_every, now + DEPTH_EVERY);
            (due.overdue, due.repair) = (now + OVERDUE_EVERY, now + REPAIR_EVERY);
            due.stuck = now + settings.stuck_retry_every;
            continue;
        }
        if due.overdue <= now {
            report(
                "release claims that wait too long",
                release_overdue(&core, &connection).await,
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
                "find lost claims",
                release_lost_claims(&core, &connection).await,
            );
            report(
                "find lost heads of lanes",
                unknown_heads.release(&core, &connection).await,
            );
            report(
                "register the schedules",
                core.schedules.register(&connection).await,
            );
            due.reap = Instant::now() + settings.reap_every;
        }
        if due.repair <= now {
            report(
                "repair lanes and partition keys",
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
    lane_worker: Option<Instant>,
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
        [self.blocked, self.release, self.claims, self.lane_worker]
            .into_iter()
            .flatten()
            .fold(soonest, Instant::min)
    }
}

/// Claims instances from the very beginning of the index of runnable instances. The sweep finds
/// rows that committed late, rows that were locked when the picker read them, and rows with a
/// priority that this process did not know. Returns how long the sweep lasted, and whether no
/// priority of any queue is in use.
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
    // The shutdown of the engine tests this lock, so that it does not treat the in-memory queues as
    // empty before the rows that this sweep claims are in them.
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
        // The sweep sets refused instances aside itself. The picker may never read such an
        // instance, because the instance may be below the picker's watermarks.
        Err(fault) if set_aside(core, connection, &wanted, &fault).await => return Ok(false),
        picked => picked?,
    };
    for row in picked.rows {
        // The picker has missed the row that this sweep has claimed. It may have missed many
        // others, for example of a large transaction that committed late, so the hint moves the
        // picker's watermark back to this row.
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

/// Makes the instances of expired workers runnable. The reaper does nothing for the time of one
/// lease after this process lost contact with the database, because every worker must have had the
/// chance to renew its lease.
async fn reap(core: &Arc<Core>, connection: &Connection) -> Result<(), Fault> {
    // Only a loss of the lease connection counts as a loss of contact, because the engine closes
    // other connections after a slow statement too.
    let lost_contact = || !core.renews() || core.target.lost_contact_within(core.settings.lease);
    if lost_contact() {
        return Ok(());
    }
    for worker in lease::grant_missing_leases(connection, core.lease_seconds()).await? {
        tracing::warn!(
            worker,
            "worker {worker} holds claims but has no lease row; granting it one lease period"
        );
    }
    let expired = lease::expired(connection, core.lease_seconds(), &core.worker.id).await?;
    // The query for expired workers may have been sent before an outage and answered after it, so
    // the reaper checks a second time whether this process has lost contact with the database.
    if lost_contact() {
        return Ok(());
    }
    let mut refused = Ok(());
    for worker in expired {
        match reap_one(core, connection, &worker).await {
            // An error for one expired worker must not keep the reaper from the instances of other
            // expired workers.
            Err(fault @ (Fault::Refused { .. } | Fault::Busy(_))) => refused = Err(fault),
            outcome => outcome?,
        }
    }
    refused
}

async fn reap_one(core: &Core, connection: &Connection, worker: &str) -> Result<(), Fault> {
    let crashes_max = i16::try_from(core.settings.crashes_max).unwrap_or(i16::MAX);
    loop {
        let reaped = lease::reap(connection, worker, REAP_BATCH, crashes_max).await?;
        let count = reaped.len();
        metrics::counter!("durable_reaped_total").increment(count.try_into().unwrap_or_default());
        if count > 0 {
            tracing::warn!(
                worker,
                count,
                "reaped {count} rows of expired worker {worker}"
            );
            core.wake.wake();
        }
        for row in reaped.into_iter().filter(|row| row.is_stuck) {
            core.failures.report(InstanceFailure {
                machine: row.machine,
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
        core.wake.wake();
    }
    lease::delete_expired_worker(connection, worker).await
}

/// Releases claimed instances that have waited too long for a worker task. The picker claims as
/// many instances as the recent rate of steps can start soon. If steps suddenly last longer, those
/// instances would wait in this process while other processes are idle.
async fn release_overdue(core: &Arc<Core>, connection: &Connection) -> Result<(), Fault> {
    for queue in &core.queues {
        let overdue = queue.overdue();
        if overdue.is_empty() {
            continue;
        }
        let claims: Vec<_> = overdue.iter().map(|run| run.row.claim()).collect();
        // This process forgets the overdue instances in any case. If the release fails,
        // `release_lost_claims` finds their claims later.
        queue.let_go(claims.iter().copied());
        overdue
            .iter()
            .for_each(|run| core.release_suspect(&run.row));
        release_claims(connection, &claims).await?;
        tracing::debug!(
            count = claims.len(),
            "released claims of rows that could not begin in time"
        );
    }
    Ok(())
}

/// Releases the rows that a pick of this worker claimed, if the reply to the pick was lost. This
/// process does not know that it holds these rows, and its lease keeps all other workers from them.
async fn release_lost_claims(core: &Arc<Core>, connection: &Connection) -> Result<(), Fault> {
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
    let count = release_claims(connection, &lost).await?;
    tracing::warn!(
        count,
        "released {count} rows that a pick had claimed: its answer was lost"
    );
    core.wake.wake();
    Ok(())
}

/// Repairs lanes and partition keys that have waiting instances and no instance that could run: the
/// lane has lost its head, or the key its holder, most likely by a manual change of rows. Each call
/// checks a part of the lanes and keys.
async fn repair(connection: &Connection, rounds: &mut lane::RepairCursor) -> Result<(), Fault> {
    let count = lane::repair(connection, rounds, REPAIR_BATCH).await?;
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

/// Deletes a page of settled instances after the end of their retention. Returns whether there may
/// be more instances to delete.
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

/// Deletes fired, missed and cancelled timers past their retention, in the order in which they
/// ended. Returns whether there may be more timers to delete.
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

/// Deletes consumed signals that are kept for their dedup keys, in the order of their consumption.
/// Returns whether there may be more signals to delete.
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

/// Tries to commit the step results that wait for a lock of another transaction. Returns the time
/// of the next attempt, if any results are left.
async fn commit_blocked(
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
