//! The timer loop: the loop of a worker that fires timers and deadlines when they are due. The rows
//! of `timers` and `instances` are the truth; the memory of this loop holds only the times at which
//! to query them.
//!
//! There is no leader: any process may fire a timer if it has the code of the timer's schedule, and
//! the lock on the timer's row decides which process fires it. A process queries for the timers
//! that it armed at their due time. It queries for the timers of other processes a little later, in
//! case such a process has crashed. A process fires long overdue timers at a limited rate, in small
//! statements, and fires timers that are due now between those statements.

use std::{
    collections::HashMap,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};

use super::{
    core::Core,
    memory::{KEPT_MAX, Memory, lateness},
    schedules::RegisteredSchedules,
};
use crate::{
    error::chain,
    store::{
        connection::Connection,
        fault::Fault,
        schedule,
        timer::{self, DueTimer, Fired, Firing, Range},
    },
    wake::{Hint, NewTimer, TimerDue},
};

/// A timer that is late by more than this duration is overdue: the timer loop fires it at the
/// limited rate of overdue timers.
pub(crate) const FRESH: Duration = Duration::from_secs(5);
/// The timer loop regularly reads into memory the due times of the timers that are due within this
/// many of its refill periods.
const HORIZON_REFILLS: u32 = 5;
/// In a group of workers, the timer loop of one worker reads the due times of timers at least once
/// in this many refill periods.
const REFILL_SHARED_MAX: u32 = 60;
/// Maximum number of timers or deadlines that the timer loop fires in one statement.
const BATCH: i32 = 200;
/// Delay before the timer loop tries again to fire a timer, if another transaction has locked the
/// timer's row.
const HELD_PAUSE: Duration = Duration::from_millis(20);
/// Delay before the timer loop tries again to fire a timer that it could not fire because of an
/// error.
const BROKEN_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of timers that a process remembers because it could not fire them.
const BROKEN_MAX: usize = 1_000;
/// Interval at which the timer loop queries for overdue timers: while there are overdue timers, and
/// while there are none.
const OVERDUE_EVERY: Duration = Duration::from_millis(50);
const OVERDUE_EVERY_IDLE: Duration = Duration::from_secs(5);
/// The timer loop's query for overdue timers begins at the due time at which the last query ended,
/// less this lag. From time to time a sweep reads the index of due times from its start. A sweep
/// costs more if there are more dead index entries, so sweeps use at most one part in `SWEEP_SHARE`
/// of the time.
const OVERDUE_LAG: SignedDuration = SignedDuration::from_secs(60);
const SWEEP_SHARE: u32 = 100;
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(60);

/// Fires timers and deadlines as they become due, until the engine has stopped.
pub(crate) async fn run(core: Arc<Core>) {
    let mut timers = TimerLoop::new(&core);
    loop {
        let next = timers.next();
        tokio::select! {
            () = core.phase.stopped() => return,
            () = core.wake.has_armed() => {}
            () = tokio::time::sleep_until(next.into()) => {}
        }
        for armed in core.wake.take_armed() {
            timers.memory.arm(armed);
        }
        if core.phase.is_draining() {
            // During its shutdown an engine fires no timers, because it starts no new instances.
            // Other engines fire these timers, or this process fires them after its restart.
            timers.memory.clear();
            timers.refill_at = Instant::now() + core.settings.timer_refill_every;
            timers.overdue_at = timers.refill_at;
            continue;
        }
        if let Err(fault) = timers.round().await {
            tracing::debug!(
                error = fault.message(),
                "could not read or fire due timers, trying again with the next refill"
            );
            timers.forget();
        }
    }
}

struct TimerLoop<'a> {
    core: &'a Core,
    memory: Memory,
    refill_at: Instant,
    overdue_at: Instant,
    sweep_at: Instant,
    /// The due times at which the next queries for overdue deadlines and for overdue timers begin.
    marks: (Timestamp, Timestamp),
    /// How many overdue timers and deadlines the timer loop may fire now, and when it last computed
    /// this number.
    allowance: f64,
    counted: Instant,
    names: Vec<String>,
    /// Timers that this process could not fire because of an error, and the time until which it
    /// skips them.
    broken: HashMap<i64, Instant>,
}

