//! The settings of an engine in this process: one struct, with defaults that suit most
//! applications.

use std::time::Duration;

use crate::{
    error::Error,
    policy::{DAY, MINUTE, SECOND},
};

/// The upper bound of durations. Without a bound, adding a duration to a clock can overflow.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The longest finite retention: the date that lies this far in the past must be representable.
const RETENTION_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// How long engines keep settled instances of a queue; `None` keeps them without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long engines keep done instances of the queue.
    pub done: Option<Duration>,
    /// How long engines keep failed and cancelled instances of the queue.
    pub failed: Option<Duration>,
}

impl Retention {
    /// Checks that both durations can be subtracted from a date.
    pub(crate) fn check(self) -> Result<(), Error> {
        check_retention("retention of done instances", self.done)?;
        check_retention("retention of failed instances", self.failed)
    }
}

fn check_retention(what: &str, kept: Option<Duration>) -> Result<(), Error> {
    match kept {
        Some(kept) if kept > RETENTION_MAX => Err(Error::invalid(format!(
            "the {what} is longer than 100 years; use None to keep them without limit"
        ))),
        _ => Ok(()),
    }
}

/// The largest `crashes_max`: the column that counts the crashes is a smallint.
const CRASHES_MAX_MAX: u16 = 10_000;

/// Settings of an engine: `Settings { lease: 30 * SECOND, ..Settings::default() }`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a worker counts as alive after its last heartbeat (60 s).
    pub lease: Duration,
    /// How often a worker renews its lease (20 s); at most a third of the lease.
    pub heartbeat: Duration,
    /// How often an engine searches for expired workers, to release their claims (30 s). The first
    /// of several equal workers does; the others do it four times less often.
    pub reap_every: Duration,
    /// How many worker crashes during the same step of an instance set the instance aside as stuck
    /// (3; at least 2, because the first crash shows only that the worker had claimed the instance
    /// at that time). An operator's retry resets the count.
    pub crashes_max: u16,
    /// How often an engine polls for runnable instances while it finds some (4 ms). Workers that
    /// can claim the same instances share these polls: eight workers poll every 32 ms each, and no
    /// worker polls less often than every 100 ms while it finds some.
    pub busy_poll: Duration,
    /// How often an engine polls for runnable instances after a minute without any (1 s).
    pub idle_poll: Duration,
    /// How many steps of the queue `default` run at once in this process (100).
    /// [`EngineBuilder::queue`](crate::engine::EngineBuilder::queue) sets the limit of another
    /// queue.
    pub concurrency: usize,
    /// The timeout of a step, unless its policy sets another one (5 minutes). A step that runs
    /// longer has failed.
    pub step_timeout: Duration,
    /// The timeout of the engine's own statements (30 s). After it the engine assumes that the
    /// network or the server is gone: it drops the connection, and reads on another connection
    /// whether the database has committed the statement.
    pub statement_timeout: Duration,
    /// How long a shutdown waits for running steps (20 s) before it releases their claims. If the
    /// database does not respond, the shutdown takes at most 5 s longer: it stays within the 30 s
    /// that Kubernetes grants by default.
    pub drain_timeout: Duration,
    /// How long engines keep done instances (1 day). `None` keeps them without limit. The retention
    /// also bounds a key with [`KeyScope::Ever`](crate::KeyScope::Ever): the key is free when an
    /// engine has deleted its instance.
    /// [`EngineBuilder::queue_retention`](crate::engine::EngineBuilder::queue_retention) sets the
    /// retention of one queue.
    pub retention: Option<Duration>,
    /// How long engines keep failed and cancelled instances (30 days). `None` keeps them without
    /// limit. Engines never delete stuck instances.
    pub failed_retention: Option<Duration>,
    /// How often an engine reads timers that other processes have set (1 s). If the process that
    /// set a timer ends before the timer is due, the timer fires about this much late. Of workers
    /// that can claim the same instances, one reads this often, and the others less often.
    pub timer_refill_every: Duration,
    /// How many long overdue timers one process fires per second, for example after an outage
    /// (1,000). Ten processes fire ten times as many. Timers that become due in that time still
    /// fire on time.
    pub overdue_per_second: u32,
    /// How long engines keep the rows of fired, missed and cancelled timers, of finished runs and
    /// of resolved failures of projections (30 days). `None` keeps them without limit.
    pub timer_retention: Option<Duration>,
    /// How long an instance remembers the key of a consumed `once` signal (30 days). `None` means
    /// for its whole life.
    pub dedup_retention: Option<Duration>,
    /// How often an engine deletes settled instances past their retention (1 minute). The first of
    /// several equal workers does; the others do it four times less often.
    pub collect_every: Duration,
    /// How often an engine retries stuck rows that another build could not decode (1 minute). The
    /// first retry is at the start of the engine.
    pub stuck_retry_every: Duration,
    /// The largest state, step data or result, in bytes of JSON (1 MiB).
    pub payload_bytes_max: usize,
    /// How many transactions steps and callers may have open at once (10). Each transaction uses
    /// its own connection, which the pool opens on first use. A further transaction waits for a
    /// connection for up to 10 s. A step with a long transaction delays other transactions: set
    /// this to at least the number of steps that hold such transactions at once.
    pub transactions: usize,
    /// How many scopes (a projection of one tenant) this worker processes at once (2). Each scope
    /// uses a connection while a worker processes it.
    pub projection_concurrency: usize,
    /// The largest number of events that one call of a projection receives (500).
    pub projection_batch: usize,
    /// How long engines keep events after every projection of their tenant has read them. `None`,
    /// the default, keeps them without limit; a projection cannot be rebuilt from deleted events.
    pub event_retention: Option<Duration>,
    /// How many steps an instance may run ahead on one claim before other instances run (100). 0
    /// and 1 both mean one step.
    pub run_ahead_steps: u32,
    /// How long an instance may run ahead on one claim (1 s).
    pub run_ahead_for: Duration,
    /// A function that returns the current W3C trace context of the host. The engine calls it at an
    /// enqueue; the instance keeps the trace context, and every step can read it.
    pub traceparent: Option<fn() -> Option<String>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            lease: 60 * SECOND,
            heartbeat: 20 * SECOND,
            reap_every: 30 * SECOND,
            crashes_max: 3,
            busy_poll: Duration::from_millis(4),
            idle_poll: SECOND,
            concurrency: 100,
            step_timeout: 5 * MINUTE,
            statement_timeout: 30 * SECOND,
            drain_timeout: 20 * SECOND,
            retention: Some(DAY),
            failed_retention: Some(30 * DAY),
            timer_refill_every: SECOND,
            overdue_per_second: 1_000,
            timer_retention: Some(30 * DAY),
            dedup_retention: Some(30 * DAY),
            collect_every: MINUTE,
            stuck_retry_every: MINUTE,
            payload_bytes_max: 1024 * 1024,
            transactions: crate::store::pool::TRANSACTIONS,
            projection_concurrency: 2,
            projection_batch: 500,
            event_retention: None,
            run_ahead_steps: 100,
            run_ahead_for: SECOND,
            traceparent: None,
        }
    }
}

