//! timers and schedules, as a person or a script meets them.

use gen_durable::{Cycle, Engine};
use serde_json::json;

use super::{Note, Place, note, stderr, stdout};

async fn with_a_schedule() -> Place {
    let (place, client) = Place::migrated().await;
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
    place
}

#[tokio::test]
async fn what_falls_due_is_shown_with_a_forecast() {
    let (place, _) = Place::migrated().await;
    assert!(stdout(&place.run(&["timers"])).contains("nothing falls due"));
    assert!(stdout(&place.run(&["timers", "--overdue"])).contains("nothing is overdue"));
    place.json(&["enqueue", "note", "--state", "1", "--after", "1000"]);
    place.json(&["enqueue", "note", "--state", "1", "--after", "1000"]);
    place.json(&["enqueue", "note", "--state", "1", "--after", "9000"]);
    let shown = stdout(&place.run(&["timers"]));
    assert!(
        shown.contains("sleep")
            && shown.contains("note → run")
            && shown.contains("in the next hour: 2"),
        "{shown}"
    );
    assert!(shown.contains("15–20  min ██"), "{shown}");
    let all = place.json(&["timers", "--limit", "2"]);
    assert_eq!(all["timers"].as_array().unwrap().len(), 2);
    assert_eq!(
        all["forecast"],
        json!([{"from_seconds": 900, "to_seconds": 1200, "kind": "sleep", "count": 2}])
    );
    let refused = place.run(&["timers", "cancel", "77"]);
    assert_eq!(
        (
            refused.status.code(),
            stderr(&refused).contains("no timer 77")
        ),
        (Some(1), true)
    );
    assert_eq!(
        place.run(&["timers", "--limit", "0"]).status.code(),
        Some(2)
    );
}

#[tokio::test]
async fn schedules_are_shown_paused_resumed_set_and_run() {
    let (empty, _) = Place::migrated().await;
    assert!(stdout(&empty.run(&["schedules"])).contains("no schedules"));
    let place = with_a_schedule().await;
    let shown = stdout(&place.run(&["schedules"]));
    assert!(
        shown.contains("nightly") && shown.contains("no live worker registers it"),
        "{shown}"
    );
    let one = place.json(&["schedules", "show", "nightly"]);
    assert_eq!(
        (&one["cycle"], &one["served"]),
        (&json!("30 2 * * * [Europe/Madrid]"), &json!(false))
    );
    assert_eq!(one["next"].as_array().unwrap().len(), 5);
    assert!(stdout(&place.run(&["schedules", "show", "nightly"])).contains("next    2"));
    assert!(stdout(&place.run(&["timers"])).contains("no live worker registers it"));

    let sick = place.run(&["doctor"]);
    assert_eq!(sick.status.code(), Some(1));
    assert!(
        stdout(&sick).contains("no live worker registers the schedule nightly"),
        "{}",
        stdout(&sick)
    );

    assert_eq!(
        place.json(&["schedules", "pause", "nightly"])["was_paused"],
        false
    );
    assert!(
        place.run(&["doctor"]).status.success(),
        "somebody has seen to it"
    );
    assert_eq!(
        place.json(&["schedules", "pause", "nightly"])["was_paused"],
        true
    );
    assert_eq!(place.json(&["schedules"])[0]["next"], json!([]));
    assert!(stdout(&place.run(&["schedules", "resume", "nightly"])).contains("goes on"));
    assert!(stdout(&place.run(&["schedules", "resume", "nightly"])).contains("was not paused"));
    place.json(&[
        "schedules",
        "set",
        "nightly",
        "R/2026-01-05T08:00:00[Europe/Madrid]/P1W",
        "--missed",
        "skip",
    ]);
    let one = place.json(&["schedules", "show", "nightly"]);
    assert_eq!(
        (&one["cycle"], &one["missed"]),
        (
            &json!("R/2026-01-05T08:00:00[Europe/Madrid]/P1W"),
            &json!("skip")
        )
    );
    assert!(stdout(&place.run(&["schedules", "show", "nightly"])).contains("code    30 2"));
    let timer = place.json(&["schedules", "run", "nightly"])["timer"].to_string();
    assert!(place.json(&["timers"])["timers"].as_array().unwrap().len() == 2);
    assert_eq!(place.json(&["timers", "cancel", &timer])["cancelled"], true);
    assert!(stdout(&place.run(&["timers", "cancel", &timer])).contains("too late"));

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
            &["schedules", "set", "nightly", "R/PT1H", "--missed", "none"],
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
        let output = place.run(arguments);
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