impl<'a> TimerLoop<'a> {
    fn new(core: &'a Core) -> TimerLoop<'a> {
        let now = Instant::now();
        TimerLoop {
            core,
            memory: Memory::new(),
            refill_at: now,
            overdue_at: now,
            sweep_at: now,
            marks: (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH),
            allowance: 0.0,
            counted: now,
            names: core.schedules.names(),
            broken: HashMap::new(),
        }
    }

    fn next(&self) -> Instant {
        let soonest = self.refill_at.min(self.overdue_at);
        self.memory.next().map_or(soonest, |due| soonest.min(due))
    }

    /// Forgets all remembered due times after an outage, so that the next query for timers and
    /// deadlines reads the index from its start.
    fn forget(&mut self) {
        self.memory.clear();
        self.marks = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        self.refill_at = Instant::now() + self.core.settings.timer_refill_every;
        self.overdue_at = self.refill_at;
    }

    /// Returns how often this worker reads the timers that other processes have set. The first
    /// worker of a group does so at the set rate, and the others share further reads.
    fn refill_every(&self) -> Duration {
        let alone = self.core.settings.timer_refill_every;
        if self.core.fleet.is_first() {
            alone
        } else {
            self.core.fleet.share(alone, alone * REFILL_SHARED_MAX)
        }
    }

    /// Runs one round of the timer loop: first fires the timers that are due now, then reads the
    /// next due times into memory, then fires a few overdue timers and deadlines.
    async fn round(&mut self) -> Result<(), Fault> {
        let (deadlines, timers) = self.memory.due();
        let fresh = Range {
            since: FRESH.as_secs_f64(),
            until: 0.0,
            from: Timestamp::MIN,
        };
        if deadlines {
            while self.expire(fresh, BATCH).await? >= BATCH {}
        }
        if timers {
            while self.fire(fresh, BATCH).await? >= BATCH {}
        }
        if self.refill_at <= Instant::now() {
            self.refill().await?;
            self.refill_at = Instant::now() + self.refill_every();
        }
        if self.overdue_at <= Instant::now() {
            self.backfill().await?;
        }
        Ok(())
    }

    async fn refill(&mut self) -> Result<(), Fault> {
        // A worker that shares the reads waits for up to one and a quarter of their period.
        let refills = match self.core.fleet.is_first() {
            true => 1,
            false => self.core.fleet.size().min(REFILL_SHARED_MAX) * 2,
        };
        let alone = self.core.settings.timer_refill_every;
        let horizon = (alone * refills.max(HORIZON_REFILLS)).as_secs_f64();
        let limit = i32::try_from(KEPT_MAX / 2).unwrap_or(i32::MAX);
        let (due, now) = self
            .call(move |connection| async move {
                timer::upcoming(&connection, FRESH.as_secs_f64(), horizon, limit).await
            })
            .await?;
        self.memory.set_now(now);
        let fleet = &self.core.fleet;
        self.memory.refill(due, |due| fleet.wakes_for(due));
        let begun = Instant::now();
        self.broken.retain(|_, until| *until > begun);
        metrics::gauge!("durable_timers_in_memory").set(self.memory.len() as f64);
        Ok(())
    }

    /// Fires overdue deadlines and timers, as many as their limited rate allows.
    async fn backfill(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        let rate = f64::from(self.core.settings.overdue_per_second);
        let earned = now.duration_since(self.counted).as_secs_f64() * rate;
        self.allowance = (self.allowance + earned).min(rate.max(1.0));
        self.counted = now;
        if self.sweep_at <= now {
            self.marks = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        }
        let limit = BATCH.min(self.allowance as i32);
        if limit < 1 {
            self.overdue_at = now + OVERDUE_EVERY;
            return Ok(());
        }
        let overdue = |from| Range {
            since: f64::INFINITY,
            until: FRESH.as_secs_f64(),
            from,
        };
        let expired = self.expire(overdue(self.marks.0), limit).await?;
        let limit = (limit - expired).max(1);
        let fired = self.fire(overdue(self.marks.1), limit).await?;
        self.allowance -= f64::from(expired) + f64::from(fired);
        if self.sweep_at <= now {
            let cost = now.elapsed();
            self.sweep_at =
                Instant::now() + (cost * SWEEP_SHARE).clamp(OVERDUE_EVERY_IDLE, SWEEP_EVERY_MAX);
        }
        let pause = match (expired, fired) {
            (0, 0) => self.core.fleet.upkeep(OVERDUE_EVERY_IDLE),
            // The timer loop fires the occurrences of a schedule one after the other, so the
            // occurrence after a fired one may be overdue too.
            (0, _) if self.allowance >= 1.0 => Duration::ZERO,
            _ => OVERDUE_EVERY,
        };
        self.overdue_at = Instant::now() + pause;
        Ok(())
    }

    /// Ends waits and joins that have passed their deadline, and returns how many it ended.
    async fn expire(&mut self, range: Range, limit: i32) -> Result<i32, Fault> {
        let (expired, now) = self
            .call(move |connection| async move { timer::expire(&connection, limit, range).await })
            .await?;
        if !expired.is_empty() {
            self.core.record_work();
        }
        self.memory.set_now(now);
        if range.until > 0.0 {
            let reached = expired.iter().map(|expired| expired.due).max();
            let idle = now - SignedDuration::try_from(FRESH).unwrap_or_default() - OVERDUE_LAG;
            self.marks.0 = if count(&expired) >= limit {
                reached.unwrap_or(self.marks.0)
            } else {
                idle
            };
        }
        for expired in &expired {
            metrics::histogram!("durable_timer_lateness_seconds", "kind" => "deadline")
                .record(lateness(expired.due, now));
            self.hint(&expired.queue, expired.priority, Timestamp::MAX);
        }
        Ok(count(&expired))
    }

    fn hint(&self, queue: &str, priority: i16, from: Timestamp) {
        self.core.wake.hint(Hint {
            queue: queue.to_owned(),
            priority,
            from,
        });
    }

    /// Fires the timers that are due, and returns how many are no longer pending.
    async fn fire(&mut self, range: Range, limit: i32) -> Result<i32, Fault> {
        let except: Vec<i64> = self.broken.keys().copied().collect();
        let names = self.names.clone();
        let (due, now) = self
            .call(move |connection| async move {
                timer::due(&connection, limit, range, &names, &except).await
            })
            .await?;
        self.memory.set_now(now);
        if range.until > 0.0 {
            let idle = now - SignedDuration::try_from(FRESH).unwrap_or_default() - OVERDUE_LAG;
            let reached = due.iter().map(|timer| timer.due).max();
            self.marks.1 = if count(&due) >= limit {
                reached.unwrap_or(self.marks.1)
            } else {
                idle
            };
        }
        if due.is_empty() {
            return Ok(0);
        }
        self.core.record_work();
        // This call runs code of the host, so it runs on the thread of the timer loop.
        let decided = decide(
            &self.core.schedules,
            &due,
            now,
            self.core.settings.payload_bytes_max,
        );
        let done = self
            .call(move |connection| async move { fire_all(&connection, decided).await })
            .await?;
        for fired in &done.fired {
            self.record_fired(fired, &due);
        }
        for (id, why) in &done.broken {
            let schedule = due
                .iter()
                .find(|timer| timer.id == *id)
                .and_then(|timer| timer.schedule.as_deref());
            tracing::error!(
                timer = id,
                schedule,
                error = why,
                "a timer cannot be fired; it is tried again in {BROKEN_PAUSE:?}"
            );
            if self.broken.len() < BROKEN_MAX {
                self.broken.insert(*id, Instant::now() + BROKEN_PAUSE);
            }
        }
        // The count leaves out timers with a locked row and timers that cannot be fired, so that
        // the timer loop does not retry them without a pause.
        Ok(i32::try_from(done.ended()).unwrap_or(i32::MAX))
    }

    /// Sends statements on a connection of the engine.
    async fn call<T, F, Fut>(&self, act: F) -> Result<T, Fault>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        let called = self.core.calls.call(act).await;
        called.map_err(|error| Fault::Away(chain(&error)))?
    }

