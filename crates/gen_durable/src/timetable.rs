//! What falls due and what repeats, for people and tools: look at timers, forecast, cancel; pause, resume, change and run
//! schedules.

mod look;

use jiff::Timestamp;
use serde::Deserialize;

pub use look::{Attention, TimerFilter, TimerMark, TimerPage, WhichTimers};

use crate::{
    calendar::{Cycle, First},
    codec,
    engine::schedules::check_length,
    error::{Error, Kind, storable},
    id::NAME_BYTES_MAX,
    store::{
        fault::Fault,
        inspect::Inspect,
        pool::Pool,
        schedule::{self, Known},
        timer,
    },
    wake::{Armed, ArmedFor},
};

/// A schedule that changes under our hands is looked at again this often.
const TRIES_MAX: u32 = 10;

/// Something that falls due.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimerInfo {
    /// `sleep`, `deadline`, `repeat` (beside a wait) or `schedule`.
    pub kind: String,
    /// Of a repeat or a schedule: what [`Timers::cancel`] takes.
    pub id: Option<i64>,
    /// When.
    pub due_at: Timestamp,
    /// The instance that sleeps or waits.
    pub instance: Option<i64>,
    /// Its machine; of a repeat, what it enqueues.
    pub machine: String,
    /// Which schedule.
    pub schedule: Option<String>,
    /// What comes after it.
    pub cycle: Option<String>,
    /// Where the instance goes then.
    pub step: Option<String>,
    /// Whether its time has passed.
    pub overdue: bool,
    /// Whether anybody is there to fire it: a schedule needs a live worker that registers it.
    pub served: bool,
    /// The database's time at the look.
    pub now: Timestamp,
}

/// How much falls due in one part of the time ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forecast {
    /// Which part, from 0.
    pub part: usize,
    /// `sleep`, `deadline`, `repeat` or `schedule`.
    pub kind: String,
    /// How many.
    pub count: i64,
}

/// Timers: what falls due.
#[derive(Debug, Clone)]
pub struct Timers {
    pool: Pool,
}

impl Timers {
    pub(crate) fn new(pool: Pool) -> Timers {
        Timers { pool }
    }

    /// The next that fall due, of all kinds, overdue ones first; at most so many (1,000 at the most).
    pub async fn next(&self, limit: usize) -> Result<Vec<TimerInfo>, Error> {
        self.list(limit, WhichTimers::All).await
    }

    /// Those whose time has passed.
    pub async fn overdue(&self, limit: usize) -> Result<Vec<TimerInfo>, Error> {
        self.list(limit, WhichTimers::Overdue).await
    }

    async fn list(&self, limit: usize, which: WhichTimers) -> Result<Vec<TimerInfo>, Error> {
        let filter = TimerFilter {
            which,
            limit,
            ..TimerFilter::default()
        };
        Ok(Inspect::new(self.pool.clone()).timers(filter).await?.timers)
    }

    /// How many fall due in each of so many parts (1 to 1,000) of the time ahead; parts in which nothing does are left out.
    /// Of each kind and part it is counted up to a bound: see [`Inspect::forecast`].
    pub async fn forecast(
        &self,
        ahead: std::time::Duration,
        parts: usize,
    ) -> Result<Vec<Forecast>, Error> {
        Inspect::new(self.pool.clone()).forecast(ahead, parts).await
    }

    /// Cancel what repeats beside a wait, or a run that was asked for by hand: this occurrence and all that would follow it.
    /// Answers whether it came in time. No such timer is an error; a schedule is paused instead.
    pub async fn cancel(&self, id: i64) -> Result<bool, Error> {
        let said = self
            .pool
            .apart(move |connection| async move { timer::cancel(&connection, id).await })
            .await?
            .map_err(|fault| fault.into_error("cancel a timer"))?;
        match said.as_str() {
            "cancelled" => Ok(true),
            "too_late" => Ok(false),
            "schedule" => Err(Error::invalid(format!(
                "timer {id} is the next occurrence of a schedule: pause that instead"
            ))),
            _ => Err(Error::new(
                Kind::NotFound,
                format!("there is no timer {id}"),
            )),
        }
    }
}

/// A schedule, as it is in force.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// Its name.
    pub name: String,
    /// The cycle in force.
    pub cycle: String,
    /// What becomes of missed occurrences.
    pub missed: String,
    /// The cycle that the code says.
    pub code_cycle: String,
    /// When an operator set the cycle, and who; the code's own is in force otherwise.
    pub set_at: Option<Timestamp>,
    #[allow(missing_docs)]
    pub set_by: Option<String>,
    /// Since when it is paused, and by whom.
    pub paused_at: Option<Timestamp>,
    #[allow(missing_docs)]
    pub paused_by: Option<String>,
    /// Since when it has no further occurrence.
    pub ended_at: Option<Timestamp>,
    /// Why its last occurrence could not be started.
    pub last_error: Option<String>,
    /// Whether a live worker registers it. If not, it does not fire.
    pub served: bool,
    /// Which live workers do, up to ten: their hosts and processes.
    pub registered_by: Vec<(String, i32)>,
    /// The zone by whose calendar the cycle goes. `None`: this build cannot read the cycle.
    pub zone: Option<String>,
    /// Its next occurrences, up to five.
    pub next: Vec<Timestamp>,
    /// Its last runs, up to five, the latest first.
    pub runs: Vec<ScheduleRun>,
    /// The database's time at the look.
    pub now: Timestamp,
}

