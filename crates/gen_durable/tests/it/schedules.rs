//! Tests of schedules: each occurrence enqueues one instance. An operator can pause, resume, change
//! and run a schedule, and the misfire policy of a schedule decides what happens to missed
//! occurrences.

use std::time::Duration;

use gen_durable::{
    Client, Context, Cycle, DAY, Engine, HOUR, Job, KeyScope, Lab, MINUTE, MisfirePolicy,
    NewInstance, Pool, SECOND, Settings, StepError, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually, live, sql};

#[derive(Serialize, Deserialize, Clone)]
struct Report {
    due: Timestamp,
    missed: u32,
    manual: bool,
}
impl Job for Report {
    const NAME: &'static str = "report";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

fn report(at: gen_durable::Occurrence) -> Report {
    Report {
        due: at.due,
        missed: at.missed,
        manual: at.manual,
    }
}

fn every(cycle: &str) -> Cycle {
    cycle.parse().unwrap()
}

async fn lab(cycle: Cycle) -> Lab<()> {
    Lab::new(())
        .await
        .register::<Report>()
        .schedule("nightly", cycle, report)
}

/// Returns the instances that the schedule has enqueued, in order. For each: its due time, the
/// number of missed occurrences, and whether an operator ran the schedule.
async fn reports(pool: &Pool) -> Vec<(Timestamp, u32, bool)> {
    let client = sql().await;
    let text = format!(
        "select state::text from {}.instances where machine = 'report' order by id",
        pool.schema()
    );
    let rows = client.query(&text, &[]).await.unwrap();
    let read = |row: &tokio_postgres::Row| {
        let report: Report = serde_json::from_str(row.get(0)).unwrap();
        (report.due, report.missed, report.manual)
    };
    rows.iter().map(read).collect()
}

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
        info.next,
        (101..=105_u32)
            .map(|n| begun + n * HOUR)
            .collect::<Vec<_>>()
    );
    assert_eq!(info.runs.len(), 5);
    assert_eq!(
        (info.runs[0].due, info.runs[0].status.as_deref()),
        (begun + 100 * HOUR, Some("done"))
    );
}

