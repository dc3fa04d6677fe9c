//! Tests when sleeps, deadlines and repeating timers end or fire.

use std::time::Duration;

use gen_durable::{
    DAY, Engine, HOUR, MINUTE, SECOND, Settings,
    inspect::{HistoryOutcome, Status},
    schedule::Timestamp,
};

use super::{
    Behaviour, Patient, Remind, Reply, begun, lab, of, remind, reminders, set_clock, states,
};
use crate::support::{Running, eventually, live, sql};

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

#[tokio::test]
async fn a_running_engine_fires_timers_that_it_or_a_stopped_engine_created() {
    let pool = live().await;
    let client = sql().await;
    let schema = pool.schema().to_owned();
    let build = || {
        let settings = Settings {
            timer_refill_every: Duration::from_millis(100),
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
        lines.sort_by_key(|line| line.cursor);
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
            "fail: late > late"
        ]
    );
    // The history entry of the deadline has the time of the deadline. The instance ran no step for
    // this entry.
    let deadline = rows
        .iter()
        .find(|line| line.outcome == HistoryOutcome::Deadline)
        .unwrap();
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