/// An occurrence of a schedule that has been.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ScheduleRun {
    /// When it was due.
    pub due: Timestamp,
    /// `fired` or `missed`.
    pub state: String,
    /// When it was.
    pub ended: Timestamp,
    /// What it started…
    pub instance: Option<i64>,
    /// …and where that stands, if it has not been collected.
    pub status: Option<String>,
    /// How many missed occurrences stood behind it.
    pub missed: u32,
    /// Whether somebody asked for it.
    pub by_hand: bool,
}

/// Schedules: look, pause, resume, change, run.
#[derive(Debug, Clone)]
pub struct Schedules {
    pool: Pool,
}

impl Schedules {
    pub(crate) fn new(pool: Pool) -> Schedules {
        Schedules { pool }
    }

    /// All of them, by name; up to 1,000.
    pub async fn list(&self) -> Result<Vec<ScheduleInfo>, Error> {
        Inspect::new(self.pool.clone()).schedules(None, 1_000).await
    }

    /// One of them.
    pub async fn show(&self, name: &str) -> Result<Option<ScheduleInfo>, Error> {
        Inspect::new(self.pool.clone()).schedule(name).await
    }

    /// Nothing of it happens until it is resumed, in any process. Answers whether it ran.
    pub async fn pause(&self, name: &str, by: &str) -> Result<bool, Error> {
        check(name)?;
        let (called, by) = (name.to_owned(), storable(by));
        let said = self
            .pool
            .apart(
                move |connection| async move { schedule::pause(&connection, &called, &by).await },
            )
            .await?
            .map_err(|fault| fault.into_error("pause a schedule"))?;
        answered(&said, name)
    }

    /// It goes on with its next occurrence; what fell into the pause does not happen. Answers whether it was paused.
    pub async fn resume(&self, name: &str) -> Result<bool, Error> {
        check(name)?;
        for _ in 0..TRIES_MAX {
            let called = name.to_owned();
            let said = self
                .pool
                .apart(move |connection| async move {
                    let (now, known) = schedule::known(&connection, &called).await?;
                    let Some(known) = known else {
                        return Ok(Ok("no_target".to_owned()));
                    };
                    let next = match going_on(&known, now) {
                        Ok(next) => next,
                        Err(error) => return Ok(Err(error)),
                    };
                    schedule::resume(&connection, &called, &known, next)
                        .await
                        .map(Ok)
                })
                .await?
                .map_err(|fault: Fault| fault.into_error("resume a schedule"))??;
            if said != "changed" {
                self.poke(None);
                return answered(&said, name);
            }
        }
        Err(Error::new(
            Kind::Away,
            format!("the schedule {name:?} changes all the time: try again"),
        ))
    }

    /// Set the cycle. It holds until the code's own changes, also over restarts; a paused schedule stays paused.
    pub async fn set(
        &self,
        name: &str,
        cycle: Cycle,
        missed: Option<crate::Missed>,
        by: &str,
    ) -> Result<(), Error> {
        check(name)?;
        cycle.check().map_err(Error::invalid)?;
        check_length(&cycle)?;
        let (called, by) = (name.to_owned(), storable(by));
        let said = self
            .pool
            .apart(move |connection| async move {
                let (now, _) = schedule::known(&connection, &called).await?;
                let (text, missed) = (cycle.to_string(), missed.map(crate::Missed::name));
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
        self.poke(None);
        answered(&said, name).map(drop)
    }

    /// Once more, now, whatever its cycle says, also while it is paused. A live worker that registers it starts it.
    pub async fn run(&self, name: &str) -> Result<i64, Error> {
        check(name)?;
        let called = name.to_owned();
        let timer = self
            .pool
            .apart(move |connection| async move { schedule::run(&connection, &called).await })
            .await?
            .map_err(|fault| fault.into_error("run a schedule"))?;
        self.poke(Some(Timestamp::UNIX_EPOCH));
        timer.ok_or_else(|| nobody(name))
    }

    /// The clockworks of this process should look.
    fn poke(&self, due: Option<Timestamp>) {
        let due = due.map_or(
            ArmedFor::After(std::time::Duration::ZERO, std::time::Instant::now()),
            ArmedFor::At,
        );
        self.pool.wakes().iter().for_each(|wake| {
            wake.arm(Armed {
                due,
                is_timer: true,
            })
        });
    }
}

/// Where a paused schedule goes on.
fn going_on(known: &Known, now: Timestamp) -> Result<Option<First>, Error> {
    let cycle: Cycle = known.cycle.parse()?;
    Ok(cycle.after(known.anchor, now).map(|due| First {
        due,
        remaining: known.remaining,
    }))
}

fn check(name: &str) -> Result<(), Error> {
    codec::check_name("a schedule's name", name, 1, NAME_BYTES_MAX).map_err(Error::invalid)
}

fn answered(said: &str, name: &str) -> Result<bool, Error> {
    match said {
        "done" => Ok(true),
        "too_late" => Ok(false),
        _ => Err(nobody(name)),
    }
}

fn nobody(name: &str) -> Error {
    Error::new(
        Kind::NotFound,
        format!(
            "there is no schedule {name:?}: an engine makes it when it starts with `.schedule({name:?}, …)`"
        ),
    )
}
