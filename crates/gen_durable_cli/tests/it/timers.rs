//! Tests the commands `durable timers` and `durable schedules`.

use gen_durable::{Engine, schedule::Cycle};
use serde_json::json;

use super::{Note, TestSchema, note, stderr, stdout};

async fn with_a_schedule() -> TestSchema {
    let (db, client) = TestSchema::migrated().await;
    let cycle: Cycle = "30 2 * * * [Europe/Madrid]".parse().unwrap();
    let engine = Engine::builder(client.pool().clone(), ())
        .register::<Note>()
        .schedule("nightly", cycle, |_| note("x"));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.build().unwrap().run(async { drop(stopped.await) }));
    while !client
        .schedules()
        .show("nightly")
        .await
        .unwrap()
        .is_some_and(|info| info.served)
    {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    db
}

#[tokio::test]
async fn durable_timers_lists_pending_timers_and_forecasts_how_many_become_due() {
    let (db, _) = TestSchema::migrated().await;
    assert!(stdout(&db.run(&["timers"])).contains("no timers are pending"));
    assert!(stdout(&db.run(&["timers", "--overdue"])).contains("no timer is overdue"));
    db.json(&["enqueue", "note", "--state", "1", "--after", "1000"]);
    db.json(&["enqueue", "note", "--state", "1", "--after", "1000"]);
    db.json(&["enqueue", "note", "--state", "1", "--after", "9000"]);
    let shown = stdout(&db.run(&["timers"]));
    assert!(
        shown.contains("sleep")
            && shown.contains("note → run")
            && shown.contains("in the next hour: 2"),
        "{shown}"
    );
    assert!(shown.contains("15–20  min ██"), "{shown}");
    let all = db.json(&["timers", "--limit", "2"]);
    assert_eq!(all["timers"].as_array().unwrap().len(), 2);
    assert_eq!(
        all["forecast"],
        json!([{"from_seconds": 900, "to_seconds": 1200, "kind": "sleep", "count": 2}])
    );
    let refused = db.run(&["timers", "cancel", "77"]);
    assert_eq!(
        (
            refused.status.code(),
            stderr(&refused).contains("no timer 77")
        ),
        (Some(1), true)
    );
    assert_eq!(db.run(&["timers", "--limit", "0"]).status.code(), Some(2));
}

#[tokio::test]
async fn durable_schedules_lists_pauses_resumes_changes_and_runs_a_schedule() {
    let (empty, _) = TestSchema::migrated().await;
    assert!(stdout(&empty.run(&["schedules"])).contains("no schedules"));
    let db = with_a_schedule().await;
    let shown = stdout(&db.run(&["schedules"]));
    assert!(
        shown.contains("nightly") && shown.contains("no live worker registers it"),
        "{shown}"
    );
    let one = db.json(&["schedules", "show", "nightly"]);
    assert_eq!(
        (&one["cycle"], &one["served"]),
        (&json!("30 2 * * * [Europe/Madrid]"), &json!(false))
    );
    assert_eq!(one["next_due_at"].as_array().unwrap().len(), 5);
    assert!(stdout(&db.run(&["schedules", "show", "nightly"])).contains("next    2"));
    assert!(stdout(&db.run(&["timers"])).contains("no live worker registers it"));

    let output = db.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stdout(&output).contains("no live worker registers the schedule nightly"),
        "{}",
        stdout(&output)
    );

    assert_eq!(
        db.json(&["schedules", "pause", "nightly"])["was_paused"],
        false
    );
    assert!(
        db.run(&["doctor"]).status.success(),
        "a paused schedule is no finding"
    );
    assert_eq!(
        db.json(&["schedules", "pause", "nightly"])["was_paused"],
        true
    );
    assert_eq!(db.json(&["schedules"])[0]["next_due_at"], json!([]));
    assert!(stdout(&db.run(&["schedules", "resume", "nightly"])).contains("is resumed"));
    assert!(stdout(&db.run(&["schedules", "resume", "nightly"])).contains("was not paused"));
    db.json(&[
        "schedules",
        "set",
        "nightly",
        "R/2026-01-05T08:00:00[Europe/Madrid]/P1W",
        "--misfire",
        "skip",
    ]);
    let one = db.json(&["schedules", "show", "nightly"]);
    assert_eq!(
        (&one["cycle"], &one["missed"]),
        (
            &json!("R/2026-01-05T08:00:00[Europe/Madrid]/P1W"),
            &json!("skip")
        )
    );
    assert!(stdout(&db.run(&["schedules", "show", "nightly"])).contains("code    30 2"));
    let timer = db.json(&["schedules", "run", "nightly"])["timer"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(db.json(&["timers"])["timers"].as_array().unwrap().len() == 2);
    assert_eq!(db.json(&["timers", "cancel", &timer])["cancelled"], true);
    assert!(stdout(&db.run(&["timers", "cancel", &timer])).contains("too late"));

    for (arguments, code, says) in [
        (
            &["schedules", "set", "nightly", "61 * * * *"][..],
            1,
            "30 2 * * MON-FRI",
        ),
        (
            &["schedules", "set", "nightly", "0 0 * * * [Mars/Olympus]"],
            1,
            "there is no time zone",
        ),
        (
            &["schedules", "set", "nightly", "R/PT1H", "--misfire", "none"],
            2,
            "latest",
        ),
        (
            &["schedules", "pause", "unknown"],
            1,
            "no schedule \"unknown\"",
        ),
        (
            &["schedules", "show", "unknown"],
            1,
            "no schedule \"unknown\"",
        ),
        (&["schedules", "pause"], 2, "NAME"),
    ] {
        let output = db.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(says),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}
