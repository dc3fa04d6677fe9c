//! Tests timers and schedules as a whole: a simulated year with outages, concurrent workers,
//! cancels and changed schedules; workers with a wrong clock; and the cost of a scan for due
//! timers, which must not depend on the number of rows in `timers`.

use std::{collections::BTreeMap, time::Duration};

use gen_durable::{
    Client, Context, Cycle, DAY, Engine, HOUR, Id, Job, Lab, Machine, MisfirePolicy, Outcome,
    Settings, Signal, StepError, Timestamp, done, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, apart, eventually, live, sql, sql_at};

#[derive(Serialize, Deserialize)]
struct Wait {
    cycle: String,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Step {
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
    type Step = Step;
    type Output = ();
    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Begin => {
                let cycle = self.cycle.parse::<Cycle>()?.misfire(MisfirePolicy::All);
                Ok(wait_for::<Over>()
                    .then(Step::Over)
                    .repeat(cycle, Tick { of: cx.id.raw() })
                    .forever())
            }
            Step::Over => Ok(done(())),
        }
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

/// A generator of pseudo-random numbers. The same seed gives the same numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The behaviour that the test expects of a wait with a repeating timer.
struct ExpectedWait {
    id: Id<Wait>,
    begun: Timestamp,
    period: Duration,
    times: Option<u64>,
    /// The time at which a signal or a cancel ended the wait.
    ended_at: Option<Timestamp>,
}

impl ExpectedWait {
    /// Returns the number of occurrences of the timer that were due by `then`.
    fn due_by(&self, then: Timestamp) -> u64 {
        let passed = u64::try_from(then.duration_since(self.begun).as_secs()).unwrap_or_default();
        let count = passed / self.period.as_secs();
        self.times.map_or(count, |times| count.min(times))
    }
}

const SCHEDULES: [&str; 3] = ["one", "two", "three"];
const CYCLES: [&str; 5] = [
    "R/P3D",
    "R/P1M",
    "0 6 * * MON [Europe/Madrid]",
    "R/P1W[America/New_York]",
    "R/PT100H",
];

#[tokio::test]
async fn in_a_simulated_year_no_timer_fires_early_or_twice_and_none_is_missed() {
    let seed = std::env::var("DURABLE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_115_u64);
    println!("DURABLE_SEED={seed}");
    let mut dice = Dice(seed.max(1));
    let mut lab = Lab::new(()).await.register::<Wait>().register::<Tick>();
    for (name, cycle) in SCHEDULES.iter().zip(CYCLES) {
        let cycle: Cycle = cycle.parse().unwrap();
        lab = lab.schedule(name, cycle.misfire(MisfirePolicy::All), |_| Tick { of: 0 });
    }
    lab.drain().await;
    let year_end = lab.now().await + 365 * DAY;
    let mut waits: Vec<ExpectedWait> = Vec::new();
    loop {
        let now = lab.now().await;
        if now >= year_end {
            break;
        }
        match dice.below(8) {
            0 | 1 if waits.len() < 40 => {
                let period = HOUR * u32::try_from(24 + dice.below(60 * 24)).unwrap();
                let times = (dice.below(2) == 0).then(|| 1 + dice.below(6));
                let count = times.map(|times| times.to_string()).unwrap_or_default();
                let cycle = format!("R{count}/PT{}S", period.as_secs());
                let id = lab.enqueue(Wait { cycle }).await.unwrap().id;
                lab.drain().await;
                waits.push(ExpectedWait {
                    id,
                    begun: now,
                    period,
                    times,
                    ended_at: None,
                });
            }
            2 => {
                // A signal or a cancel ends a wait while two calls of `Lab::drain` scan for due
                // timers. Either may commit first: the rows of the wait and of its timer must be
                // consistent in both cases.
                let open: Vec<usize> = (0..waits.len())
                    .filter(|n| waits[*n].ended_at.is_none())
                    .collect();
                if let Some(n) =
                    open.get(usize::try_from(dice.below(64)).unwrap() % open.len().max(1))
                {
                    let id = waits[*n].id;
                    // Fires every timer that is already due, so that the test knows how many have
                    // fired.
                    lab.drain().await;
                    let end = async {
                        match n % 2 {
                            0 => drop(lab.signal(id, Over).await.unwrap()),
                            _ => drop(lab.cancel(id, "enough").await.unwrap()),
                        }
                    };
                    tokio::join!(lab.drain(), end, lab.drain());
                    waits[*n].ended_at = Some(now);
                }
            }
            3 => {
                // Changes a schedule while two calls of `Lab::drain` scan for due timers.
                let name = SCHEDULES[usize::try_from(dice.below(3)).unwrap()];
                let cycle: Cycle = CYCLES[usize::try_from(dice.below(5)).unwrap()]
                    .parse()
                    .unwrap();
                let (act, schedules) = (dice.below(4), lab.schedules());
                let change = async {
                    match act {
                        0 => drop(schedules.pause(name, "test").await.unwrap()),
                        1 => drop(schedules.resume(name).await.unwrap()),
                        2 => schedules
                            .set(name, cycle, Some(MisfirePolicy::All), "test")
                            .await
                            .unwrap(),
                        _ => drop(schedules.run(name).await.unwrap()),
                    }
                };
                tokio::join!(lab.drain(), change, lab.drain());
            }
            4 => {
                // Simulates an outage: moves the clock by up to ten days, in which no worker scans
                // for due timers.
                let later = now + HOUR * u32::try_from(1 + dice.below(240)).unwrap();
                let client = sql().await;
                let text = format!("update {}.lab_clock set now = $1", lab.pool().schema());
                client.execute(&text, &[&later]).await.unwrap();
                if dice.below(2) == 0 {
                    tokio::join!(lab.drain(), lab.drain(), lab.drain());
                    lab.drain().await;
                }
            }
            _ => {
                lab.skip(HOUR * u32::try_from(1 + dice.below(96)).unwrap())
                    .await;
            }
        }
    }
    lab.drain().await;
    let end = lab.now().await;
    let client = sql().await;
    let schema = lab.pool().schema().to_owned();
    for known in &waits {
        let text = format!(
            "select due_at from {schema}.timers where instance_id = $1 and state = 'fired' order by due_at"
        );
        let fired: Vec<Timestamp> = client
            .query(&text, &[&known.id.raw()])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        let count = known.due_by(known.ended_at.unwrap_or(end));
        let expected: Vec<Timestamp> = (1..=count)
            .map(|n| known.begun + known.period * u32::try_from(n).unwrap())
            .collect();
        assert_eq!(
            fired, expected,
            "wait {}: each timer fires at its time, none is lost, none fires twice",
            known.id
        );
        let ticks = format!(
            "select count(*) from {schema}.instances where machine = 'tick' and (state->>'of')::bigint = $1"
        );
        let ticks: i64 = client
            .query_one(&ticks, &[&known.id.raw()])
            .await
            .unwrap()
            .get(0);
        assert_eq!(u64::try_from(ticks).unwrap(), count);
    }
    for (what, text) in [
        ("timers that fired early", "select count(*) from S.timers where state = 'fired' and ended_at < due_at"),
        (
            "pending timers of a wait that has ended",
            "select count(*) from S.timers t left join S.instances i on i.id = t.instance_id
             where t.state = 'pending' and t.instance_id is not null and i.status is distinct from 'awaiting_signal'",
        ),
        (
            "schedules without exactly one pending timer",
            "select count(*) from S.schedules s where (s.paused_at is null)::int <> (select count(*) from S.timers t
                where t.schedule = s.name and t.state = 'pending' and not t.manual)",
        ),
        (
            "occurrences that did not start exactly one instance",
            "select count(*) from (select count(t.started_id) - count(distinct t.started_id) as twice from S.timers t
                where t.state = 'fired' group by t.schedule having count(t.started_id) <> count(distinct t.started_id)) x",
        ),
    ] {
        let count: i64 = client.query_one(&text.replace("S.", &format!("{schema}.")), &[]).await.unwrap().get(0);
        assert_eq!(count, 0, "{what}");
    }
    let fired: i64 = client
        .query_one(
            &format!("select count(*) from {schema}.timers where state = 'fired'"),
            &[],
        )
        .await
        .unwrap()
        .get(0);
    println!("{} waits and {fired} timers fired", waits.len());
    assert!(waits.len() >= 20 && fired >= 100);
}

