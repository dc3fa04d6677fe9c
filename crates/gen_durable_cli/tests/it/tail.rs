//! Tests of `durable tail`.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use super::{TestSchema, durable, note, output::sql, serve::interrupt, stdout};

/// Starts `durable tail` with these options, and returns the process and its lines.
fn follow(db: &TestSchema, options: &[&str]) -> (Child, impl Iterator<Item = Value> + use<>) {
    let mut command = durable();
    command
        .args(["tail", "-f", "--json", "--schema", &db.schema])
        .args(options)
        .env("DATABASE_URL", &db.url);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let lines = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
    (process, lines)
}

fn settle(id: i64, status: &str) -> String {
    format!(
        "update S.instances set status = '{status}', settled_at = S.clock(), updated_at = S.clock() where id = {id}"
    )
}

#[tokio::test]
async fn durable_tail_prints_each_settled_instance_once_in_the_order_of_settling() {
    let (db, client) = TestSchema::migrated().await;
    client
        .enqueue_all((0..6).map(|n| note(&n.to_string())))
        .await
        .unwrap();
    for (id, status) in [(2, "done"), (1, "failed")] {
        sql(&client, &settle(id, status)).await;
    }
    let shown = stdout(&db.run(&["tail"]));
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].contains("done") && lines[1].contains("failed"),
        "{shown}"
    );
    assert!(lines[1].contains("note/"), "{shown}");
    let old = stdout(&db.run(&["tail", "--since", "2999-01-31T12:00:00Z"]));
    assert_eq!(old.trim(), "");

    let (process, mut events) = follow(&db, &[]);
    let mut next = || {
        let event = events.next().unwrap();
        (event["id"].clone(), event["status"].clone())
    };
    assert_eq!(next(), (json!("2"), json!("done")));
    assert_eq!(next(), (json!("1"), json!("failed")));
    // A transaction that commits after a later one is printed too.
    let tx = client.pool().begin().await.unwrap();
    let late = settle(3, "cancelled").replace("S.", &format!("{}.", db.schema));
    tx.batch_execute(&late).await.unwrap();
    sql(&client, &settle(4, "done")).await;
    assert_eq!(next(), (json!("4"), json!("done")));
    tx.commit().await.unwrap();
    assert_eq!(next(), (json!("3"), json!("cancelled")));
    sql(&client, &settle(5, "done")).await;
    assert_eq!(
        next(),
        (json!("5"), json!("done")),
        "no line is printed twice"
    );
    interrupt(&process);
    let mut process = process;
    assert_eq!(process.wait().unwrap().code(), Some(0));

    let (mut process, mut failed) = follow(
        &db,
        &[
            "--status",
            "failed",
            "--machine",
            "note",
            "--queue",
            "default",
        ],
    );
    assert_eq!(failed.next().unwrap()["id"], "1");
    sql(&client, &settle(6, "failed")).await;
    assert_eq!(failed.next().unwrap()["id"], "6");
    interrupt(&process);
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

#[tokio::test]
async fn durable_tail_of_an_instance_prints_its_history_until_it_has_settled() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue(note("a")).await.unwrap();
    let entry = |seq: i32, outcome: &str, status: &str| {
        format!(
            "insert into S.history (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
             values (1, {seq}, 1, S.clock(), 0, '{status}', '{outcome}', 'a', 'b')"
        )
    };
    sql(&client, &entry(1, "next", "executing")).await;
    let shown = stdout(&db.run(&["tail", "1"]));
    assert!(shown.contains("next") && shown.contains("a → b"), "{shown}");
    let (mut process, mut entries) = follow(&db, &["1"]);
    let first = entries.next().unwrap();
    assert_eq!(
        (&first["instance_id"], &first["step_seq"]),
        (&json!("1"), &json!(1))
    );
    sql(&client, &entry(2, "retry", "runnable")).await;
    assert_eq!(entries.next().unwrap()["outcome"], "retry");
    sql(&client, &entry(3, "done", "done")).await;
    assert_eq!(entries.next().unwrap()["outcome"], "done");
    assert_eq!(entries.next(), None);
    assert_eq!(process.wait().unwrap().code(), Some(0));
    assert_eq!(db.run(&["tail", "77"]).status.code(), Some(1));
    assert_eq!(
        db.run(&["tail", "1", "--machine", "note"]).status.code(),
        Some(2)
    );
}
