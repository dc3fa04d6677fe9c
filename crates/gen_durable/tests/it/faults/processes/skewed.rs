//! A test of workers with wrong clocks: one is an hour ahead and ten percent fast, the other an
//! hour behind and ten percent slow. The workers are real processes, and all code of a process
//! reads the wrong time. Over a simulated year every timer fires at the first moment at which the
//! clock of the database has reached its due time and a worker is running: never earlier, never
//! later, never twice.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use gen_durable::{
    Client, Context, DAY, Engine, HOUR, Id, Job, Machine, Outcome, Pool, Settings, Signal,
    StepError, done,
    schedule::{Cycle, MisfirePolicy, Period, Timestamp},
    sleep, wait_for,
};
use serde::{Deserialize, Serialize};

use super::{
    place::Place,
    worker::{Worker, init_worker_process},
};

/// The environment variable with the URL and the schema for a worker with a wrong clock.
const PLAN: &str = "DURABLE_TEST_SKEWED";
/// The wrong clocks: the offset in seconds, and by how many percent the clock is fast.
const CLOCKS: [(i64, i64); 2] = [(3_600, 10), (-3_600, -10)];
const SLEEPS: usize = 11;
const EVERY_FIVE_DAYS: &str = "R/P5D";
const WEEKLY: &str = "R/P7D";

/// A machine that waits with a repeating timer and a deadline after some days.
#[derive(Serialize, Deserialize)]
struct Wait {
    cycle: String,
    days: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Waiting {
    #[default]
    Begin,
    Over,
}

#[derive(Serialize, Deserialize)]
struct Over;
impl Signal for Over {
    const NAME: &'static str = "over";
    type To = Wait;
}

impl Machine for Wait {
    const NAME: &'static str = "wait";
    type App = ();
    type Step = Waiting;
    type Output = ();
    async fn step(&mut self, at: Waiting, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Waiting::Begin => Ok(wait_for::<Over>()
                .then(Waiting::Over)
                .repeat(
                    self.cycle.parse::<Cycle>()?.misfire(MisfirePolicy::All),
                    Tick { of: cx.id().raw() },
                )
                .or_after(Period::iso(&format!("P{}D", self.days))?, Waiting::Over)),
            Waiting::Over => Ok(done(())),
        }
    }
}

/// A machine that sleeps one calendar month after the other in a time zone, and records when it
/// woke.
#[derive(Serialize, Deserialize, Default)]
struct Sleeper {
    woke: Vec<Timestamp>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Sleeping {
    #[default]
    Awake,
}

impl Machine for Sleeper {
    const NAME: &'static str = "sleeper";
    type App = ();
    type Step = Sleeping;
    type Output = ();
    async fn step(&mut self, _: Sleeping, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        self.woke.push(cx.now());
        if self.woke.len() > SLEEPS {
            return Ok(done(()));
        }
        Ok(sleep(Period::iso("P1M")?.time_zone("Europe/Madrid")?).then(Sleeping::Awake))
    }
}

#[derive(Serialize, Deserialize)]
struct Tick {
    of: i64,
}
impl Job for Tick {
    const NAME: &'static str = "tick";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// The main function of a worker with a wrong clock. Without the environment variable `PLAN`, as in
/// every ordinary test run, this test does nothing.
#[test]
fn entry_point_of_a_worker_process_with_a_wrong_clock() {
    let Ok(plan) = std::env::var(PLAN) else {
        return;
    };
    let (url, schema): (String, String) = serde_json::from_str(&plan).unwrap();
    init_worker_process();
    println!("local clock: {}\n", Timestamp::now().as_second());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let pool = Pool::connect_to(&url, &schema).await.unwrap();
        let milliseconds = Duration::from_millis;
        let settings = Settings {
            timer_refill_every: milliseconds(20),
            idle_poll: milliseconds(20),
            lease: milliseconds(2_000),
            heartbeat: milliseconds(400),
            reap_every: milliseconds(100),
            retention: None,
            timer_retention: None,
            ..Settings::default()
        };
        let cycle = |text: &str, missed| text.parse::<Cycle>().unwrap().misfire(missed);
        let engine = Engine::builder(pool, ())
            .register::<Wait>()
            .register::<Sleeper>()
            .register::<Tick>()
            .schedule("all", cycle(EVERY_FIVE_DAYS, MisfirePolicy::All), |_| {
                Tick { of: 0 }
            })
            .schedule("skip", cycle(WEEKLY, MisfirePolicy::Skip), |_| Tick {
                of: 0,
            })
            .settings(settings)
            .build()
            .unwrap();
        engine.run(std::future::pending()).await.unwrap();
    });
}

/// Compiles the library that shows a process the wrong time, for `LD_PRELOAD`, with the C compiler
/// that Rust needs for linking.
fn wrong_clock(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("skewed_clock.c"), dir.join("skewed_clock.so"));
    std::fs::write(&source, include_str!("skewed_clock.c")).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let made = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(made.unwrap().success(), "could not compile skewed_clock.c");
    library
}