    fn record_fired(&mut self, fired: &Fired, due: &[DueTimer]) {
        let schedule = due
            .iter()
            .find(|timer| timer.id == fired.id)
            .and_then(|timer| timer.schedule.as_deref());
        let kind = if schedule.is_some() {
            "schedule"
        } else {
            "repeat"
        };
        match (fired.answer.as_str(), fired.late_seconds) {
            ("held", _) => self.memory.again(true, HELD_PAUSE),
            ("fired", Some(late)) => {
                metrics::histogram!("durable_timer_lateness_seconds", "kind" => kind).record(late);
                tracing::debug!(timer = fired.id, schedule, late, "a timer fired");
            }
            ("missed", _) => {
                metrics::counter!("durable_timers_missed_total", "kind" => kind).increment(1)
            }
            _ => {}
        }
        if let Some((queue, priority, from)) = &fired.started {
            self.hint(queue, *priority, *from);
        }
        if let Some(next) = fired.next {
            self.memory.arm(NewTimer {
                due: TimerDue::At(next),
                is_timer: true,
            });
            // The next occurrence of a fired timer may be long overdue. The watermark of the query
            // for overdue timers moves back to the due time of that occurrence, so that the query
            // finds it without a sweep.
            self.marks.1 = self.marks.1.min(next);
        }
    }
}

