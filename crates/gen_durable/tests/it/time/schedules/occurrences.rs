//! Tests which occurrences start an instance, and when.

use std::time::Duration;

use gen_durable::{
    Client, DAY, Engine, HOUR, KeyScope, MINUTE, NewInstance, SECOND, Settings,
    schedule::{Cycle, MisfirePolicy, Timestamp},
};

use super::{Report, every, lab, report, reports, set_clock};
use crate::support::{Running, eventually, live, sql};

#[tokio::test]
async fn every_occurrence_of_a_schedule_starts_one_instance_at_its_due_time_without_drift() {
    let lab = lab(every("R/PT1H")).await;
    lab.drain().await;
    let begun = lab.now().await;
    lab.skip(HOUR - SECOND).await;
    assert_eq!(reports(lab.pool()).await, []);
    lab.skip(100 * HOUR).await;
    let expected: Vec<_> = (1..=100_u32)
        .map(|n| (begun + n * HOUR, 0, false))
        .collect();
    assert_eq!(reports(lab.pool()).await, expected);
    let info = lab.schedules().show("nightly").await.unwrap().unwrap();
    assert_eq!(
        info.next_due_at,
        (101..=105_u32)
            .map(|n| begun + n * HOUR)
            .collect::<Vec<_>>()
    );
    assert_eq!(info.runs.len(), 5);
    assert_eq!(
        (
            info.runs[0].due_at,
            info.runs[0].status.map(|status| status.name())
        ),
        (begun + 100 * HOUR, Some("done"))
    );
}

#[tokio::test]
async fn a_schedule_ends_after_its_last_occurrence_and_does_not_begin_again_with_a_restart() {
    let lab = lab(every("R3/PT1H")).await;
    lab.skip(DAY).await;
    assert_eq!(reports(lab.pool()).await.len(), 3);
    let info = lab.schedules().show("nightly").await.unwrap().unwrap();
    assert!(
        info.ended_at.is_some() && info.next_due_at.is_empty(),
        "{info:?}"
    );
    // Builds a further engine with the same schedule, as after a restart of the process.
    let engine = || {
        let builder = Engine::builder(lab.pool().clone(), ()).register::<Report>();
        builder
            .schedule("nightly", every("R3/PT1H"), report)
            .build()
            .unwrap()
    };
    let running = Running::start(engine());
    eventually("the engine runs", async || {
        lab.inspect()
            .workers()
            .await
            .unwrap()
            .iter()
            .any(|worker| worker.alive)
    })
    .await;
    let info = lab.schedules().show("nightly").await.unwrap().unwrap();
    assert_eq!((info.served, info.zone.as_deref()), (true, Some("UTC")));
    assert_eq!(
        info.registered_by.first().map(|process| process.pid),
        i32::try_from(std::process::id()).ok()
    );
    running.stop().await;
    assert!(
        lab.schedules()
            .show("nightly")
            .await
            .unwrap()
            .unwrap()
            .next_due_at
            .is_empty()
    );
    lab.skip(DAY).await;
    assert_eq!(reports(lab.pool()).await.len(), 3);
}

#[tokio::test]
async fn the_misfire_policy_of_a_schedule_decides_which_missed_occurrences_start_instances() {
    for (missed, expected) in [
        (MisfirePolicy::All, vec![(1, 0), (2, 0), (3, 0)]),
        (MisfirePolicy::Latest, vec![(3, 2)]),
        (MisfirePolicy::Skip, vec![]),
    ] {
        let lab = lab(every("R/PT1H").misfire(missed)).await;
        lab.drain().await;
        let begun = lab.now().await;
        set_clock(&lab, begun + 3 * HOUR + 30 * MINUTE).await;
        lab.drain().await;
        let found = reports(lab.pool()).await;
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(n, count): (u32, u32)| (begun + n * HOUR, count, false))
            .collect();
        assert_eq!(found, expected, "{missed:?}");
        lab.skip(30 * MINUTE).await;
        assert_eq!(
            reports(lab.pool()).await.last(),
            Some(&(begun + 4 * HOUR, 0, false)),
            "{missed:?}"
        );
    }
}

/// The time zone of Samoa skipped the 30th of December 2011, so a yearly cron expression for that
/// day had its latest occurrence on the 30th of December 2010.
#[tokio::test]
async fn the_latest_missed_yearly_occurrence_is_a_year_earlier_if_the_time_zone_skipped_its_day() {
    let lab = lab(Cycle::cron("0 10 30 12 *", "Pacific/Apia").unwrap()).await;
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    set_clock(&lab, at("2009-06-01T00:00:00Z")).await;
    lab.drain().await;
    set_clock(&lab, at("2012-01-15T00:00:00Z")).await;
    lab.drain().await;
    assert_eq!(
        reports(lab.pool()).await,
        [(at("2010-12-30T20:00:00Z"), 1, false)]
    );
}

