//! Tests the commands enqueue, signal, cancel, retry and explain; and the inboxes, children and
//! waits in the output of show.

use gen_durable::Client;
use serde_json::json;

use super::{TestSchema, note, stderr, stdout};

/// Updates columns of an instance with SQL, to values that no engine of the test would write.
async fn set(db: &TestSchema, client: &Client, change: &str, id: i64) {
    let tx = client.pool().begin().await.unwrap();
    tx.execute(
        &format!("update {}.instances set {change} where id = $1", db.schema),
        &[&id],
    )
    .await
    .unwrap();
    tx.commit().await.unwrap();
}

/// Runs a `durable` command and asserts that it fails with this exit code and message.
fn refused(db: &TestSchema, arguments: &[&str], code: i32, says: &str) {
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

#[tokio::test]
async fn durable_enqueue_stores_the_value_of_each_option_in_the_new_instance() {
    let (db, _) = TestSchema::migrated().await;
    let made = db.json(&["enqueue", "note", "--state", "{\"text\": \"hi\"}"]);
    assert_eq!(made, json!({"id": "1", "is_new": true}));
    assert_eq!(db.json(&["show", "1"])["step"], "run", "a job's step");
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
    assert_eq!(db.json(&order), json!({"id": "2", "is_new": true}));
    assert_eq!(db.json(&order)["is_new"], false);
    assert!(stdout(&db.run(&order)).contains("taken by instance 2"));
    let row = db.json(&["show", "2"]);
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
    let at = db.json(&[
        "enqueue",
        "note",
        "--state",
        "1",
        "--at",
        "2999-01-01T00:00:00Z",
    ])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        db.json(&["show", &at])["eligible_at"],
        "2999-01-01T00:00:00Z"
    );
    refused(&db, &["enqueue", "note", "--state", "{text"], 1, "not JSON");
    refused(
        &db,
        &["enqueue", "note", "--state", "1", "--after", "-5"],
        2,
        "--after",
    );
    refused(
        &db,
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
    refused(&db, &["enqueue", "note"], 2, "--state");
}

#[tokio::test]
async fn durable_signal_sends_to_an_id_or_a_key_and_durable_show_prints_the_inbox() {
    let (db, client) = TestSchema::migrated().await;
    db.json(&[
        "enqueue", "order", "--step", "told", "--state", "1", "--tenant", "acme", "--key",
        "order:7",
    ]);
    set(
        &db,
        &client,
        "status = 'awaiting_signal', awaits = '{paid,gone}', deadline_step = 'late',
        deadline_at = '2999-01-01T00:00:00Z'",
        1,
    )
    .await;
    let shown = stdout(&db.run(&["show", "1"]));
    for part in [
        "awaits      paid or gone",
        "then late",
        "key         order:7",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let waits = db.json(&["explain", "1"]);
    assert_eq!(waits["blockers"][0]["kind"], "awaiting_signal");
    assert!(stdout(&db.run(&["explain", "1"])).contains("it waits for paid or gone"));
    let noise = db.json(&["signal", "1", "noise"]);
    assert_eq!(
        (&noise["is_new"], &noise["is_awaited"]),
        (&true.into(), &false.into())
    );
    let warned = db.run(&["signal", "1", "noise", "2"]);
    assert!(
        stderr(&warned).contains("waits for paid or gone; noise stays in its inbox"),
        "{}",
        stderr(&warned)
    );
    let shown = stdout(&db.run(&["show", "1"]));
    assert!(shown.contains(", after the wait"), "{shown}");
    assert_eq!(db.json(&["show", "1"])["status"], "awaiting_signal");
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
    assert_eq!(db.json(&key)["is_new"], true);
    assert_eq!(db.json(&key)["is_new"], false);
    assert!(stdout(&db.run(&key)).contains("already delivered"));
    let row = db.json(&["show", "1"]);
    assert_eq!(
        (&row["status"], &row["signals"]),
        (&json!("runnable"), &json!({"noise": 2, "paid": 1}))
    );
    refused(
        &db,
        &["signal", "--key", "order:7", "paid"],
        1,
        "was not delivered",
    );
    refused(&db, &["signal", "9", "paid"], 1, "was not delivered");
    refused(&db, &["signal", "1", "paid", "five"], 1, "not JSON");
    refused(&db, &["signal", "1"], 2, "a signal needs");
    refused(&db, &["signal", "one", "paid"], 2, "not the id");
    refused(
        &db,
        &["signal", "--key", "order:7", "1", "paid", "2"],
        2,
        "a signal needs",
    );

    // `durable show` reports the signals in the inbox of a settled instance as undelivered.
    assert_eq!(
        db.json(&[
            "cancel", "--key", "order:7", "--tenant", "acme", "--reason", "no more"
        ])["cancelled"],
        true
    );
    let row = db.json(&["show", "1"]);
    assert_eq!(
        (&row["undelivered"], &row["last_error"]),
        (&json!({"noise": 2, "paid": 1}), &json!("no more"))
    );
    assert!(stdout(&db.run(&["show", "1"])).contains("undelivered 2 noise, 1 paid"));
}

#[tokio::test]
async fn durable_cancel_with_the_option_subtree_cancels_an_instance_and_its_children() {
    let (db, client) = TestSchema::migrated().await;
    client
        .enqueue_all(["parent", "child", "other"].map(note))
        .await
        .unwrap();
    set(
        &db,
        &client,
        "status = 'awaiting_children', join_generation = 1, children_pending = 1",
        1,
    )
    .await;
    set(&db, &client, "parent_id = 1, parent_generation = 1", 2).await;
    assert_eq!(db.json(&["show", "2"])["parent_id"], "1");
    let shown = stdout(&db.run(&["show", "1"]));
    assert!(
        shown.contains("children    1 runnable; 1 of its last spawn"),
        "{shown}"
    );
    assert!(stdout(&db.run(&["explain", "1"])).contains("2 (note, step run) is runnable"));
    assert_eq!(db.json(&["cancel", "1", "--subtree"])["cancelled"], true);
    assert_eq!(db.json(&["show", "1"])["children"], json!({"cancelled": 1}));
    assert_eq!(db.json(&["show", "3"])["status"], "runnable");
    assert!(stdout(&db.run(&["cancel", "1"])).contains("too late"));
    refused(&db, &["cancel", "77"], 1, "no such instance");
    refused(&db, &["cancel"], 2, "ID");
    refused(&db, &["cancel", "1", "--key", "x"], 2, "--key");
}

#[tokio::test]
async fn durable_retry_makes_a_cancelled_instance_runnable_and_rejects_a_runnable_instance() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    refused(&db, &["retry", "1"], 1, "is runnable");
    refused(&db, &["retry", "77"], 1, "no instance 77");
    refused(&db, &["retry", "1", "--data", "1"], 2, "--step");
    db.json(&["cancel", "1"]);
    assert_eq!(db.json(&["explain", "1"])["blockers"][0]["kind"], "settled");
    assert_eq!(
        db.json(&["retry", "1"]),
        json!({"id": "1", "runs_again": true})
    );
    let row = db.json(&["show", "1"]);
    assert_eq!(
        (&row["status"], &row["last_error"], &row["step"]),
        (&json!("runnable"), &json!(null), &json!("run"))
    );
    db.json(&["cancel", "1"]);
    db.json(&["retry", "1", "--step", "other", "--data", "[2]"]);
    let row = db.json(&["show", "1"]);
    assert_eq!((&row["step"], &row["data"]), (&json!("other"), &json!([2])));
}

#[tokio::test]
async fn durable_explain_names_each_reason_why_an_instance_does_not_run() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    db.json(&["pause", "default"]);
    let shown = stdout(&db.run(&["explain", "1"]));
    assert!(
        shown.contains("no live worker works the queue default"),
        "{shown}"
    );
    assert!(
        shown.contains("also: the queue default is paused"),
        "{shown}"
    );
    refused(&db, &["explain", "77"], 1, "no instance 77");
    refused(&db, &["explain", "one"], 2, "one");
}
