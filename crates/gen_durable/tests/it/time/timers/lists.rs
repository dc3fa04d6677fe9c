//! Tests of operators: lists and forecasts of timers, cancels, and the deletion of ended timers.

use std::time::Duration;

use gen_durable::{
    DAY, Engine, HOUR, MINUTE, Settings,
    schedule::{TimerFilter, TimerSelection},
};

use super::{Behaviour, Remind, begun, lab, remind, reminders, set_clock};
use crate::support::{Running, eventually, live, sql};

#[tokio::test]
async fn cancelling_a_repeating_timer_ends_it_and_reports_false_if_it_has_fired_already() {
    let lab = lab().await;
    begun(&lab, remind("R/PT1H")).await;
    let first = lab.timers().next(10).await.unwrap();
    assert_eq!(
        (first.len(), first[0].kind.name(), first[0].overdue),
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
        .map(|timer| timer.kind.to_string())
        .collect();
    assert_eq!(kinds, ["sleep", "repeat", "deadline"]);
    let forecast = lab.timers().forecast(HOUR, 60).await.unwrap();
    let found: Vec<(usize, &str, i64)> = forecast
        .iter()
        .map(|part| (part.part, part.kind.name(), part.count))
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
            .map(|timer| timer.kind.name())
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
        list(TimerSelection::Ahead, None).await.timers[0]
            .kind
            .name(),
        "deadline"
    );
    let of = lab
        .inspect()
        .timers_of(walked[0].instance_id.unwrap())
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
                seen.insert(timer.instance_id.unwrap()),
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