/// A daily cron expression has no occurrence on the day that Samoa skipped, not even at the
/// midnight at which the clock moved forward.
#[tokio::test]
async fn the_latest_missed_daily_occurrence_is_not_on_a_day_that_the_time_zone_skipped() {
    let lab = lab(Cycle::cron("0 10 * * *", "Pacific/Apia").unwrap()).await;
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    set_clock(&lab, at("2011-12-27T00:00:00Z")).await;
    lab.drain().await;
    set_clock(&lab, at("2011-12-30T12:00:00Z")).await;
    lab.drain().await;
    let last = reports(lab.pool()).await.pop().unwrap();
    assert_eq!(last.0, at("2011-12-29T20:00:00Z"));
}

#[tokio::test]
async fn an_occurrence_that_is_a_little_late_starts_its_instance_even_with_the_skip_policy() {
    let lab = lab(every("R/PT1H").misfire(MisfirePolicy::Skip)).await;
    lab.drain().await;
    let begun = lab.now().await;
    set_clock(&lab, begun + HOUR + 59 * SECOND).await;
    lab.drain().await;
    assert_eq!(reports(lab.pool()).await, [(begun + HOUR, 0, false)]);
}

#[tokio::test]
async fn many_concurrent_engines_start_each_occurrence_of_a_schedule_once() {
    let pool = live().await;
    let engines: Vec<Running> = (0..4)
        .map(|_| {
            let settings = Settings {
                timer_refill_every: Duration::from_millis(50),
                ..Settings::default()
            };
            let builder = Engine::builder(pool.clone(), ())
                .register::<Report>()
                .settings(settings);
            let cycle = every("R40/PT0.05S").misfire(MisfirePolicy::All);
            Running::start(builder.schedule("nightly", cycle, report).build().unwrap())
        })
        .collect();
    let schedules = Client::new(pool.clone()).schedules();
    eventually("all occurrences have fired", async || {
        schedules
            .show("nightly")
            .await
            .unwrap()
            .is_some_and(|info| info.ended_at.is_some())
    })
    .await;
    for engine in engines {
        engine.stop().await;
    }
    let found = reports(&pool).await;
    assert_eq!(found.len(), 40);
    assert!(
        found.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "in order, each once"
    );
    let client = sql().await;
    let early = format!(
        "select count(*) from {}.timers where ended_at < due_at",
        pool.schema()
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
}

#[tokio::test]
async fn a_schedule_that_cannot_start_its_instance_records_the_error_and_blocks_no_other_schedule()
{
    let pool = live().await;
    let builder = Engine::builder(pool.clone(), ()).register::<Report>();
    let engine = builder
        .schedule("panics", every("R/PT0.05S"), |_| -> Report {
            panic!("no report today")
        })
        .schedule("key", every("R/PT0.05S"), |at| {
            NewInstance::new(report(at)).key("x".repeat(1000), KeyScope::Live)
        })
        .schedule("works", every("R/PT0.05S"), report)
        .build()
        .unwrap();
    let running = Running::start(engine);
    let schedules = Client::new(pool.clone()).schedules();
    let error_of = async |name: &str| {
        schedules
            .show(name)
            .await
            .unwrap()
            .and_then(|info| info.last_error)
    };
    eventually("the schedule records the error", async || {
        error_of("panics")
            .await
            .is_some_and(|error| error.contains("panicked"))
    })
    .await;
    eventually("the schedule records the error", async || {
        error_of("key")
            .await
            .is_some_and(|error| error.contains("a key"))
    })
    .await;
    eventually("the other schedule works", async || {
        reports(&pool).await.len() >= 3
    })
    .await;
    running.stop().await;
    assert_eq!(error_of("works").await, None);
}

#[tokio::test]
async fn a_restarted_engine_applies_the_misfire_policy_to_occurrences_that_it_missed() {
    let pool = live().await;
    let engine = || {
        let builder = Engine::builder(pool.clone(), ()).register::<Report>();
        let builder = builder.schedule("all", every("R/PT1M").misfire(MisfirePolicy::All), report);
        builder
            .schedule(
                "latest",
                every("R/PT1H").misfire(MisfirePolicy::Latest),
                report,
            )
            .build()
            .unwrap()
    };
    let schedules = Client::new(pool.clone()).schedules();
    let running = Running::start(engine());
    eventually("both schedules are registered", async || {
        schedules
            .list()
            .await
            .unwrap()
            .iter()
            .filter(|info| info.served)
            .count()
            == 2
    })
    .await;
    running.stop().await;
    // The test moves all due times ten hours back, as if no engine had run for ten hours.
    let client = sql().await;
    let back = format!(
        "update {0}.timers set due_at = due_at - interval '10 hours', anchor_at = anchor_at - interval '10 hours';
         update {0}.schedules set anchor_at = anchor_at - interval '10 hours'",
        pool.schema()
    );
    client.batch_execute(&back).await.unwrap();
    let running = Running::start(engine());
    eventually("no occurrence is overdue", async || {
        let infos = schedules.list().await.unwrap();
        infos.iter().all(|info| {
            info.next_due_at
                .first()
                .is_some_and(|next| *next > info.now)
        })
    })
    .await;
    running.stop().await;
    let found = reports(&pool).await;
    let latest: Vec<_> = found.iter().filter(|(_, missed, _)| *missed > 0).collect();
    assert_eq!((latest.len(), latest[0].1), (1, 9), "{latest:?}");
    assert!(
        (599..=603).contains(&(found.len() - 1)),
        "{} of 600",
        found.len() - 1
    );
}