/// Replaces the clock of a schema by the clock of the server, shifted by `by`.
async fn skew(schema: &str, by: &str) {
    let client = sql().await;
    let text = format!(
        "create or replace function {schema}.clock() returns timestamptz language sql stable parallel safe
         as $$select statement_timestamp() + interval '{by}'$$"
    );
    client.batch_execute(&text).await.unwrap();
}

#[tokio::test]
async fn workers_with_a_clock_one_hour_off_fire_timers_by_the_clock_of_the_schema() {
    for by in ["1 hour", "-1 hour"] {
        let pool = live().await;
        skew(pool.schema(), by).await;
        let engine = || {
            let settings = Settings {
                timer_refill: Duration::from_millis(100),
                ..Settings::default()
            };
            let builder = Engine::builder(pool.clone(), ())
                .register::<Wait>()
                .register::<Tick>()
                .settings(settings);
            Running::start(builder.build().unwrap())
        };
        let running = [engine(), engine()];
        let client = Client::new(pool.clone());
        let wait = client
            .enqueue(Wait {
                cycle: "R5/PT0.3S".into(),
            })
            .await
            .unwrap()
            .id;
        let watch = sql().await;
        let schema = pool.schema().to_owned();
        let fired = async || -> i64 {
            let text = format!("select count(*) from {schema}.timers where state = 'fired'");
            watch.query_one(&text, &[]).await.unwrap().get(0)
        };
        eventually("all five fire", async || fired().await == 5).await;
        client.signal(wait, Over).await.unwrap();
        for engine in running {
            engine.stop().await;
        }
        let wrong = format!(
            "select count(*) from {schema}.timers t join {schema}.instances i on i.id = t.started_id
             where t.ended_at < t.due_at or i.inserted_at < t.due_at"
        );
        assert_eq!(
            watch.query_one(&wrong, &[]).await.unwrap().get::<_, i64>(0),
            0,
            "{by}: no timer fires early"
        );
        assert_eq!(fired().await, 5, "{by}: each timer fires once");
    }
}

