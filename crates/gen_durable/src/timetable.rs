//! Timers and schedules for operators and tools: list, forecast and cancel timers; pause, resume,
//! change and run schedules.

mod rates;
mod read;

use jiff::Timestamp;

use crate::{
    calendar::{Cycle, First, MisfirePolicy},
    codec,
    engine::schedules::check_length,
    error::{Error, ErrorKind, storable},
    id::NAME_BYTES_MAX,
    inspect::Inspect,
    model::schedule::{Forecast, ScheduleInfo, TimerFilter, TimerInfo, TimerSelection},
    pool::Pool,
    store::{
        fault::Fault,
        schedule::{self, Known},
        timer,
    },
    wake::{NewTimer, TimerDue},
};

/// How often a call retries its update of a schedule when another transaction changes the schedule
/// at the same time.
const TRIES_MAX: u32 = 10;

/// The timers: sleeps, deadlines, repeating timers and schedules.
#[derive(Debug, Clone)]
pub struct Timers {
    pool: Pool,
}

impl Timers {
    pub(crate) fn new(pool: Pool) -> Timers {
        Timers { pool }
    }

    /// Returns the next timers of all kinds, overdue ones first: at most `limit`, up to 1,000; 0
    /// means 50.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn next(&self, limit: usize) -> Result<Vec<TimerInfo>, Error> {
        self.list(limit, TimerSelection::All).await
    }

    /// Returns the overdue timers: at most `limit`, up to 1,000; 0 means 50.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn overdue(&self, limit: usize) -> Result<Vec<TimerInfo>, Error> {
        self.list(limit, TimerSelection::Overdue).await
    }

    async fn list(&self, limit: usize, which: TimerSelection) -> Result<Vec<TimerInfo>, Error> {
        let filter = TimerFilter {
            which,
            limit,
            ..TimerFilter::default()
        };
        Ok(Inspect::new(self.pool.clone()).timers(filter).await?.timers)
    }

    /// Divides the time ahead into `parts` (1 to 1,000) and returns the number of timers that
    /// become due in each; the list leaves out parts without timers. The count of each kind and
    /// part has an upper bound: see [`Inspect::forecast`].
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn forecast(
        &self,
        ahead: std::time::Duration,
        parts: usize,
    ) -> Result<Vec<Forecast>, Error> {
        Inspect::new(self.pool.clone()).forecast(ahead, parts).await
    }

    /// Cancels a repeating timer of a wait, or a requested run of a schedule: this occurrence and
    /// all later ones. Returns whether the cancel came in time.
    ///
    /// # Errors
    /// There is no timer with this number, or the timer is the next occurrence of a schedule: pause
    /// the schedule instead.
    pub async fn cancel(&self, id: i64) -> Result<bool, Error> {
        let outcome = self
            .pool
            .connections
            .apart(move |connection| async move { timer::cancel(&connection, id).await })
            .await?
            .map_err(|fault| fault.into_error("cancel a timer"))?;
        match outcome.as_str() {
            "cancelled" => Ok(true),
            "too_late" => Ok(false),
            "schedule" => Err(Error::invalid(format!(
                "timer {id} is the next occurrence of a schedule: pause the schedule instead"
            ))),
            _ => Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no timer {id}"),
            )),
        }
    }
}

/// The schedules: list, pause, resume, change, run.
#[derive(Debug, Clone)]
pub struct Schedules {
    pool: Pool,
}

impl Schedules {
    pub(crate) fn new(pool: Pool) -> Schedules {
        Schedules { pool }
    }