fn count<T>(rows: &[T]) -> i32 {
    i32::try_from(rows.len()).unwrap_or(i32::MAX)
}

/// The outcome of firing a set of due timers.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) fired: Vec<Fired>,
    /// Ids of timers that this process could not fire, each with its error.
    pub(crate) broken: Vec<(i64, String)>,
}

impl Done {
    /// Returns how many timers are not pending any more, because they were fired, missed or
    /// cancelled.
    pub(crate) fn ended(&self) -> usize {
        self.fired
            .iter()
            .filter(|fired| fired.answer != "held")
            .count()
    }
}

/// The decisions about a set of due timers.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    firings: Vec<Firing>,
    /// Ids of timers for which there is no decision, each with the error.
    broken: Vec<(i64, String)>,
    /// The names of the schedules of the timers, by the ids of the timers.
    schedules: HashMap<i64, String>,
}

/// Decides what happens to due timers. Runs code of the host: the functions that make the instances
/// of schedules.
pub(crate) fn decide(
    schedules: &RegisteredSchedules,
    due: &[DueTimer],
    now: Timestamp,
    payload_bytes_max: usize,
) -> Decided {
    let mut decided = Decided::default();
    for timer in due {
        if let Some(schedule) = &timer.schedule {
            decided.schedules.insert(timer.id, schedule.clone());
        }
        match schedules.decide(timer, now, payload_bytes_max) {
            Ok(firing) => decided.firings.push(firing),
            Err(why) => decided.broken.push((timer.id, why)),
        }
    }
    decided
}

/// Fires timers in one transaction. If the database refuses the transaction, fires each timer in a
/// transaction of its own.
pub(crate) async fn fire_all(connection: &Connection, decided: Decided) -> Result<Done, Fault> {
    let Decided {
        firings,
        broken,
        schedules,
    } = decided;
    let mut done = Done {
        fired: Vec::new(),
        broken,
    };
    if !firings.is_empty() {
        match timer::fire(connection, &firings).await {
            Ok(fired) => done.fired = fired,
            Err(Fault::Refused { .. } | Fault::Busy(_)) => {
                for firing in firings {
                    match timer::fire(connection, std::slice::from_ref(&firing)).await {
                        Ok(fired) => done.fired.extend(fired),
                        Err(Fault::Refused { message, .. }) => {
                            done.broken.push((firing.id, message))
                        }
                        Err(Fault::Busy(_)) => done.fired.push(Fired::held(firing.id)),
                        Err(fault) => return Err(fault),
                    }
                }
            }
            Err(fault) => return Err(fault),
        }
    }
    for (id, why) in &done.broken {
        if let Some(name) = schedules.get(id) {
            schedule::failed(connection, name, &crate::error::storable(why)).await?;
        }
    }
    Ok(done)
}