/// Returns how often the pool sent each statement between two readings of its counters.
fn between(
    before: &BTreeMap<&'static str, u64>,
    after: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    let grown =
        |(name, count): (&&'static str, &u64)| (*name, count - before.get(name).unwrap_or(&0));
    after
        .iter()
        .map(grown)
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[tokio::test]
async fn one_statement_fires_a_hundred_due_timers() {
    let lab = Lab::new(()).await.register::<Wait>().register::<Tick>();
    lab.enqueue_all((0..100).map(|_| Wait {
        cycle: "R1/PT1H".into(),
    }))
    .await
    .unwrap();
    lab.drain().await;
    let before = lab.statements();
    lab.skip(HOUR).await;
    let sent = between(&before, &lab.statements());
    // One scan finds all hundred timers. A few scans before and after it find none.
    assert_eq!(sent["fire.sql"], 1, "{sent:?}");
    assert!(sent["due_timers.sql"] <= 4, "{sent:?}");
}

#[tokio::test]
async fn one_statement_commits_a_wait_together_with_its_repeating_timer() {
    let lab = Lab::new(()).await.register::<Wait>().register::<Tick>();
    lab.enqueue(Wait {
        cycle: "R/PT1H".into(),
    })
    .await
    .unwrap();
    let before = lab.statements();
    lab.drain().await;
    let sent = between(&before, &lab.statements());
    assert_eq!(
        (
            sent.get("write_step_results_with_effects.sql"),
            sent.get("write_step_results.sql")
        ),
        (Some(&1), None),
        "{sent:?}"
    );
}

/// Returns the number of timers that a test inserts: the value of `DURABLE_TIMER_ROWS`, for example
/// 1000000, or 10,000 by default.
fn rows() -> i64 {
    std::env::var("DURABLE_TIMER_ROWS")
        .ok()
        .and_then(|rows| rows.parse().ok())
        .unwrap_or(10_000)
}

/// Returns the number of buffer pages that a statement touches when it is executed for the second
/// time.
async fn pages(client: &tokio_postgres::Client, text: &str) -> u64 {
    let mut pages = 0;
    for _ in 0..2 {
        let rows = client
            .simple_query(&format!(
                "begin; explain (analyze, buffers) {text}; rollback"
            ))
            .await
            .unwrap();
        let lines = rows.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        let buffers = lines
            .into_iter()
            .find(|line| line.contains("Buffers: shared"))
            .unwrap_or_default();
        let number = |name: &str| -> u64 {
            buffers
                .split(name)
                .nth(1)
                .and_then(|rest| rest.split(' ').next())
                .and_then(|n| n.parse().ok())
                .unwrap_or(0)
        };
        pages = number("hit=") + number("read=");
    }
    pages
}

/// Returns a statement that inserts `count` timers that belong to no existing wait. They are due
/// one per millisecond after `from`.
fn load(schema: &str, count: i64, from: &str, state: &str) -> String {
    format!(
        "insert into {schema}.timers (instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance, state, ended_at)
         select 1, 1, statement_timestamp() + interval '{from}' + g * interval '1 ms', statement_timestamp(), 'R/PT1H', 'all',
             '{{}}', '{state}', case when '{state}' <> 'pending' then statement_timestamp() end
         from generate_series(1, {count}) g"
    )
}

#[tokio::test]
async fn a_timer_scan_costs_the_same_for_any_number_of_pending_fired_or_overdue_timers() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let client = sql_at(&url).await;
    client
        .batch_execute(&load(&schema, 100, "1 second", "pending"))
        .await
        .unwrap();
    client
        .batch_execute(&load(&schema, 100, "-1 second", "pending"))
        .await
        .unwrap();
    let scans = [
        format!("select * from {schema}._upcoming(5, 5, 1000)"),
        format!("select * from {schema}._due_timers(200, 5, 0, '-infinity', '{{}}', '{{}}')"),
        format!("select * from {schema}._expire(200, 5, 0, '-infinity')"),
    ];
    let mut before = Vec::new();
    for scan in &scans {
        before.push(pages(&client, scan).await);
    }
    // An open transaction with an old snapshot prevents the vacuum of index entries that belong to
    // ended timers.
    let old = sql_at(&url).await;
    old.batch_execute("begin isolation level repeatable read; select 1 from pg_class limit 1")
        .await
        .unwrap();
    client
        .batch_execute(&load(&schema, rows(), "1 day", "pending"))
        .await
        .unwrap();
    client
        .batch_execute(&load(&schema, rows(), "-30 days", "fired"))
        .await
        .unwrap();
    client
        .batch_execute(&load(&schema, rows(), "-2 days", "pending"))
        .await
        .unwrap();
    let fire = format!(
        "update {schema}.timers set state = 'fired', ended_at = statement_timestamp()
         where state = 'pending' and due_at < statement_timestamp() - interval '1 hour'"
    );
    client.batch_execute(&fire).await.unwrap();
    client
        .batch_execute(&format!(
            "insert into {schema}.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
             select 'm', 's', '{{}}', 'awaiting_signal', '{{a}}', statement_timestamp() - interval '2 days' + g * interval '1 ms', 'l'
             from generate_series(1, {rows}) g;
             update {schema}.instances set deadline_at = null, status = 'runnable', awaits = null;
             analyze {schema}.timers; analyze {schema}.instances",
            rows = rows()
        ))
        .await
        .unwrap();
    for (scan, before) in scans.iter().zip(before) {
        let after = pages(&client, scan).await;
        // The limit allows for index trees that are one or two levels deeper with more rows.
        assert!(
            after <= before * 2 + 20,
            "{scan}: {before} pages before, {after} after"
        );
    }
    old.batch_execute("rollback").await.unwrap();
}

#[tokio::test]
async fn an_engine_limits_the_rate_of_overdue_deadlines_while_newly_due_timers_fire() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let client = sql().await;
    let count = rows() / 10;
    client
        .batch_execute(&format!(
            "insert into {schema}.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
             select 'wait', 'begin', '{{\"cycle\": \"R/PT1H\"}}', 'awaiting_signal', '{{over}}',
                 statement_timestamp() - interval '1 day' + g * interval '1 ms', 'over'
             from generate_series(1, {count}) g"
        ))
        .await
        .unwrap();
    let settings = Settings {
        overdue_per_second: 500,
        ..Settings::default()
    };
    let builder = Engine::builder(pool.clone(), ())
        .register::<Wait>()
        .register::<Tick>()
        .settings(settings);
    let running = Running::start(builder.build().unwrap());
    let caller = Client::new(pool.clone());
    caller
        .enqueue(Wait {
            cycle: "R3/PT0.1S".into(),
        })
        .await
        .unwrap();
    let count_of = async |what: &str| -> i64 {
        client
            .query_one(&format!("select count(*) from {schema}.{what}"), &[])
            .await
            .unwrap()
            .get(0)
    };
    let still_overdue = "instances where deadline_at < statement_timestamp() - interval '1 hour'";
    eventually("the fresh timers fire", async || {
        count_of("timers where state = 'fired'").await == 3
    })
    .await;
    eventually("the overdue deadlines are processed", async || {
        count_of(still_overdue).await == 0
    })
    .await;
    eventually("and their instances have settled", async || {
        count_of("instances where machine = 'wait' and status = 'done'").await >= count
    })
    .await;
    running.stop().await;
    // The engine processes overdue deadlines at the configured rate per second: the first second's
    // share at once, and the remaining deadlines at that rate.
    let text = format!(
        "select extract(epoch from max(updated_at) - min(updated_at))::float8 from {schema}.instances where deadline_step is null
         and step = 'over' and step_entry_seq = 1"
    );
    let lasted: f64 = client.query_one(&text, &[]).await.unwrap().get(0);
    assert!(
        lasted >= (count - 500).max(0) as f64 / 500.0 * 0.5,
        "{count} overdue deadlines were processed in {lasted} s"
    );
}