#[tokio::test]
async fn a_schedule_ends_after_its_last_occurrence_and_does_not_begin_again_with_a_restart() {
    let lab = lab(every("R3/PT1H")).await;
    lab.skip(DAY).await;
    assert_eq!(reports(lab.pool()).await.len(), 3);
    let info = lab.schedules().show("nightly").await.unwrap().unwrap();
    assert!(info.ended_at.is_some() && info.next.is_empty(), "{info:?}");
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
        info.registered_by.first().map(|(_, pid)| *pid),
        i32::try_from(std::process::id()).ok()
    );
    running.stop().await;
    assert!(
        lab.schedules()
            .show("nightly")
            .await
            .unwrap()
            .unwrap()
            .next
            .is_empty()
    );
    lab.skip(DAY).await;
    assert_eq!(reports(lab.pool()).await.len(), 3);
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
async fn an_operator_can_pause_resume_change_and_run_a_schedule() {
    let lab = lab(every("R/PT1H")).await;
    lab.drain().await;
    let (begun, schedules) = (lab.now().await, lab.schedules());
    lab.skip(2 * HOUR).await;
    assert!(schedules.pause("nightly", "me").await.unwrap());
    assert!(!schedules.pause("nightly", "me").await.unwrap());
    lab.skip(2 * HOUR + 10 * MINUTE).await;
    assert_eq!(reports(lab.pool()).await.len(), 2);
    let info = schedules.show("nightly").await.unwrap().unwrap();
    assert_eq!(
        (info.paused_by.as_deref(), info.next.len()),
        (Some("me"), 0)
    );
    // An operator runs a paused schedule, and the schedule enqueues an instance.
    schedules.run("nightly").await.unwrap();
    lab.drain().await;
    assert_eq!(
        reports(lab.pool()).await.last(),
        Some(&(begun + 4 * HOUR + 10 * MINUTE, 0, true))
    );
    assert!(schedules.resume("nightly").await.unwrap());
    assert!(!schedules.resume("nightly").await.unwrap());
    lab.skip(50 * MINUTE).await;
    assert_eq!(
        reports(lab.pool()).await.last(),
        Some(&(begun + 5 * HOUR, 0, false)),
        "the anchor of the cycle is unchanged"
    );
    schedules
        .set("nightly", every("R/PT10M"), Some(MisfirePolicy::All), "me")
        .await
        .unwrap();
    lab.skip(30 * MINUTE).await;
    assert_eq!(reports(lab.pool()).await.len(), 2 + 1 + 1 + 3);
    let info = schedules.show("nightly").await.unwrap().unwrap();
    assert_eq!(
        (
            info.cycle.as_str(),
            info.code_cycle.as_str(),
            info.set_by.as_deref(),
            info.missed.as_str()
        ),
        ("R/PT10M", "R/PT1H", Some("me"), "all")
    );
    // An operator sets a cycle that begins at the time of the last occurrence. The schedule does
    // not repeat that occurrence, and the next occurrence is ten minutes later.
    let now = lab.now().await;
    schedules
        .set("nightly", every(&format!("R/{now}/PT10M")), None, "me")
        .await
        .unwrap();
    assert_eq!(
        schedules.show("nightly").await.unwrap().unwrap().next[0],
        now + 10 * MINUTE
    );
    for error in [
        schedules.pause("unknown", "me").await.unwrap_err(),
        schedules.resume("unknown").await.unwrap_err(),
        schedules.run("unknown").await.unwrap_err(),
        schedules
            .set("unknown", every("R/PT1H"), None, "me")
            .await
            .unwrap_err(),
    ] {
        assert!(
            error.is_not_found() && error.to_string().contains(".schedule(\"unknown\""),
            "{error}"
        );
    }
    assert!(
        schedules
            .pause("nul\0", "me")
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert!(
        schedules
            .set("nightly", Cycle::every(Duration::ZERO), None, "me")
            .await
            .unwrap_err()
            .is_invalid()
    );
    let ahead = lab.timers().next(1).await.unwrap()[0].id.unwrap();
    assert!(
        lab.timers()
            .cancel(ahead)
            .await
            .unwrap_err()
            .to_string()
            .contains("pause")
    );
}

#[tokio::test]
async fn a_cycle_that_an_operator_set_stays_in_force_until_the_cycle_in_the_code_changes() {
    let pool = live().await;
    let schedules = Client::new(pool.clone()).schedules();
    let start = async |cycle: &str| {
        let builder = Engine::builder(pool.clone(), ()).register::<Report>();
        let running = Running::start(
            builder
                .schedule("nightly", every(cycle), report)
                .build()
                .unwrap(),
        );
        eventually("the schedule is registered", async || {
            schedules
                .show("nightly")
                .await
                .unwrap()
                .is_some_and(|info| info.served)
        })
        .await;
        running.stop().await;
        schedules.show("nightly").await.unwrap().unwrap()
    };
    assert_eq!(start("0 3 * * *").await.cycle, "0 3 * * *");
    schedules
        .set("nightly", every("0 4 * * *"), None, "me")
        .await
        .unwrap();
    assert_eq!(
        start("0 3 * * *").await.cycle,
        "0 4 * * *",
        "the cycle in the code is unchanged"
    );
    assert_eq!(
        start("0 5 * * *").await.cycle,
        "0 5 * * *",
        "the cycle in the code has changed"
    );
    let info = schedules.show("nightly").await.unwrap().unwrap();
    assert_eq!(
        (info.set_by, info.served),
        (None, false),
        "no engine serves the schedule"
    );
    let listed = Client::new(pool.clone()).timers().next(5).await.unwrap();
    assert_eq!((listed.len(), listed[0].served), (1, false));
}

/// Starts an engine with this cycle, waits until the engine has registered the schedule several
/// times, and stops the engine. Returns the schedule in force.
async fn registered_by(lab: &Lab<()>, cycle: Cycle) -> gen_durable::ScheduleInfo {
    let settings = Settings {
        reap_every: SECOND / 50,
        ..Settings::default()
    };
    let builder = Engine::builder(lab.pool().clone(), ())
        .register::<Report>()
        .settings(settings);
    let running = Running::start(builder.schedule("nightly", cycle, report).build().unwrap());
    let sent = || {
        lab.statements()
            .get("register_schedule.sql")
            .copied()
            .unwrap_or_default()
    };
    let before = sent();
    eventually(
        "the running engine registers the schedule again",
        async || sent() >= before + 3,
    )
    .await;
    running.stop().await;
    lab.schedules().show("nightly").await.unwrap().unwrap()
}

#[tokio::test]
async fn a_restart_of_an_older_build_does_not_revert_the_cycle_that_a_newer_build_registered() {
    let lab = Lab::new(()).await;
    let (old, new) = (|| every("R/PT24H"), || every("R/PT12H"));
    registered_by(&lab, old()).await;
    let begun = lab.now().await;
    assert_eq!(registered_by(&lab, new()).await.cycle, "R/PT12H");
    // Engines of the two builds register the schedule alternately. The schedule keeps its anchor
    // and its next occurrence.
    for minutes in 1..=4 {
        set_clock(&lab, begun + minutes * 2 * MINUTE).await;
        assert_eq!(registered_by(&lab, old()).await.cycle, "R/PT12H");
        assert_eq!(
            registered_by(&lab, new()).await.next[0],
            begun + 12 * HOUR,
            "the anchor was reset"
        );
    }
    // After a rollback of the deployment only engines of the older build run. The schedule gets the
    // cycle of the older build when no engine of the newer build has confirmed the newer cycle for
    // five minutes.
    assert_eq!(registered_by(&lab, old()).await.cycle, "R/PT12H");
    set_clock(&lab, begun + HOUR).await;
    assert_eq!(registered_by(&lab, old()).await.cycle, "R/PT24H");
    // The schedule has returned from cycle `R/PT12H` to `R/PT24H`. From then on `R/PT12H` counts as
    // the older cycle, and its registration does not change the schedule.
    assert_eq!(registered_by(&lab, new()).await.cycle, "R/PT24H");
}

#[tokio::test]
async fn after_a_change_of_the_cycle_the_misfire_policy_still_applies_to_an_overdue_occurrence() {
    for (missed, expected) in [(MisfirePolicy::Latest, 1), (MisfirePolicy::Skip, 0)] {
        let lab = lab(every("R/PT1H").misfire(missed)).await;
        lab.drain().await;
        let begun = lab.now().await;
        set_clock(&lab, begun + 90 * MINUTE).await;
        lab.schedules()
            .set("nightly", every("R/PT24H"), None, "me")
            .await
            .unwrap();
        lab.drain().await;
        let due: Vec<_> = reports(lab.pool())
            .await
            .into_iter()
            .map(|(due, ..)| due)
            .collect();
        assert_eq!(due, vec![begun + HOUR; expected], "{missed:?}");
        let info = lab.schedules().show("nightly").await.unwrap().unwrap();
        assert_eq!(info.next[0], begun + 90 * MINUTE + 24 * HOUR);
    }
}

#[tokio::test]
async fn a_new_misfire_policy_in_the_code_keeps_the_anchor_and_the_cycle_that_an_operator_set() {
    let lab = Lab::new(()).await;
    registered_by(&lab, every("R/PT24H")).await;
    let begun = lab.now().await;
    set_clock(&lab, begun + HOUR).await;
    let info = registered_by(&lab, every("R/PT24H").misfire(MisfirePolicy::All)).await;
    assert_eq!(
        (info.missed.as_str(), info.next[0]),
        ("all", begun + 24 * HOUR),
        "the anchor was reset"
    );
    lab.schedules()
        .set("nightly", every("R/PT6H"), None, "me")
        .await
        .unwrap();
    let info = registered_by(&lab, every("R/PT24H").misfire(MisfirePolicy::Skip)).await;
    assert_eq!(
        (
            info.cycle.as_str(),
            info.missed.as_str(),
            info.set_by.as_deref()
        ),
        ("R/PT6H", "skip", Some("me"))
    );
}

#[tokio::test]
async fn many_concurrent_engines_start_each_occurrence_of_a_schedule_once() {
    let pool = live().await;
    let engines: Vec<Running> = (0..4)
        .map(|_| {
            let settings = Settings {
                timer_refill: Duration::from_millis(50),
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
async fn the_engine_builder_refuses_invalid_and_duplicate_schedules() {
    let pool = live().await;
    let builder = || Engine::builder(pool.clone(), ()).register::<Report>();
    for (engine, reason) in [
        (
            builder().schedule("", every("R/PT1H"), report),
            "a schedule's name",
        ),
        (
            builder().schedule("x", Cycle::every(Duration::ZERO), report),
            "too short",
        ),
        (
            builder().schedule("x", Cycle::every(HOUR).times(0), report),
            "0 occurrences",
        ),
        (
            builder()
                .schedule("x", every("R/PT1H"), report)
                .schedule("x", every("R/PT2H"), report),
            "named twice",
        ),
    ] {
        let error = engine.build().unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(reason),
            "{error}"
        );
    }
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
        infos
            .iter()
            .all(|info| info.next.first().is_some_and(|next| *next > info.now))
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