    /// Returns all schedules, ordered by name, up to 1,000.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn list(&self) -> Result<Vec<ScheduleInfo>, Error> {
        Inspect::new(self.pool.clone()).schedules(None, 1_000).await
    }

    /// Returns one schedule, or `None` if it does not exist.
    ///
    /// # Errors
    /// The name of the schedule is invalid, or the database is unreachable.
    pub async fn show(&self, name: &str) -> Result<Option<ScheduleInfo>, Error> {
        Inspect::new(self.pool.clone()).schedule(name).await
    }

    /// Pauses a schedule: no worker fires it until a caller resumes it. Returns `false` if the
    /// schedule was already paused.
    ///
    /// # Errors
    /// There is no such schedule, or the database is unreachable.
    pub async fn pause(&self, name: &str, by: &str) -> Result<bool, Error> {
        check(name)?;
        let (called, by) = (name.to_owned(), storable(by));
        let outcome = self
            .pool
            .connections
            .apart(
                move |connection| async move { schedule::pause(&connection, &called, &by).await },
            )
            .await?
            .map_err(|fault| fault.into_error("pause a schedule"))?;
        changed(&outcome, name)
    }

    /// Resumes a schedule with its next occurrence; occurrences during the pause do not fire.
    /// Returns whether the schedule was paused.
    ///
    /// # Errors
    /// There is no such schedule, this build cannot parse its cycle, or the database is
    /// unreachable.
    pub async fn resume(&self, name: &str) -> Result<bool, Error> {
        check(name)?;
        for _ in 0..TRIES_MAX {
            let called = name.to_owned();
            let outcome = self
                .pool
                .connections
                .apart(move |connection| async move {
                    let (now, known) = schedule::known(&connection, &called).await?;
                    let Some(known) = known else {
                        return Ok(Ok("no_target".to_owned()));
                    };
                    let next = match next_after_pause(&known, now) {
                        Ok(next) => next,
                        Err(error) => return Ok(Err(error)),
                    };
                    schedule::resume(&connection, &called, &known, next)
                        .await
                        .map(Ok)
                })
                .await?
                .map_err(|fault: Fault| fault.into_error("resume a schedule"))??;
            if outcome != "changed" {
                self.wake_readers(None);
                return changed(&outcome, name);
            }
        }
        Err(Error::new(
            ErrorKind::Transient,
            format!("the schedule {name:?} was changed concurrently {TRIES_MAX} times: try again"),
        ))
    }

    /// Sets the cycle of a schedule. The cycle stays in force, even after engines restart, until
    /// the cycle in the code changes; a paused schedule stays paused. [`Cycle::misfire`] sets the
    /// policy for missed occurrences, too; a cycle without a policy keeps the current one. `by`
    /// names the operator.
    ///
    /// # Errors
    /// The cycle is invalid, there is no such schedule, or the database is unreachable.
    pub async fn set(&self, name: &str, cycle: Cycle, by: &str) -> Result<(), Error> {
        check(name)?;
        cycle.check().map_err(Error::invalid)?;
        check_length(&cycle)?;
        let (called, by) = (name.to_owned(), storable(by));
        let outcome = self
            .pool
            .connections
            .apart(move |connection| async move {
                let (now, _) = schedule::known(&connection, &called).await?;
                let missed = cycle.explicit_missed_policy().map(MisfirePolicy::name);
                let text = cycle.to_string();
                schedule::set(
                    &connection,
                    &called,
                    (&text, missed),
                    now,
                    cycle.first_later(now),
                    &by,
                )
                .await
            })
            .await?
            .map_err(|fault| fault.into_error("set a schedule's cycle"))?;
        self.wake_readers(None);
        changed(&outcome, name).map(drop)
    }

    /// Fires a schedule once, now, independent of its cycle, even while the schedule is paused. A
    /// live worker that has registered the schedule starts the instance. Returns the number of the
    /// timer.
    ///
    /// # Errors
    /// There is no such schedule, or the database is unreachable.
    pub async fn run(&self, name: &str) -> Result<i64, Error> {
        check(name)?;
        let called = name.to_owned();
        let timer = self
            .pool
            .connections
            .apart(move |connection| async move { schedule::run(&connection, &called).await })
            .await?
            .map_err(|fault| fault.into_error("run a schedule"))?;
        self.wake_readers(Some(Timestamp::UNIX_EPOCH));
        timer.ok_or_else(|| no_schedule(name))
    }

    /// Wakes the timer loops of the engines in this process.
    fn wake_readers(&self, due: Option<Timestamp>) {
        let due = due.map_or(
            TimerDue::After(std::time::Duration::ZERO, std::time::Instant::now()),
            TimerDue::At,
        );
        self.pool.connections.wakes().iter().for_each(|wake| {
            wake.arm(NewTimer {
                due,
                is_timer: true,
            })
        });
    }
}

/// Returns the next occurrence of a paused schedule.
fn next_after_pause(known: &Known, now: Timestamp) -> Result<Option<First>, Error> {
    let cycle: Cycle = known.cycle.parse()?;
    Ok(cycle.after(known.anchor, now).map(|due| First {
        due,
        remaining: known.remaining,
    }))
}

fn check(name: &str) -> Result<(), Error> {
    codec::check_name("a schedule's name", name, 1, NAME_BYTES_MAX).map_err(Error::invalid)
}

fn changed(outcome: &str, name: &str) -> Result<bool, Error> {
    match outcome {
        "done" => Ok(true),
        "too_late" => Ok(false),
        _ => Err(no_schedule(name)),
    }
}

fn no_schedule(name: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!(
            "there is no schedule {name:?}: an engine creates it when it starts with `.schedule({name:?}, ..)`"
        ),
    )
}
