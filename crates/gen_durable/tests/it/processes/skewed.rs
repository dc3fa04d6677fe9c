//! Workers whose clocks are wrong: an hour ahead and ten percent fast, an hour behind and ten percent slow. They are real
//! processes, and the whole process sees the wrong time. Over a simulated year every timer fires at the first moment at which the
//! database's clock has reached it and somebody is there: never before, never later, never twice.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use gen_durable::{
    Client, Context, Cycle, DAY, Engine, HOUR, Id, Job, Machine, Missed, Outcome, Period, Pool,
    Settings, Signal, StepError, Timestamp, done, sleep, wait_for,
};
use serde::{Deserialize, Serialize};

use super::{
    place::Place,
    worker::{Worker, as_a_worker},
};

/// Set in the environment of a worker with a wrong clock: where it works.
const PLAN: &str = "DURABLE_TEST_SKEWED";
/// Seconds off, percent fast.
const CLOCKS: [(i64, i64); 2] = [(3_600, 10), (-3_600, -10)];
const SLEEPS: usize = 11;
const EVERY_FIVE_DAYS: &str = "R/P5D";
const WEEKLY: &str = "R/P7D";

/// A wait with something beside it, which gives up after so many days.
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
                .meanwhile(
                    self.cycle.parse::<Cycle>()?.missed(Missed::All),
                    Tick { of: cx.id.raw() },
                )
                .or_after(Period::iso(&format!("P{}D", self.days))?, Waiting::Over)),
            Waiting::Over => Ok(done(())),
        }
    }
}

/// Months on the calendar of a zone, one after the other, and when it woke.
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
        self.woke.push(cx.now);
        if self.woke.len() > SLEEPS {
            return Ok(done(()));
        }
        Ok(sleep(Period::iso("P1M")?.zone("Europe/Madrid")?).then(Sleeping::Awake))
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

/// What runs in a worker with a wrong clock. Without a plan, as in every ordinary test run, there is nothing to do.
#[test]
fn worker_process() {
    let Ok(plan) = std::env::var(PLAN) else {
        return;
    };
    let (url, schema): (String, String) = serde_json::from_str(&plan).unwrap();
    as_a_worker();
    println!("by my clock it is {}\n", Timestamp::now().as_second());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let pool = Pool::connect_to(&url, &schema).await.unwrap();
        let milliseconds = Duration::from_millis;
        let settings = Settings {
            timer_refill: milliseconds(20),
            idle_poll: milliseconds(20),
            lease: milliseconds(2_000),
            heartbeat: milliseconds(400),
            reap_every: milliseconds(100),
            retention: None,
            timer_retention: None,
            ..Settings::default()
        };
        let cycle = |text: &str, missed| text.parse::<Cycle>().unwrap().missed(missed);
        let engine = Engine::builder(pool, ())
            .register::<Wait>()
            .register::<Sleeper>()
            .register::<Tick>()
            .schedule("all", cycle(EVERY_FIVE_DAYS, Missed::All), |_| Tick {
                of: 0,
            })
            .schedule("skip", cycle(WEEKLY, Missed::Skip), |_| Tick { of: 0 })
            .settings(settings)
            .build()
            .unwrap();
        engine.run(std::future::pending()).await.unwrap();
    });
}

/// The wrong clock, as a library that is loaded before all others. What links Rust links this.
fn wrong_clock(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("skewed_clock.c"), dir.join("skewed_clock.so"));
    std::fs::write(&source, include_str!("skewed_clock.c")).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let made = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(made.unwrap().success(), "the wrong clock does not compile");
    library
}

/// The year, and who is there.
struct Year {
    /// Gone before the place is.
    workers: Vec<Worker>,
    place: Place,
    library: PathBuf,
    /// Every moment at which the clock stood still until all that was due had happened.
    stops: BTreeSet<Timestamp>,
}

impl Year {
    /// The clock stands still, and is moved by hand.
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

