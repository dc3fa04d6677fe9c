//! Tests of changes of a schedule by operators and by builds.

use std::time::Duration;

use gen_durable::{
    Client, Engine, HOUR, MINUTE, SECOND, Settings,
    schedule::{Cycle, MisfirePolicy},
    testing::Lab,
};

use super::{Report, every, lab, report, reports, set_clock};
use crate::support::{Running, eventually, live};

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
        (info.paused_by.as_deref(), info.next_due_at.len()),
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
        .set(
            "nightly",
            every("R/PT10M").misfire(MisfirePolicy::All),
            "me",
        )
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
            info.missed.name()
        ),
        ("R/PT10M", "R/PT1H", Some("me"), "all")
    );
    // An operator sets a cycle that begins at the time of the last occurrence. The schedule does
    // not repeat that occurrence, and the next occurrence is ten minutes later.
    let now = lab.now().await;
    schedules
        .set("nightly", every(&format!("R/{now}/PT10M")), "me")
        .await
        .unwrap();
    assert_eq!(
        schedules
            .show("nightly")
            .await
            .unwrap()
            .unwrap()
            .next_due_at[0],
        now + 10 * MINUTE
    );
    for error in [
        schedules.pause("unknown", "me").await.unwrap_err(),
        schedules.resume("unknown").await.unwrap_err(),
        schedules.run("unknown").await.unwrap_err(),
        schedules
            .set("unknown", every("R/PT1H"), "me")
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
            .set("nightly", Cycle::every(Duration::ZERO), "me")
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
        .set("nightly", every("0 4 * * *"), "me")
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
async fn registered_by(lab: &Lab<()>, cycle: Cycle) -> gen_durable::schedule::ScheduleInfo {
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
            registered_by(&lab, new()).await.next_due_at[0],
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
            .set("nightly", every("R/PT24H"), "me")
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
        assert_eq!(info.next_due_at[0], begun + 90 * MINUTE + 24 * HOUR);
    }
}

#[tokio::test]
async fn an_operator_sets_the_misfire_policy_with_the_cycle_and_a_cycle_without_one_keeps_it() {
    let lab = lab(every("R/PT1H").misfire(MisfirePolicy::Skip)).await;
    lab.drain().await;
    let policy_after = async |cycle| {
        lab.schedules().set("nightly", cycle, "me").await.unwrap();
        let info = lab.schedules().show("nightly").await.unwrap().unwrap();
        info.missed
    };
    let cycle = || every("R/PT2H");
    assert_eq!(policy_after(cycle()).await, MisfirePolicy::Skip);
    for policy in [MisfirePolicy::All, MisfirePolicy::Latest] {
        assert_eq!(policy_after(cycle().misfire(policy)).await, policy);
        assert_eq!(policy_after(cycle()).await, policy);
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
        (info.missed.name(), info.next_due_at[0]),
        ("all", begun + 24 * HOUR),
        "the anchor was reset"
    );
    lab.schedules()
        .set("nightly", every("R/PT6H"), "me")
        .await
        .unwrap();
    let info = registered_by(&lab, every("R/PT24H").misfire(MisfirePolicy::Skip)).await;
    assert_eq!(
        (
            info.cycle.as_str(),
            info.missed.name(),
            info.set_by.as_deref()
        ),
        ("R/PT6H", "skip", Some("me"))
    );
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
