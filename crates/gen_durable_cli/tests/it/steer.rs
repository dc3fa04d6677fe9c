//! enqueue, signal, cancel, retry, explain; and what show says of letters, children and waits.

use gen_durable::Client;
use serde_json::json;

use super::{Place, note, stderr, stdout};

/// Move rows to where no engine of this test would bring them.
async fn set(place: &Place, client: &Client, change: &str, id: i64) {
    let tx = client.pool().begin().await.unwrap();
    tx.execute(
        &format!(
            "update {}.instances set {change} where id = $1",
            place.schema
        ),
        &[&id],
    )
    .await
    .unwrap();
    tx.commit().await.unwrap();
}

/// A command that must fail.
fn refused(place: &Place, arguments: &[&str], code: i32, says: &str) {
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

#[tokio::test]
async fn an_instance_is_enqueued_with_all_its_options() {
    let (place, _) = Place::migrated().await;
    let made = place.json(&["enqueue", "note", "--state", "{\"text\": \"hi\"}"]);
    assert_eq!(made, json!({"id": 1, "is_new": true}));
    assert_eq!(place.json(&["show", "1"])["step"], "run", "a job's step");
    let order = [
        "enqueue",
        "order",
        "--step",
        "ask",
        "--state",
        "{\"n\": 7}",
        "--data",
        "[1]",
        "--queue",
        "shop",
        "--priority",
        "-3",
        "--after",
        "3600",
        "--tenant",
        "acme",
        "--key",
        "order:7",
        "--machine-version",
        "2",
    ];
    assert_eq!(place.json(&order), json!({"id": 2, "is_new": true}));
    assert_eq!(place.json(&order)["is_new"], false);
    assert!(stdout(&place.run(&order)).contains("taken by instance 2"));
    let row = place.json(&["show", "2"]);
    for (name, value) in [
        ("machine", json!("order")),
        ("version", json!(2)),
        ("step", json!("ask")),
        ("state", json!({"n": 7})),
        ("data", json!([1])),
        ("queue", json!("shop")),
        ("priority", json!(-3)),
        ("tenant", json!("acme")),
        ("key", json!("order:7")),
    ] {
        assert_eq!(row[name], value, "{name}");
    }
    let at = place.json(&[
        "enqueue",
        "note",
        "--state",
        "1",
        "--at",
        "2999-01-01T00:00:00Z",
    ])["id"]
        .to_string();
    assert_eq!(
        place.json(&["show", &at])["eligible_at"],
        "2999-01-01T00:00:00Z"
    );
    refused(
        &place,
        &["enqueue", "note", "--state", "{text"],
        1,
        "not JSON",
    );
    refused(
        &place,
        &["enqueue", "note", "--state", "1", "--after", "-5"],
        2,
        "--after",
    );
    refused(
        &place,
        &[
            "enqueue",
            "note",
            "--state",
            "1",
            "--after",
            "5",
            "--at",
            "2999-01-01T00:00:00Z",
        ],
        2,
        "--at",
    );
    refused(&place, &["enqueue", "note"], 2, "--state");
}

#[tokio::test]
async fn an_instance_is_told_by_its_id_or_its_key_and_shows_its_letters() {
    let (place, client) = Place::migrated().await;
    place.json(&[
        "enqueue", "order", "--step", "told", "--state", "1", "--tenant", "acme", "--key",
        "order:7",
    ]);
    set(
        &place,
        &client,
        "status = 'awaiting_signal', awaits = '{paid,gone}', deadline_step = 'late',
        deadline_at = '2999-01-01T00:00:00Z'",
        1,
    )
    .await;
    let shown = stdout(&place.run(&["show", "1"]));
    for part in [
        "awaits      paid or gone",
        "then late",
        "key         order:7",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let waits = place.json(&["explain", "1"]);
    assert_eq!(waits["blockers"][0]["kind"], "awaiting_signal");
    assert!(stdout(&place.run(&["explain", "1"])).contains("it waits for paid or gone"));
    let noise = place.json(&["signal", "1", "noise"]);
    assert_eq!(
        (&noise["is_new"], &noise["is_awaited"]),
        (&true.into(), &false.into())
    );
    let warned = place.run(&["signal", "1", "noise", "2"]);
    assert!(
        stderr(&warned).contains("waits for paid or gone; noise stays in its inbox"),
        "{}",
        stderr(&warned)
    );
    let shown = stdout(&place.run(&["show", "1"]));
    assert!(shown.contains(", after the wait"), "{shown}");
    assert_eq!(place.json(&["show", "1"])["status"], "awaiting_signal");
    let key = [
        "signal",
        "--key",
        "order:7",
        "--tenant",
        "acme",
        "paid",
        "{\"cents\": 5}",
        "--once",
        "evt",
    ];
    assert_eq!(place.json(&key)["is_new"], true);
    assert_eq!(place.json(&key)["is_new"], false);
    assert!(stdout(&place.run(&key)).contains("before"));
    let row = place.json(&["show", "1"]);
    assert_eq!(
        (&row["status"], &row["letters"]),
        (&json!("runnable"), &json!({"noise": 2, "paid": 1}))
    );
    refused(
        &place,
        &["signal", "--key", "order:7", "paid"],
        1,
        "nobody is there",
    );
    refused(&place, &["signal", "9", "paid"], 1, "nobody is there");
    refused(&place, &["signal", "1", "paid", "five"], 1, "not JSON");
    refused(&place, &["signal", "1"], 2, "a signal needs");
    refused(&place, &["signal", "one", "paid"], 2, "not the id");
    refused(
        &place,
        &["signal", "--key", "order:7", "1", "paid", "2"],
        2,
        "a signal needs",
    );

    // Letters of a settled instance are undelivered.
    assert_eq!(
        place.json(&[
            "cancel", "--key", "order:7", "--tenant", "acme", "--reason", "no more"
        ])["cancelled"],
        true
    );
    let row = place.json(&["show", "1"]);
    assert_eq!(
        (&row["undelivered"], &row["last_error"]),
        (&json!({"noise": 2, "paid": 1}), &json!("no more"))
    );
    assert!(stdout(&place.run(&["show", "1"])).contains("undelivered 2 noise, 1 paid"));
}

#[tokio::test]
async fn an_instance_and_what_is_below_it_are_cancelled() {
    let (place, client) = Place::migrated().await;
    client
        .enqueue_all(["parent", "child", "other"].map(note))
        .await
        .unwrap();
    set(
        &place,
        &client,
        "status = 'awaiting_children', join_generation = 1, children_pending = 1",
        1,
    )
    .await;
    set(&place, &client, "parent_id = 1, parent_generation = 1", 2).await;
    assert_eq!(place.json(&["show", "2"])["parent_id"], 1);
    let shown = stdout(&place.run(&["show", "1"]));
    assert!(
        shown.contains("children    1 runnable; 1 of its last spawn"),
        "{shown}"
    );
    assert!(stdout(&place.run(&["explain", "1"])).contains("2 (note, step run) is runnable"));
    assert_eq!(place.json(&["cancel", "1", "--subtree"])["cancelled"], true);
    assert_eq!(
        place.json(&["show", "1"])["children"],
        json!({"cancelled": 1})
    );
    assert_eq!(place.json(&["show", "3"])["status"], "runnable");
    assert!(stdout(&place.run(&["cancel", "1"])).contains("too late"));
    refused(&place, &["cancel", "77"], 1, "nobody is there");
    refused(&place, &["cancel"], 2, "ID");
    refused(&place, &["cancel", "1", "--key", "x"], 2, "--key");
}

#[tokio::test]
async fn what_has_settled_runs_again_and_what_lives_does_not() {
    let (place, client) = Place::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    refused(&place, &["retry", "1"], 1, "is runnable");
    refused(&place, &["retry", "77"], 1, "no instance 77");
    refused(&place, &["retry", "1", "--data", "1"], 2, "--step");
    place.json(&["cancel", "1"]);
    assert_eq!(
        place.json(&["explain", "1"])["blockers"][0]["kind"],
        "settled"
    );
    assert_eq!(
        place.json(&["retry", "1"]),
        json!({"id": 1, "runs_again": true})
    );
    let row = place.json(&["show", "1"]);
    assert_eq!(
        (&row["status"], &row["last_error"], &row["step"]),
        (&json!("runnable"), &json!(null), &json!("run"))
    );
    place.json(&["cancel", "1"]);
    place.json(&["retry", "1", "--step", "other", "--data", "[2]"]);
    let row = place.json(&["show", "1"]);
    assert_eq!((&row["step"], &row["data"]), (&json!("other"), &json!([2])));
}

#[tokio::test]
async fn the_reason_why_nothing_happens_is_said() {
    let (place, client) = Place::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    place.json(&["pause", "default"]);
    let said = stdout(&place.run(&["explain", "1"]));
    assert!(
        said.contains("no live worker works the queue default"),
        "{said}"
    );
    assert!(
        said.contains("besides: the queue default is paused"),
        "{said}"
    );
    refused(&place, &["explain", "77"], 1, "no instance 77");
    refused(&place, &["explain", "one"], 2, "one");
}