    /// One worker of each kind of wrong clock; it is seen to be wrong.
    async fn start_workers(&mut self) {
        let plan = serde_json::to_string(&(&self.place.url, &self.place.schema)).unwrap();
        for (skew, drift) in CLOCKS {
            let worker = Worker::spawn(
                "processes::skewed::worker_process",
                &[
                    (PLAN, plan.clone()),
                    ("LD_PRELOAD", self.library.display().to_string()),
                    ("SKEW_SECONDS", skew.to_string()),
                    ("DRIFT_PERCENT", drift.to_string()),
                ],
            );
            let worker = worker.runs().await;
            let said = worker.told("by my clock it is ").unwrap();
            let off = said.parse::<i64>().unwrap() - Timestamp::now().as_second();
            assert!(
                (off - skew).abs() < 120,
                "its clock is off by {off} s and not by {skew}"
            );
            self.workers.push(worker);
        }
    }

    /// All that is due has happened.
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

    /// Go on to then, and stop at every due time on the way.
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

    /// The first moment from then on at which somebody was there.
    fn first_stop(&self, due: Timestamp) -> Option<Timestamp> {
        self.stops.range(due..).next().copied()
    }
}

/// A wait, as the test knows it.
struct Known {
    id: Id<Wait>,
    begun: Timestamp,
    period: Duration,
    until: Timestamp,
    over: Option<Timestamp>,
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_simulated_year_workers_whose_clocks_are_an_hour_off_fire_nothing_early_late_or_twice()
 {
    let mut year = Year::begin().await;
    year.start_workers().await;
    let client: Client = year.place.client.clone();
    let first = year.now().await;
    let end = first + 365 * DAY;
    let sleeper = client.enqueue(Sleeper::default()).await.unwrap().id;
    year.rest().await;
    let mut waits: Vec<Known> = Vec::new();
    for turn in 0_u32.. {
        let now = year.now().await;
        if now >= end {
            break;
        }
        match turn % 4 {
            // Waits of different lengths, with something beside them.
            0 => {
                let period = (9 + turn % 23) * DAY + turn % 7 * HOUR;
                let days = 40 + turn;
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
            // One that is open is over, in the middle of a day on which nothing else happens or in the very moment of another.
            1 => {
                if let Some(known) = waits
                    .iter_mut()
                    .rev()
                    .find(|known| known.over.is_none() && known.until > now)
                {
                    match turn % 8 {
                        1 => drop(client.signal(known.id, Over).await.unwrap()),
                        _ => drop(client.cancel(known.id, "enough").await.unwrap()),
                    }
                    known.over = Some(now);
                    year.rest().await;
                }
            }
            // All workers die, and nobody is there for days.
            2 => {
                year.workers.drain(..).for_each(Worker::kill);
                year.set(now + (3 + turn % 11) * DAY + HOUR / 2).await;
                year.start_workers().await;
                year.rest().await;
            }
            _ => {}
        }
        let now = year.now().await;
        year.go_to(now + (4 + turn % 9) * DAY).await;
    }
    let end = year.now().await;

    // Beside waits: at begun + k periods, until it was over.
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
        // At the date itself, after an outage, the deadline may come first: what was due before it and not yet fired is over.
        let count = fired.len();
        let missing = expected.get(count..).unwrap_or_default();
        let ended_by_the_date = known.over.is_none()
            && missing
                .iter()
                .all(|due| year.first_stop(*due) == year.first_stop(known.until));
        assert!(
            missing.is_empty() || ended_by_the_date,
            "the wait {} lost {missing:?}",
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
                "select finished_at from %.instances where id = {}",
                known.id.raw()
            );
            assert_eq!(
                Some(year.time(&text).await),
                year.first_stop(known.until),
                "its date, {}",
                known.until
            );
        }
    }
    // Schedules: the anchor is where the year began.
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
    assert!(there.len() < each(7).len(), "an outage fell on one of them");
    assert_eq!(
        fired(&year, "where schedule = 'skip' and state = 'fired'").await,
        there
    );
    // Whatever fired, fired when the database's clock had just reached it.
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
    // A month after it last woke, on the calendar of its zone.
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

/// Due times of timers, in order.
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