impl Settings {
    /// Returns the age after which a claim counts as lost, if the row names this worker and the
    /// worker does not know the claim: the response to the pick or commit that made it did not
    /// arrive. By this age every such statement has either returned or timed out.
    pub(crate) fn orphan_after(&self) -> Duration {
        self.statement_timeout + self.statement_timeout / 4
    }

    /// Returns the retention of settled instances for queues that have no retention of their own.
    pub(crate) fn retentions(&self) -> Retention {
        Retention {
            done: self.retention,
            failed: self.failed_retention,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.retentions().check()?;
        check_retention("retention of timers", self.timer_retention)?;
        check_retention("retention of events", self.event_retention)?;
        let wrong = |what: &str| Err(Error::invalid(format!("the settings are invalid: {what}")));
        let durations = [
            self.lease,
            self.heartbeat,
            self.reap_every,
            self.busy_poll,
            self.idle_poll,
            self.step_timeout,
            self.drain_timeout,
            self.collect_every,
            self.stuck_retry_every,
            self.timer_refill_every,
            self.statement_timeout,
            self.run_ahead_for,
        ];
        if durations.iter().any(|duration| *duration > DURATION_MAX) {
            return wrong("a duration is longer than a year; use at most 366 days");
        }
        if self.lease.is_zero() || self.heartbeat.is_zero() {
            return wrong("lease and heartbeat must be greater than zero");
        }
        if self.heartbeat > self.lease / 3 {
            return wrong(&format!(
                "the heartbeat ({:?}) must be at most a third of the lease ({:?}), otherwise a single lost heartbeat loses the lease",
                self.heartbeat, self.lease
            ));
        }
        if !(2..=CRASHES_MAX_MAX).contains(&self.crashes_max) {
            return wrong(&format!(
                "crashes_max must be between 2 and {CRASHES_MAX_MAX}"
            ));
        }
        if self.busy_poll.is_zero() || self.idle_poll < self.busy_poll {
            return wrong("busy_poll must be greater than zero and at most idle_poll");
        }
        if self.reap_every.is_zero() || self.collect_every.is_zero() || self.step_timeout.is_zero()
        {
            return wrong("reap_every, collect_every and step_timeout must be greater than zero");
        }
        if self.stuck_retry_every.is_zero() {
            return wrong("stuck_retry_every must be greater than zero");
        }
        if self.timer_refill_every.is_zero() || self.overdue_per_second == 0 {
            return wrong(
                "timer_refill_every must be greater than zero and overdue_per_second at least 1, otherwise timers of ended processes never fire",
            );
        }
        if self.statement_timeout.is_zero() {
            return wrong(
                "statement_timeout must be greater than zero, otherwise every statement times out",
            );
        }
        if self.concurrency == 0 {
            return wrong("concurrency must be at least 1");
        }
        if self.payload_bytes_max == 0 || self.payload_bytes_max > 256 * 1024 * 1024 {
            return wrong("payload_bytes_max must be between 1 byte and 256 MiB");
        }
        if self.projection_concurrency == 0
            || self.projection_batch == 0
            || self.projection_batch > 100_000
        {
            return wrong(
                "projection_concurrency must be at least 1, and projection_batch between 1 and 100,000",
            );
        }
        if self.transactions == 0 {
            return wrong("transactions must be at least 1");
        }
        Ok(())
    }
}