#[tokio::test]
async fn a_timer_that_cannot_fire_does_not_block_other_timers() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let client = sql().await;
    let build = || {
        Engine::builder(pool.clone(), ())
            .register::<Wait>()
            .register::<Tick>()
            .build()
            .unwrap()
    };
    let caller = Client::new(pool.clone());
    let wait = caller
        .enqueue(Wait {
            cycle: "R/P1D".into(),
        })
        .await
        .unwrap()
        .id;
    let running = Running::start(build());
    let count = async |which: &str| -> i64 {
        client
            .query_one(
                &format!("select count(*) from {schema}.timers where {which}"),
                &[],
            )
            .await
            .unwrap()
            .get(0)
    };
    eventually("the timer is pending", async || {
        count("state = 'pending'").await == 1
    })
    .await;
    running.stop().await;
    // One timer starts an instance that cannot be inserted, another timer has a cycle that no build
    // can parse, and three timers are valid. All timers are due at once.
    let insert = |cycle: &str, new_instance: &str| {
        format!(
            "insert into {schema}.timers (instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance)
             select id, step_seq, statement_timestamp(), statement_timestamp(), '{cycle}', 'all', '{new_instance}'
             from {schema}.instances where id = {wait};"
        )
    };
    let good = r#"{"machine": "tick", "step": "run", "state": {"of": 1}}"#;
    let all = [insert("R/P1D", "{}"), insert("gibberish", good)].join("")
        + &insert("R/P1D", good).repeat(3);
    client.batch_execute(&all).await.unwrap();
    let running = Running::start(build());
    eventually("the other timers fire", async || {
        count("state = 'fired'").await == 3
    })
    .await;
    running.stop().await;
    assert_eq!(
        count("state = 'pending' and (new_instance = '{}' or cycle = 'gibberish')").await,
        2,
        "the two invalid timers are still pending"
    );
    assert_eq!(
        count("state = 'pending'").await,
        6,
        "and the next timers of the three, and the first one"
    );
}

