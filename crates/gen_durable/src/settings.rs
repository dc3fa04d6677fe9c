//! What is true of this process: one struct, with defaults that hold for a newcomer.

use std::time::Duration;

use crate::{
    error::Error,
    policy::{DAY, MINUTE, SECOND},
};

/// Clocks overflow where durations have no bound.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The longest retention that is not for ever: a date that far in the past must exist.
const RETENTION_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// How long settled instances of a queue are kept; `None`: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Those that are done.
    pub done: Option<Duration>,
    /// Those that failed or were cancelled.
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
            "the {what} is longer than 100 years; use None to keep them for ever"
        ))),
        _ => Ok(()),
    }
}

/// The largest `deaths_max`: the column that counts deaths is a smallint.
const DEATHS_MAX_MAX: u16 = 10_000;

/// Settings of an engine. `Settings { lease: 30 * SECOND, ..Settings::default() }`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a silent worker is believed to be alive (60 s).
    pub lease: Duration,
    /// How often a worker says that it is alive (20 s): at most a third of the lease.
    pub heartbeat: Duration,
    /// How often the dead are looked for (30 s).
    pub reap_every: Duration,
    /// How many workers may die while the same step of an instance runs before the instance is set aside as stuck (3; at least 2:
    /// the first death says only that the instance was there). An operator's retry begins the count anew.
    pub deaths_max: u16,
    /// How often an engine looks for work while there is some (6 ms).
    pub busy_poll: Duration,
    /// How often it looks when there has been none for a minute (1 s).
    pub idle_poll: Duration,
    /// How many steps of a queue run at once in this process, unless the queue says otherwise (100).
    pub workers: usize,
    /// A step that runs longer has failed, unless its policy says otherwise (5 minutes).
    pub step_timeout: Duration,
    /// A statement of the engine's own that is not answered within this time is lost (30 s): the network is silent, or the
    /// server is gone. The connection is given up, and what became of the statement is asked on another one.
    pub statement_timeout: Duration,
    /// How long a shutdown waits for running steps (20 s) before it gives them back. With that, and with a database that does not
    /// answer, it takes at most 5 s longer: within the 30 s that Kubernetes grants by default.
    pub drain_timeout: Duration,
    /// How long instances that are done are kept (1 day). `None`: for ever. It also bounds a key of
    /// [`Scope::Ever`](crate::Scope::Ever): the key is free again when the instance that had it is deleted.
    /// [`EngineBuilder::queue_retention`](crate::EngineBuilder::queue_retention) sets it for one queue.
    pub retention: Option<Duration>,
    /// How long instances that failed or were cancelled are kept (30 days). `None`: for ever. Stuck ones are kept until they are
    /// resolved.
    pub failed_retention: Option<Duration>,
    /// How often timers that other processes armed are looked for (1 s): one that its own process did not live to fire is at most
    /// that late.
    pub timer_refill: Duration,
    /// How many timers that are long overdue, after an outage say, a process fires in a second (1,000): ten processes fire ten times
    /// as many. Fresh ones are on time meanwhile.
    pub overdue_per_second: u32,
    /// How long fired, missed and cancelled timers are kept, and finished runs and resolved failures of projections (30 days).
    /// `None`: for ever.
    pub timer_retention: Option<Duration>,
    /// How long an instance remembers the key of a consumed `once` signal (30 days). `None`: for its whole life.
    pub dedup_retention: Option<Duration>,
    /// How often settled instances are collected (1 minute).
    pub collect_every: Duration,
    /// How often rows that another build could not decode are retried (1 minute), beginning with the engine's start.
    pub stuck_retry_every: Duration,
    /// The largest state, step data or result, in bytes of JSON (1 MiB).
    pub payload_bytes_max: usize,
    /// How many transactions of their own steps and callers may have open at once (10). Each takes a connection, opened when
    /// it is first needed; a further one waits for up to 10 s. A step that begins a transaction and works for long in it
    /// keeps others waiting: give it as many as there are workers that do so.
    pub transactions: usize,
    /// How many scopes of projections are worked on at once in this process (2): each takes a connection while it is.
    pub projectors: usize,
    /// How many events a projection is handed at once, at the most (500).
    pub projection_batch: usize,
    /// How long events are kept once every projection of their tenant has read them. `None`, the default: for ever; what is gone
    /// cannot be rebuilt from.
    pub event_retention: Option<Duration>,
    /// How many steps an instance runs on one claim before others get a turn (100). 0 and 1: one step.
    pub run_ahead_steps: u32,
    /// And for how long (1 s).
    pub run_ahead_for: Duration,
    /// Ask the host for the W3C trace context of an enqueue; it is carried to every step.
    pub traceparent: Option<fn() -> Option<String>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            lease: 60 * SECOND,
            heartbeat: 20 * SECOND,
            reap_every: 30 * SECOND,
            deaths_max: 3,
            busy_poll: Duration::from_millis(6),
            idle_poll: SECOND,
            workers: 100,
            step_timeout: 5 * MINUTE,
            statement_timeout: 30 * SECOND,
            drain_timeout: 20 * SECOND,
            retention: Some(DAY),
            failed_retention: Some(30 * DAY),
            timer_refill: SECOND,
            overdue_per_second: 1_000,
            timer_retention: Some(30 * DAY),
            dedup_retention: Some(30 * DAY),
            collect_every: MINUTE,
            stuck_retry_every: MINUTE,
            payload_bytes_max: 1024 * 1024,
            transactions: crate::store::pool::TRANSACTIONS,
            projectors: 2,
            projection_batch: 500,
            event_retention: None,
            run_ahead_steps: 100,
            run_ahead_for: SECOND,
            traceparent: None,
        }
    }
}