/// The simulated year and its workers.
struct Year {
    /// The running worker processes. The field comes before the schema, so Rust drops the workers
    /// before the schema.
    workers: Vec<Worker>,
    place: Place,
    library: PathBuf,
    /// The times at which the test stopped the clock of the database until the workers had
    /// processed everything that was due.
    stops: BTreeSet<Timestamp>,
}

impl Year {
    /// Creates a schema in which the clock of the database moves only when the test sets it.
    async fn begin() -> Year {
        let place = Place::new().await;
        place
            .sql(
                "create table %.hand (now timestamptz not null);
                 insert into %.hand values (date_trunc('seconds', statement_timestamp()));
                 create or replace function %.clock() returns timestamptz language sql stable parallel safe
                     as 'select now from %.hand'",
            )
            .await;
        let library = wrong_clock(&place.dir);
        Year {
            place,
            library,
            workers: Vec::new(),
            stops: BTreeSet::new(),
        }
    }

    async fn time(&self, text: &str) -> Timestamp {
        let text = format!(
            r#"select to_char(({text}) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#
        );
        self.place.sql(&text).await[0][0].parse().unwrap()
    }

    async fn now(&self) -> Timestamp {
        self.time("select now from %.hand").await
    }

    async fn set(&self, now: Timestamp) {
        self.place
            .sql(&format!("update %.hand set now = '{now}'"))
            .await;
    }

    /// Starts one worker for each wrong clock, and asserts that its clock is wrong.
    async fn start_workers(&mut self) {
        let plan = serde_json::to_string(&(&self.place.url, &self.place.schema)).unwrap();
        for (skew, drift) in CLOCKS {
            let worker = Worker::spawn(
                "faults::processes::skewed::entry_point_of_a_worker_process_with_a_wrong_clock",
                &[
                    (PLAN, plan.clone()),
                    ("LD_PRELOAD", self.library.display().to_string()),
                    ("SKEW_SECONDS", skew.to_string()),
                    ("DRIFT_PERCENT", drift.to_string()),
                ],
            );
            let worker = worker.runs().await;
            let said = worker.logged_after("local clock: ").unwrap();
            let off = said.parse::<i64>().unwrap() - Timestamp::now().as_second();
            assert!(
                (off - skew).abs() < 120,
                "the clock of the worker is off by {off} s, expected {skew} s"
            );
            self.workers.push(worker);
        }
    }

    /// Waits until the workers have processed all due timers, deadlines and instances, and records
    /// the time as a stop.
    async fn rest(&mut self) {
        self.place
            .until_count(
                "select (select count(*) from %.timers where state = 'pending' and due_at <= %.clock())
                    + (select count(*) from %.instances where deadline_at <= %.clock() or status = 'executing'
                           or status = 'runnable' and eligible_at <= %.clock())",
                0,
            )
            .await;
        self.stops.insert(self.now().await);
    }

    /// Advances the clock of the database to `then`, and stops the clock at every due time before
    /// `then`.
    async fn go_to(&mut self, then: Timestamp) {
        loop {
            let next = format!(
                "select least('{then}', (select min(due_at) from %.timers where state = 'pending'),
                    (select min(deadline_at) from %.instances),
                    (select min(eligible_at) from %.instances where status = 'runnable'))"
            );
            let next = self.time(&next).await;
            self.set(next).await;
            self.rest().await;
            if next >= then {
                return;
            }
        }
    }

    /// Returns the first stop of the clock at or after a due time: the first moment at which a
    /// worker could act.
    fn first_stop(&self, due: Timestamp) -> Option<Timestamp> {
        self.stops.range(due..).next().copied()
    }
}