#[tokio::test]
async fn a_timer_that_falls_due_waits_for_at_most_one_batch_of_overdue_deadlines() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let client = sql().await;
    let settings = Settings {
        overdue_per_second: 1_000,
        ..Settings::default()
    };
    let builder = Engine::builder(pool.clone(), ())
        .register::<Wait>()
        .register::<Tick>()
        .settings(settings);
    let running = Running::start(builder.build().unwrap());
    Client::new(pool.clone())
        .enqueue(Wait {
            cycle: "R20/PT0.1S".into(),
        })
        .await
        .unwrap();
    let count_of = async |what: &str| -> i64 {
        client
            .query_one(&format!("select count(*) from {schema}.{what}"), &[])
            .await
            .unwrap()
            .get(0)
    };
    eventually("the first timer is pending", async || {
        count_of("timers").await > 0
    })
    .await;
    // No worker has registered the machine of these instances, so a deadline makes such an instance
    // runnable but no worker runs it.
    let overdue = format!(
        "insert into {schema}.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
         select 'unknown', 'begin', '{{}}', 'awaiting_signal', '{{over}}',
             statement_timestamp() - interval '1 day' + g * interval '1 ms', 'over'
         from generate_series(1, 5000) g"
    );
    client.batch_execute(&overdue).await.unwrap();
    eventually("all timers fire", async || {
        count_of("timers where state = 'fired'").await == 20
    })
    .await;
    eventually("the overdue deadlines are processed", async || {
        count_of("instances where deadline_at is not null").await == 0
    })
    .await;
    running.stop().await;
    // The test counts the deadlines that the engine processed while a timer was late, and does not
    // measure time, because a stalled host processes neither timers nor deadlines. It ignores
    // timers that are more than 5 s late, because the engine treats these as overdue.
    let text = format!(
        "select coalesce(max((select count(*) from {schema}.instances i
             where i.machine = 'unknown' and i.updated_at > t.due_at and i.updated_at < t.ended_at)), 0)
         from {schema}.timers t where t.state = 'fired' and t.ended_at - t.due_at <= interval '5 s'"
    );
    let between: i64 = client.query_one(&text, &[]).await.unwrap().get(0);
    assert!(
        between <= 200,
        "{between} overdue deadlines were processed between the due time of a timer and its firing"
    );
}