impl Settings {
    /// A row that this worker holds by the database and not by its own books, for this long, was lost on the way to us:
    /// by then every claim under way has been answered or given up.
    pub(crate) fn orphan_after(&self) -> Duration {
        self.statement_timeout + self.statement_timeout / 4
    }

    /// Returns how long settled instances are kept where their queue says nothing else.
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
        let wrong = |what: &str| {
            Err(Error::invalid(format!(
                "these settings cannot work: {what}"
            )))
        };
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
            self.timer_refill,
            self.statement_timeout,
            self.run_ahead_for,
        ];
        if durations.iter().any(|duration| *duration > DURATION_MAX) {
            return wrong("a duration is longer than a year; say a year for as good as never");
        }
        if self.lease.is_zero() || self.heartbeat.is_zero() {
            return wrong("lease and heartbeat must be longer than nothing");
        }
        if self.heartbeat > self.lease / 3 {
            return wrong(&format!(
                "the heartbeat ({:?}) must be at most a third of the lease ({:?}), or one lost beat loses the lease",
                self.heartbeat, self.lease
            ));
        }
        if !(2..=DEATHS_MAX_MAX).contains(&self.deaths_max) {
            return wrong(&format!(
                "deaths_max must be between 2 and {DEATHS_MAX_MAX}"
            ));
        }
        if self.busy_poll.is_zero() || self.idle_poll < self.busy_poll {
            return wrong(
                "the busy poll must be longer than nothing and at most as long as the idle poll",
            );
        }
        if self.reap_every.is_zero() || self.collect_every.is_zero() || self.step_timeout.is_zero()
        {
            return wrong("reap_every, collect_every and step_timeout must be longer than nothing");
        }
        if self.stuck_retry_every.is_zero() {
            return wrong("stuck_retry_every must be greater than zero");
        }
        if self.timer_refill.is_zero() || self.overdue_per_second == 0 {
            return wrong(
                "timer_refill must be longer than nothing and overdue_per_second at least 1, or no timer of the dead fires",
            );
        }
        if self.statement_timeout.is_zero() {
            return wrong(
                "statement_timeout must be longer than nothing, or no statement is ever answered in time",
            );
        }
        if self.workers == 0 {
            return wrong("a queue needs at least one worker");
        }
        if self.payload_bytes_max == 0 || self.payload_bytes_max > 256 * 1024 * 1024 {
            return wrong("payload_bytes_max must be between 1 byte and 256 MiB");
        }
        if self.projectors == 0 || self.projection_batch == 0 || self.projection_batch > 100_000 {
            return wrong(
                "projectors must be at least 1, and projection_batch between 1 and 100,000",
            );
        }
        if self.transactions == 0 {
            return wrong("a step's own transaction needs at least one connection");
        }
        Ok(())
    }
}
