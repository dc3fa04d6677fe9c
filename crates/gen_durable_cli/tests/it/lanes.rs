//! Tests the commands `durable lanes` and `durable partitions`, and the output of show, ls,
//! explain, queues and enqueue for instances with a lane or a partition key.

use gen_durable::Client;
use serde_json::json;

use super::{TestSchema, stderr, stdout};

/// Creates a lane of two instances with a failed head that blocks the lane.
async fn blocked(db: &TestSchema, client: &Client, lane: &str, tenant: &str) -> (String, String) {
    let new = |rest: &[&str]| {
        let words = [
            &[
                "enqueue", "deploy", "--state", "1", "--lane", lane, "--tenant", tenant,
            ],
            rest,
        ]
        .concat();
        db.json(&words)["id"].as_str().unwrap().to_owned()
    };
    let (head, behind) = (new(&["--lane-blocks"]), new(&[]));
    run(db, client, "select S._place(0, 1000)").await;
    run(
        db,
        client,
        &format!(
            "update S.instances set status = 'failed', settled_at = S.clock(), last_error = 'no disk' where id = {head}"
        ),
    )
    .await;
    (head, behind)
}

async fn run(db: &TestSchema, client: &Client, text: &str) {
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&text.replace("S.", &format!("{}.", db.schema)))
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

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
async fn durable_lanes_lists_a_blocked_lane_with_its_reason_and_retries_the_head() {
    let (db, client) = TestSchema::migrated().await;
    assert_eq!(db.json(&["lanes"]), json!([]));
    assert!(stdout(&db.run(&["lanes"])).contains("no lane has instances"));
    let (head, behind) = blocked(&db, &client, "server:7", "").await;
    let listed = db.json(&["lanes"]);
    assert_eq!(
        (
            &listed[0]["key"],
            &listed[0]["depth"],
            &listed[0]["blocked"]
        ),
        (&json!("server:7"), &json!(2), &json!(true))
    );
    assert_eq!(
        (&listed[0]["head"]["id"], &listed[0]["head"]["reason"]),
        (&json!("1"), &json!("blocked: no disk"))
    );
    let mut again = db.json(&["lanes", "--blocked"]);
    again[0]["head"]["now"] = listed[0]["head"]["now"].clone();
    assert_eq!(again, listed);
    assert_eq!(db.json(&["lanes", "--tenant", "acme"]), json!([]));
    let table = stdout(&db.run(&["lanes"]));
    for part in [
        "server:7",
        "deploy",
        "failed",
        "blocked: no disk",
        "durable lanes retry|skip|discard server:7",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let explained = stdout(&db.run(&["explain", &behind]));
    for part in [
        "in the lane server:7 with 1 before it",
        "the head of the lane is instance 1 (deploy v1, step run), failed",
        "no disk",
        "`durable lanes skip server:7` leaves it failed",
    ] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let json = db.json(&["explain", &behind]);
    assert_eq!(
        (
            &json["blockers"][0]["kind"],
            &json["blockers"][0]["head"]["id"]
        ),
        (&json!("queued"), &json!("1"))
    );
    assert_eq!(
        db.json(&["explain", &head])["blockers"][1]["kind"],
        "blocks_lane"
    );
    let shown = stdout(&db.run(&["show", &head]));
    assert!(
        shown.contains("lane        server:7, which it blocks"),
        "{shown}"
    );
    let row = db.json(&["show", &behind]);
    assert_eq!(
        (&row["lane"], &row["lane_head"], &row["in_lane"]),
        (&json!("server:7"), &json!(false), &json!(true))
    );
    assert_eq!(
        db.listed(&["--lane", "server:7"]).as_array().unwrap().len(),
        2
    );
    assert_eq!(db.listed(&["--lane", "server:8"]), json!([]));
    let queues = db.json(&["queues"]);
    assert_eq!(
        (&queues[0]["queued"], &queues[0]["partition_waiting"]),
        (&json!(1), &json!(0))
    );
    assert!(stdout(&db.run(&["queues"])).contains("in lanes"));

    let retried = db.json(&["lanes", "retry", "server:7"]);
    assert_eq!(
        retried,
        json!({"lane": "server:7", "tenant": "", "id": "1", "act": "retried"})
    );
    refused(
        &db,
        &["lanes", "skip", "server:7"],
        1,
        "its head, instance 1 (deploy, step run), is runnable",
    );
    refused(
        &db,
        &["lanes", "discard", "server:7"],
        1,
        "`durable cancel 1`",
    );
    refused(
        &db,
        &["lanes", "retry", "server:8"],
        1,
        "there is no instance in the lane server:8",
    );
    refused(&db, &["lanes", "retry"], 2, "KEY");
    assert!(stdout(&db.run(&["cancel", "1"])).contains("cancelled"));
}

#[tokio::test]
async fn durable_lanes_skips_or_discards_the_head_of_a_lane_and_prints_keys_shell_quoted() {
    let (db, client) = TestSchema::migrated().await;
    let key = "server: it's";
    blocked(&db, &client, key, "acme").await;
    let table = stdout(&db.run(&["lanes", "--limit", "1"]));
    assert!(
        table.contains("discard 'server: it'\\''s' --tenant acme"),
        "{table}"
    );
    assert!(
        table.contains("more: --after 'server: it'\\''s' --after-tenant acme"),
        "{table}"
    );
    assert_eq!(
        db.json(&["lanes", "--after", key, "--after-tenant", "acme"]),
        json!([])
    );
    refused(
        &db,
        &["lanes", "skip", key],
        1,
        "there is no instance in the lane",
    );
    assert!(
        stdout(&db.run(&["lanes", "skip", key, "--tenant", "acme"]))
            .contains("instance 1 stays failed")
    );
    blocked(&db, &client, "b", "").await;
    let discarded = stdout(&db.run(&["lanes", "discard", "b", "--reason", "the server is gone"]));
    assert!(
        discarded.contains("instance 3 was cancelled, and the next instance runs"),
        "{discarded}"
    );
    assert_eq!(
        db.json(&["show", "3"])["last_error"],
        "the server is gone; it had failed: no disk"
    );
}

#[tokio::test]
async fn durable_partitions_lists_keys_and_durable_explain_names_the_partition_holder() {
    let (db, client) = TestSchema::migrated().await;
    assert!(stdout(&db.run(&["partitions"])).contains("no instance"));
    for _ in 0..2 {
        db.json(&[
            "enqueue",
            "call",
            "--state",
            "1",
            "--partition",
            "account:7",
        ]);
    }
    assert_eq!(db.json(&["partitions"])[0]["holder"], json!(null));
    assert!(
        stdout(&db.run(&["explain", "1"]))
            .contains("no live worker: workers assign lane positions")
    );
    run(&db, &client, "select S._place(0, 1000)").await;
    let keys = db.json(&["partitions"]);
    assert_eq!(
        (
            &keys[0]["key"],
            &keys[0]["waiting"],
            &keys[0]["holder"]["id"]
        ),
        (&json!("account:7"), &json!(1), &json!("1"))
    );
    assert!(stdout(&db.run(&["partitions"])).contains("account:7"));
    let explained = stdout(&db.run(&["explain", "2"]));
    assert!(
        explained.contains("it waits for the partition key account:7, held by instance 1"),
        "{explained}"
    );
    assert!(stdout(&db.run(&["show", "2"])).contains("account:7, waits for the partition"));
    assert_eq!(
        db.listed(&["--partition", "account:7"])
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(db.json(&["queues"])[0]["partition_waiting"], 1);
    refused(
        &db,
        &["enqueue", "call", "--state", "1", "--lane-blocks"],
        2,
        "--lane",
    );
    refused(
        &db,
        &["enqueue", "call", "--state", "1", "--lane", ""],
        1,
        "lane",
    );
}