/// An instance of [`Wait`], with the times that the test expects.
struct Known {
    id: Id<Wait>,
    begun: Timestamp,
    period: Duration,
    until: Timestamp,
    over: Option<Timestamp>,
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_simulated_year_workers_with_clocks_an_hour_off_fire_no_timer_early_late_or_twice() {
    let mut year = Year::begin().await;
    year.start_workers().await;
    let client: Client = year.place.client.clone();
    let first = year.now().await;
    let end = first + 365 * DAY;
    let sleeper = client.enqueue(Sleeper::default()).await.unwrap().id;
    year.rest().await;
    let mut waits: Vec<Known> = Vec::new();
    for round in 0_u32.. {
        let now = year.now().await;
        if now >= end {
            break;
        }
        match round % 4 {
            // The test begins waits of different lengths, each with a repeating timer.
            0 => {
                let period = (9 + round % 23) * DAY + round % 7 * HOUR;
                let days = 40 + round;
                let cycle = format!("R/PT{}S", period.as_secs());
                let id = client.enqueue(Wait { cycle, days }).await.unwrap().id;
                year.rest().await;
                waits.push(Known {
                    id,
                    begun: now,
                    period,
                    until: now + days * DAY,
                    over: None,
                });
            }
            // The test ends the newest open wait by a signal or a cancel, sometimes at the same
            // time at which a timer is due.
            1 => {
                if let Some(known) = waits
                    .iter_mut()
                    .rev()
                    .find(|known| known.over.is_none() && known.until > now)
                {
                    match round % 8 {
                        1 => drop(client.signal(known.id, Over).await.unwrap()),
                        _ => drop(client.cancel(known.id, "enough").await.unwrap()),
                    }
                    known.over = Some(now);
                    year.rest().await;
                }
            }
            // The test kills all workers, and runs no worker for some days.
            2 => {
                year.workers.drain(..).for_each(Worker::kill);
                year.set(now + (3 + round % 11) * DAY + HOUR / 2).await;
                year.start_workers().await;
                year.rest().await;
            }
            _ => {}
        }
        let now = year.now().await;
        year.go_to(now + (4 + round % 9) * DAY).await;
    }
    let end = year.now().await;

    // The repeating timer of each wait fired at the begin of the wait plus k periods, until the
    // wait ended.
    for known in &waits {
        let until = known.over.unwrap_or(known.until).min(end);
        let mut expected = Vec::new();
        let mut due = known.begun + known.period;
        while due <= until {
            expected.push(due);
            due += known.period;
        }
        let text = format!("where instance_id = {} and state = 'fired'", known.id.raw());
        let fired = fired(&year, &text).await;
        // After an outage of the workers the deadline of a wait may fire first. The end of the wait
        // cancels occurrences of the repeating timer that were due before the deadline and had not
        // fired.
        let count = fired.len();
        let missing = expected.get(count..).unwrap_or_default();
        let ended_by_the_deadline = known.over.is_none()
            && missing
                .iter()
                .all(|due| year.first_stop(*due) == year.first_stop(known.until));
        assert!(
            missing.is_empty() || ended_by_the_deadline,
            "occurrences of the wait {} did not fire: {missing:?}",
            known.id
        );
        assert_eq!(
            fired,
            expected[..count.min(expected.len())],
            "the wait {}",
            known.id
        );
        if known.over.is_none() && known.until <= end {
            let text = format!(
                "select settled_at from %.instances where id = {}",
                known.id.raw()
            );
            assert_eq!(
                Some(year.time(&text).await),
                year.first_stop(known.until),
                "the deadline {}",
                known.until
            );
        }
    }
    // The anchor of the schedules is the beginning of the simulated year, so each due time is that
    // beginning plus a multiple of the period.
    let each = |days: u32| {
        (1..)
            .map(move |n| first + n * days * DAY)
            .take_while(|due| *due <= end)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        fired(&year, "where schedule = 'all' and state = 'fired'").await,
        each(5)
    );
    let there: Vec<Timestamp> = each(7)
        .into_iter()
        .filter(|due| year.stops.contains(due))
        .collect();
    assert!(
        there.len() < each(7).len(),
        "no outage fell on an occurrence of the schedule"
    );
    assert_eq!(
        fired(&year, "where schedule = 'skip' and state = 'fired'").await,
        there
    );
    // Every timer fired at the first stop of the clock at or after its due time.
    let times = year
        .place
        .sql("select due_at at time zone 'UTC', ended_at at time zone 'UTC' from %.timers where state = 'fired'")
        .await;
    assert!(times.len() > 100, "{} timers fired", times.len());
    for row in &times {
        let at = |column: usize| {
            format!("{}Z", row[column].replace(' ', "T"))
                .parse::<Timestamp>()
                .unwrap()
        };
        assert_eq!(Some(at(1)), year.first_stop(at(0)), "due at {}", at(0));
    }
    let twice = "select count(*) from (select from %.timers where state = 'fired' group by started_id having count(*) > 1) x";
    assert_eq!(year.place.count(twice).await, 0);
    // The sleeper woke one month after it last woke, by the calendar of its time zone.
    let text = format!(
        "select state->>'woke' from %.instances where id = {}",
        sleeper.raw()
    );
    let woke: Vec<Timestamp> = serde_json::from_str(&year.place.sql(&text).await[0][0]).unwrap();
    assert!(woke.len() >= 10, "{woke:?}");
    for pair in woke.windows(2) {
        let month = format!(
            "(timestamptz '{}' at time zone 'Europe/Madrid' + interval '1 month') at time zone 'Europe/Madrid'",
            pair[0]
        );
        let due = year.time(&month).await;
        assert_eq!(
            Some(pair[1]),
            year.first_stop(due),
            "a month after {}",
            pair[0]
        );
    }
}

/// Returns the due times of the timers that `which` selects, in order.
async fn fired(year: &Year, which: &str) -> Vec<Timestamp> {
    let text = format!(
        r#"select to_char(due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') from %.timers {which} order by due_at"#
    );
    year.place
        .sql(&text)
        .await
        .into_iter()
        .map(|row| row[0].parse().unwrap())
        .collect()
}
