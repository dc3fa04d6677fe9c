//! Tests of sleeps, deadlines and repeating timers of waits: none of them fires early, is lost or
//! fires twice.

use std::{collections::BTreeMap, time::Duration};

use gen_durable::{
    Context, Cycle, DAY, Due, Engine, HOUR, Id, Job, Lab, MINUTE, Machine, MisfirePolicy,
    NewInstance, Outcome, Period, SECOND, Settings, Signal, Status, StepError, TimerFilter,
    TimerSelection, Timestamp, done, fail, sleep, sleep_until, spawn, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually, live, sql};

/// The behaviour that a test chooses for its machine.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
enum Behaviour {
    SleepUntil(Timestamp),
    SleepPeriod(String),
    WaitUntil(String),
    Remind {
        cycle: String,
        missed: String,
        give_up: Option<u64>,
    },
    Join {
        cycle: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Patient {
    behaviour: Behaviour,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Begin,
    Received,
    Late,
}

#[derive(Serialize, Deserialize)]
struct Reply;
impl Signal for Reply {
    const NAME: &'static str = "reply";
    type To = Patient;
}

impl Machine for Patient {
    const NAME: &'static str = "patient";
    type App = ();
    type Step = Step;
    type Output = String;
    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let remind = || Remind { of: cx.id.raw() };
        match at {
            Step::Begin => Ok(match self.behaviour.clone() {
                Behaviour::SleepUntil(at) => sleep_until(at).then(Step::Received),
                Behaviour::SleepPeriod(period) => sleep(Period::iso(&period)?).then(Step::Received),
                Behaviour::WaitUntil(due) => wait_for::<Reply>()
                    .then(Step::Received)
                    .or_after(Due::iso(&due)?, Step::Late),
                Behaviour::Remind {
                    cycle,
                    missed,
                    give_up,
                } => {
                    let cycle: Cycle = cycle.parse()?;
                    let cycle = cycle.misfire(MisfirePolicy::named(&missed).unwrap());
                    let wait = wait_for::<Reply>()
                        .then(Step::Received)
                        .repeat(cycle, remind());
                    match give_up {
                        Some(seconds) => wait.or_after(Duration::from_secs(seconds), Step::Late),
                        None => wait.forever(),
                    }
                }
                Behaviour::Join { cycle } => {
                    let child = NewInstance::new(Remind { of: -cx.id.raw() }).after(5 * HOUR);
                    spawn([child])
                        .then(Step::Received)
                        .repeat(cycle.parse()?, remind())
                        .forever()
                }
            }),
            Step::Received => Ok(done(cx.now.to_string())),
            Step::Late => Ok(fail("late")),
        }
    }
}

/// The job that a repeating timer enqueues.
#[derive(Serialize, Deserialize)]
struct Remind {
    of: i64,
}
impl Job for Remind {
    const NAME: &'static str = "remind";
    type App = ();
    type Output = Timestamp;
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<Timestamp, StepError> {
        Ok(cx.now)
    }
}

async fn lab() -> Lab<()> {
    Lab::new(())
        .await
        .register::<Patient>()
        .register::<Remind>()
}

async fn begun(lab: &Lab<()>, behaviour: Behaviour) -> Id<Patient> {
    let id = lab.enqueue(Patient { behaviour }).await.unwrap().id;
    lab.drain().await;
    id
}

fn remind(cycle: &str) -> Behaviour {
    Behaviour::Remind {
        cycle: cycle.into(),
        missed: "latest".into(),
        give_up: None,
    }
}

/// Returns the number of timers by state.
async fn states(lab: &Lab<()>) -> BTreeMap<String, i64> {
    let client = sql().await;
    let text = format!(
        "select state, count(*) from {}.timers group by state",
        lab.pool().schema()
    );
    client
        .query(&text, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

fn of<const N: usize>(states: [(&str, i64); N]) -> BTreeMap<String, i64> {
    states.map(|(name, count)| (name.to_owned(), count)).into()
}

/// Returns how many `Remind` jobs the repeating timers have enqueued.
async fn reminders(lab: &Lab<()>) -> i64 {
    let client = sql().await;
    let text = format!(
        "select count(*) from {}.instances where machine = 'remind' and parent_id is null",
        lab.pool().schema()
    );
    client.query_one(&text, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_sleep_until_a_date_ends_at_that_date_or_at_once_if_the_date_is_past() {
    let lab = lab().await;
    let now = lab.now().await;
    let id = begun(&lab, Behaviour::SleepUntil(now + 90 * MINUTE)).await;
    assert_eq!(lab.row_of(id).await.eligible_at, now + 90 * MINUTE);
    lab.skip(90 * MINUTE - SECOND).await;
    assert_eq!(lab.status_of(id).await, Status::Runnable);
    lab.skip(SECOND).await;
    assert_eq!(
        lab.result_of(id).await.unwrap().unwrap(),
        (now + 90 * MINUTE).to_string()
    );
    let past = begun(&lab, Behaviour::SleepUntil(Timestamp::UNIX_EPOCH)).await;
    assert_eq!(lab.status_of(past).await, Status::Done);
}

#[tokio::test]
async fn a_sleep_for_a_calendar_period_ends_by_the_calendar_of_its_time_zone() {
    let lab = lab().await;
    let id = begun(&lab, Behaviour::SleepPeriod("P1M[Europe/Madrid]".into())).await;
    let now = lab.now().await;
    let client = sql().await;
    let expected: Timestamp = client
        .query_one(
            "select ($1::timestamptz at time zone 'Europe/Madrid' + interval '1 month') at time zone 'Europe/Madrid'",
            &[&now],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(lab.row_of(id).await.eligible_at, expected);
    let beyond = begun(&lab, Behaviour::SleepPeriod("P9000Y".into())).await;
    let error = lab.row_of(beyond).await.last_error.unwrap();
    assert!(error.contains("beyond the year 9999"), "{error}");
}

#[tokio::test]
async fn a_wait_with_a_deadline_date_expires_at_that_date_or_at_once_if_the_date_is_past() {
    let lab = lab().await;
    let due = lab.now().await + DAY;
    let id = begun(&lab, Behaviour::WaitUntil(due.to_string())).await;
    assert_eq!(lab.row_of(id).await.deadline_at, Some(due));
    lab.skip(DAY - SECOND).await;
    assert_eq!(lab.status_of(id).await, Status::AwaitingSignal);
    lab.skip(SECOND).await;
    assert_eq!(lab.status_of(id).await, Status::Failed);
    let past = begun(&lab, Behaviour::WaitUntil("2001-01-01T00:00:00Z".into())).await;
    assert_eq!(lab.status_of(past).await, Status::Failed);
}

#[tokio::test]
async fn a_repeating_timer_of_a_wait_fires_at_each_due_time_and_ends_after_its_count() {
    let lab = lab().await;
    let begun_at = lab.now().await;
    let id = begun(&lab, remind("R3/PT1H")).await;
    assert_eq!(states(&lab).await, of([("pending", 1)]));
    for hour in 1..=4_i64 {
        lab.skip(HOUR - SECOND).await;
        assert_eq!(
            reminders(&lab).await,
            (hour - 1).min(3),
            "not before its time"
        );
        lab.skip(SECOND).await;
        assert_eq!(reminders(&lab).await, hour.min(3));
    }
    assert_eq!(states(&lab).await, of([("fired", 3)]));
    assert_eq!(
        lab.status_of(id).await,
        Status::AwaitingSignal,
        "a repetition does not end the wait"
    );
    // Each occurrence of the repeating timer is a separate row of `timers`, and the due times do
    // not drift.
    let client = sql().await;
    let text = format!(
        "select due_at, remaining from {}.timers order by id",
        lab.pool().schema()
    );
    let rows = client.query(&text, &[]).await.unwrap();
    let expected = [(HOUR, 2), (2 * HOUR, 1), (3 * HOUR, 0)]
        .map(|(after, left)| (begun_at + after, Some(left)));
    assert_eq!(
        rows.iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect::<Vec<(Timestamp, Option<i32>)>>(),
        expected
    );
}

#[tokio::test]
async fn the_commit_that_ends_a_wait_cancels_the_repeating_timer_of_the_wait() {
    let lab = lab().await;
    // A signal ends the wait, and the same commit cancels the repeating timer of the wait.
    let id = begun(&lab, remind("R/PT1H")).await;
    lab.skip(2 * HOUR).await;
    lab.signal(id, Reply).await.unwrap();
    assert_eq!(
        states(&lab).await,
        of([("fired", 2), ("cancelled", 1)]),
        "in the commit of the signal"
    );
    // A cancel of the instance ends the wait, and the same commit cancels the repeating timer of
    // the wait.
    let id = begun(&lab, remind("R/PT1H")).await;
    assert!(lab.cancel(id, "enough").await.unwrap());
    assert_eq!(states(&lab).await["cancelled"], 2);
    // A deadline ends the wait, and the same commit cancels the repeating timer of the wait.
    begun(
        &lab,
        Behaviour::Remind {
            cycle: "R/PT1H".into(),
            missed: "latest".into(),
            give_up: Some(90 * 60),
        },
    )
    .await;
    lab.skip(2 * HOUR).await;
    assert_eq!(states(&lab).await, of([("fired", 3), ("cancelled", 3)]));
    // The last child settles and ends the wait of the parent, and the same commit cancels the
    // repeating timer of the wait.
    let id = begun(
        &lab,
        Behaviour::Join {
            cycle: "R/PT2H".into(),
        },
    )
    .await;
    lab.skip(5 * HOUR).await;
    assert_eq!(lab.status_of(id).await, Status::Done);
    assert_eq!(states(&lab).await, of([("fired", 5), ("cancelled", 4)]));
    let made = reminders(&lab).await;
    lab.skip(30 * DAY).await;
    assert_eq!(reminders(&lab).await, made, "no timer fires any more");
}

#[tokio::test]
async fn a_wait_for_a_signal_that_is_in_the_inbox_already_creates_no_timer() {
    let lab = lab().await;
    let id = lab
        .enqueue(Patient {
            behaviour: remind("R/PT1H"),
        })
        .await
        .unwrap()
        .id;
    lab.signal(id, Reply).await.unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(id).await, Status::Done);
    assert_eq!(states(&lab).await, of([]));
}

#[tokio::test]
async fn an_invalid_cycle_fails_the_step_that_used_it() {
    let lab = lab().await;
    let id = begun(&lab, remind("R/PT0S")).await;
    assert!(
        lab.row_of(id)
            .await
            .last_error
            .unwrap()
            .contains("too short")
    );
    assert_eq!(states(&lab).await, of([]));
}

#[tokio::test]
async fn the_misfire_policy_of_a_repeating_timer_decides_which_missed_occurrences_fire() {
    for (missed, expected) in [("latest", 1), ("all", 5), ("skip", 0)] {
        let lab = lab().await;
        begun(
            &lab,
            Behaviour::Remind {
                cycle: "R/PT1H".into(),
                missed: missed.into(),
                give_up: None,
            },
        )
        .await;
        // The test sets the clock of the lab forward, as if no engine had run for five and a half
        // hours.
        let now = lab.now().await + 5 * HOUR + 30 * MINUTE;
        set_clock(&lab, now).await;
        lab.drain().await;
        assert_eq!(reminders(&lab).await, expected, "{missed}");
        lab.skip(30 * MINUTE).await;
        assert_eq!(
            reminders(&lab).await,
            expected + 1,
            "{missed}: the next occurrence is on time"
        );
        assert_eq!(states(&lab).await["pending"], 1, "{missed}");
    }
}

/// Sets the test clock to a later time, as if no engine had run until that time.
async fn set_clock(lab: &Lab<()>, to: Timestamp) {
    let client = sql().await;
    client
        .execute(
            &format!("update {}.lab_clock set now = $1", lab.pool().schema()),
            &[&to],
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn cancelling_a_repeating_timer_ends_it_and_reports_false_if_it_has_fired_already() {
    let lab = lab().await;
    begun(&lab, remind("R/PT1H")).await;
    let first = lab.timers().next(10).await.unwrap();
    assert_eq!(
        (first.len(), first[0].kind.as_str(), first[0].overdue),
        (1, "repeat", false)
    );
    lab.skip(HOUR).await;
    assert!(
        !lab.timers().cancel(first[0].id.unwrap()).await.unwrap(),
        "the timer has fired"
    );
    let second = lab.timers().next(10).await.unwrap()[0].id.unwrap();
    assert!(lab.timers().cancel(second).await.unwrap());
    assert!(!lab.timers().cancel(second).await.unwrap());
    assert!(
        lab.timers()
            .cancel(77_777)
            .await
            .unwrap_err()
            .is_not_found()
    );
    lab.skip(DAY).await;
    assert_eq!(reminders(&lab).await, 1);
}

#[tokio::test]
async fn the_list_and_the_forecast_of_timers_contain_sleeps_deadlines_and_repeating_timers() {
    let lab = lab().await;
    let now = lab.now().await;
    begun(&lab, Behaviour::SleepUntil(now + 5 * MINUTE)).await;
    begun(&lab, Behaviour::WaitUntil((now + 30 * MINUTE).to_string())).await;
    begun(&lab, remind("R/PT10M")).await;
    let kinds: Vec<String> = lab
        .timers()
        .next(10)
        .await
        .unwrap()
        .into_iter()
        .map(|timer| timer.kind)
        .collect();
    assert_eq!(kinds, ["sleep", "repeat", "deadline"]);
    let forecast = lab.timers().forecast(HOUR, 60).await.unwrap();
    let found: Vec<(usize, &str, i64)> = forecast
        .iter()
        .map(|part| (part.part, part.kind.as_str(), part.count))
        .collect();
    assert_eq!(
        found,
        [(5, "sleep", 1), (10, "repeat", 1), (30, "deadline", 1)]
    );
    set_clock(&lab, now + 20 * MINUTE).await;
    let overdue = lab.timers().overdue(10).await.unwrap();
    assert_eq!(
        overdue
            .iter()
            .map(|timer| timer.kind.as_str())
            .collect::<Vec<_>>(),
        ["repeat"]
    );
    let attention = lab.inspect().findings().await.unwrap();
    assert_eq!(
        (
            attention.overdue,
            attention.lanes_blocked,
            attention.schedules_failing
        ),
        (1, 0, 0)
    );
    // The test reads all timers page by page, then only the timers that are not due, then the
    // timers of one instance.
    let list = async |which, after| {
        let filter = TimerFilter {
            which,
            after,
            limit: 1,
        };
        lab.inspect().timers(filter).await.unwrap()
    };
    let (mut walked, mut after) = (Vec::new(), None);
    loop {
        let page = list(TimerSelection::All, after).await;
        walked.extend(page.timers);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(walked, lab.timers().next(10).await.unwrap());
    assert_eq!(
        list(TimerSelection::Ahead, None).await.timers[0].kind,
        "deadline"
    );
    let of = lab
        .inspect()
        .timers_of(walked[0].instance.unwrap())
        .await
        .unwrap();
    assert_eq!(of, walked[..1]);
}

#[tokio::test]
async fn fired_and_cancelled_timers_are_deleted_when_their_retention_since_their_end_is_over() {
    let pool = live().await;
    let client = sql().await;
    let schema = pool.schema().to_owned();
    client
        .batch_execute(&format!(
            "insert into {schema}.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at)
             values ('s', 'R/PT1H', 'all', 'R/PT1H', 'all', statement_timestamp());
             insert into {schema}.timers (due_at, anchor_at, ended_at, state, missed, cycle, schedule)
             select statement_timestamp() - interval '60 days' + g * interval '1 minute', statement_timestamp(),
                 statement_timestamp() - d * interval '1 day', s, 'all', 'R/PT1H', 's'
             from (values (1, 31, 'fired'), (2, 31, 'missed'), (3, 31, 'cancelled'), (4, 29, 'fired'), (5, 29, 'cancelled')) v(g, d, s);
             insert into {schema}.timers (due_at, anchor_at, missed, cycle, schedule)
             values (statement_timestamp() - interval '90 days', statement_timestamp(), 'all', 'R/PT1H', 's')"
        ))
        .await
        .unwrap();
    let settings = Settings {
        collect_every: Duration::from_millis(20),
        ..Settings::default()
    };
    let engine = Engine::builder(pool, ())
        .register::<Remind>()
        .settings(settings)
        .build()
        .unwrap();
    let running = Running::start(engine);
    let count = async || -> i64 {
        client
            .query_one(&format!("select count(*) from {schema}.timers"), &[])
            .await
            .unwrap()
            .get(0)
    };
    eventually("the old timers are deleted", async || count().await == 3).await;
    running.stop().await;
    let left = client
        .query(
            &format!("select state from {schema}.timers order by state"),
            &[],
        )
        .await
        .unwrap();
    let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        left,
        ["cancelled", "fired", "pending"],
        "a timer of an unregistered schedule does not fire"
    );
}

#[tokio::test]
async fn a_running_engine_fires_timers_that_it_or_a_stopped_engine_created() {
    let pool = live().await;
    let client = sql().await;
    let schema = pool.schema().to_owned();
    let build = || {
        let settings = Settings {
            timer_refill: Duration::from_millis(100),
            ..Settings::default()
        };
        Engine::builder(pool.clone(), ())
            .register::<Patient>()
            .register::<Remind>()
            .settings(settings)
            .build()
            .unwrap()
    };
    let engine = build();
    let caller = engine.client();
    let running = Running::start(engine);
    let wait = caller
        .enqueue(Patient {
            behaviour: remind("R/PT0.2S"),
        })
        .await
        .unwrap()
        .id;
    let made = async |at_least: i64| {
        let text = format!(
            "select count(*) from {schema}.instances where machine = 'remind' and status = 'done'"
        );
        client.query_one(&text, &[]).await.unwrap().get::<_, i64>(0) >= at_least
    };
    eventually("the timer repeats", async || made(3).await).await;
    running.stop().await;
    // The test starts a second engine, which must fire the timer that the stopped engine created.
    let running = Running::start(build());
    eventually("the timer continues", async || made(6).await).await;
    caller.signal(wait, Reply).await.unwrap();
    assert!(caller.settled(wait, 60 * SECOND).await.unwrap().is_some());
    running.stop().await;
    let early = format!(
        "select count(*) from {schema}.timers t join {schema}.instances i on i.id = t.started_id
         where i.inserted_at < t.due_at or t.ended_at < t.due_at"
    );
    assert_eq!(
        client
            .query_one(&early, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0,
        "never early"
    );
    let pending = format!("select count(*) from {schema}.timers where state = 'pending'");
    assert_eq!(
        client
            .query_one(&pending, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
}

#[tokio::test]
async fn the_history_of_an_instance_has_one_entry_for_a_deadline_and_none_for_a_repeating_timer() {
    let lab = lab().await;
    let behaviour = Behaviour::Remind {
        cycle: "R/PT1H".into(),
        missed: "all".into(),
        give_up: Some(3 * 3600 + 1800),
    };
    let id = begun(&lab, behaviour).await;
    lab.skip(4 * HOUR).await;
    assert_eq!(
        (lab.status_of(id).await, reminders(&lab).await),
        (Status::Failed, 3)
    );
    let history = async |id: i64| {
        let mut lines = lab.inspect().history(id, None, 100).await.unwrap();
        lines.sort_by_key(|line| line.mark);
        let history = lines
            .iter()
            .map(|line| format!("{}: {} > {}", line.outcome, line.from, line.to));
        (history.collect::<Vec<String>>(), lines)
    };
    let (lines, rows) = history(id.raw()).await;
    assert_eq!(
        lines,
        [
            "wait: begin > received",
            "deadline: received > late",
            "stop: late > late"
        ]
    );
    // The history entry of the deadline has the time of the deadline. The instance ran no step for
    // this entry.
    let deadline = rows.iter().find(|line| line.outcome == "deadline").unwrap();
    assert_eq!((deadline.took, deadline.status), (None, Status::Runnable));
    assert_eq!(
        deadline.at.duration_since(rows[0].at).as_secs(),
        3 * 3600 + 1800
    );
    // Each occurrence of the repeating timer enqueues a job. A job that succeeds at once has no
    // history.
    let jobs = format!(
        "select id from {}.instances where machine = 'remind' order by id",
        lab.pool().schema()
    );
    for row in sql().await.query(&jobs, &[]).await.unwrap() {
        assert_eq!(history(row.get(0)).await.0, [""; 0]);
    }
}

#[tokio::test]
async fn a_list_of_timers_in_pages_contains_all_deadlines_that_fall_on_one_instant() {
    let lab = lab().await;
    let count = 6_000_usize;
    let load = format!(
        "insert into {}.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
         select 'patient', 'received', '{{}}', 'awaiting_signal', '{{reply}}', timestamptz '2100-01-01Z', 'late'
         from generate_series(1, {count})",
        lab.pool().schema()
    );
    sql().await.batch_execute(&load).await.unwrap();
    let (mut seen, mut after) = (std::collections::BTreeSet::new(), None);
    loop {
        let filter = TimerFilter {
            which: TimerSelection::Ahead,
            after,
            limit: 700,
        };
        let page = lab.inspect().timers(filter).await.unwrap();
        for timer in &page.timers {
            assert!(
                seen.insert(timer.instance.unwrap()),
                "{timer:?} was listed twice"
            );
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), count);
}

#[tokio::test]
async fn a_forecast_of_timers_succeeds_for_any_length_of_time() {
    let lab = lab().await;
    begun(&lab, remind("R/P1D")).await;
    for ahead in [Duration::ZERO, 2 * DAY, Duration::MAX] {
        let forecast = lab.timers().forecast(ahead, 4).await.unwrap();
        assert_eq!(
            forecast.len(),
            usize::from(!ahead.is_zero()),
            "{ahead:?}: {forecast:?}"
        );
    }
}
