//! lanes and partitions; and what show, ls, explain, queues and enqueue know of them.

use gen_durable::Client;
use serde_json::json;

use super::{Place, stderr, stdout};

/// Make a lane of two whose head has failed and blocks, as a worker would leave it.
async fn blocked(place: &Place, client: &Client, lane: &str, tenant: &str) -> (String, String) {
    let new = |rest: &[&str]| {
        let words = [
            &[
                "enqueue", "deploy", "--state", "1", "--lane", lane, "--tenant", tenant,
            ],
            rest,
        ]
        .concat();
        place.json(&words)["id"].to_string()
    };
    let (head, behind) = (new(&["--lane-blocks"]), new(&[]));
    run(place, client, "select S.place(0, 1000)").await;
    run(
        place,
        client,
        &format!(
            "update S.instances set status = 'failed', finished_at = S.clock(), last_error = 'no disk' where id = {head}"
        ),
    )
    .await;
    (head, behind)
}

async fn run(place: &Place, client: &Client, text: &str) {
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&text.replace("S.", &format!("{}.", place.schema)))
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

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
async fn a_blocked_lane_is_listed_explained_and_goes_on() {
    let (place, client) = Place::migrated().await;
    assert_eq!(place.json(&["lanes"]), json!([]));
    assert!(stdout(&place.run(&["lanes"])).contains("nobody stands in a lane"));
    let (head, behind) = blocked(&place, &client, "server:7", "").await;
    let listed = place.json(&["lanes"]);
    assert_eq!(
        (
            &listed[0]["key"],
            &listed[0]["depth"],
            &listed[0]["blocked"]
        ),
        (&json!("server:7"), &json!(2), &json!(true))
    );
    assert_eq!(
        (&listed[0]["head"]["id"], &listed[0]["head"]["why"]),
        (&json!(1), &json!("blocked: no disk"))
    );
    assert_eq!(place.json(&["lanes", "--blocked"]), listed);
    assert_eq!(place.json(&["lanes", "--tenant", "acme"]), json!([]));
    let table = stdout(&place.run(&["lanes"]));
    for part in [
        "server:7",
        "deploy",
        "failed",
        "blocked: no disk",
        "durable lanes retry|skip|discard server:7",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let said = stdout(&place.run(&["explain", &behind]));
    for part in [
        "in the lane server:7 with 1 before it",
        "its head is instance 1 (deploy v1, step run), failed",
        "no disk",
        "`durable lanes skip server:7` leaves it failed",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let explained = place.json(&["explain", &behind]);
    assert_eq!(
        (
            &explained["blockers"][0]["kind"],
            &explained["blockers"][0]["head"]["id"]
        ),
        (&json!("queued"), &json!(1))
    );
    assert_eq!(
        place.json(&["explain", &head])["blockers"][1]["kind"],
        "blocks_lane"
    );
    let shown = stdout(&place.run(&["show", &head]));
    assert!(
        shown.contains("lane        server:7, which stands still behind it"),
        "{shown}"
    );
    let row = place.json(&["show", &behind]);
    assert_eq!(
        (&row["lane"], &row["lane_head"], &row["in_lane"]),
        (&json!("server:7"), &json!(false), &json!(true))
    );
    assert_eq!(
        place
            .json(&["ls", "--lane", "server:7"])
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(place.json(&["ls", "--lane", "server:8"]), json!([]));
    let queues = place.json(&["queues"]);
    assert_eq!(
        (&queues[0]["queued"], &queues[0]["held_back"]),
        (&json!(1), &json!(0))
    );
    assert!(stdout(&place.run(&["queues"])).contains("in lanes"));

    let retried = place.json(&["lanes", "retry", "server:7"]);
    assert_eq!(
        retried,
        json!({"lane": "server:7", "tenant": "", "id": 1, "act": "retried"})
    );
    refused(
        &place,
        &["lanes", "skip", "server:7"],
        1,
        "its head, instance 1 (deploy, step run), is runnable",
    );
    refused(
        &place,
        &["lanes", "discard", "server:7"],
        1,
        "`durable cancel 1`",
    );
    refused(
        &place,
        &["lanes", "retry", "server:8"],
        1,
        "nothing stands in the lane server:8",
    );
    refused(&place, &["lanes", "retry"], 2, "KEY");
    assert!(stdout(&place.run(&["cancel", "1"])).contains("cancelled"));
}

#[tokio::test]
async fn the_lane_of_a_tenant_is_skipped_or_discarded_and_keys_are_quoted_for_the_shell() {
    let (place, client) = Place::migrated().await;
    let key = "server: it's";
    blocked(&place, &client, key, "acme").await;
    let table = stdout(&place.run(&["lanes", "--limit", "1"]));
    assert!(
        table.contains("discard 'server: it'\\''s' --tenant acme"),
        "{table}"
    );
    assert!(
        table.contains("more: --after 'server: it'\\''s' --after-tenant acme"),
        "{table}"
    );
    assert_eq!(
        place.json(&["lanes", "--after", key, "--after-tenant", "acme"]),
        json!([])
    );
    refused(
        &place,
        &["lanes", "skip", key],
        1,
        "nothing stands in the lane",
    );
    assert!(
        stdout(&place.run(&["lanes", "skip", key, "--tenant", "acme"]))
            .contains("instance 1 stays failed")
    );
    blocked(&place, &client, "b", "").await;
    let said = stdout(&place.run(&["lanes", "discard", "b", "--reason", "the server is gone"]));
    assert!(
        said.contains("instance 3 is cancelled, and the lane goes on"),
        "{said}"
    );
    assert_eq!(
        place.json(&["show", "3"])["last_error"],
        "the server is gone; it had failed: no disk"
    );
}

#[tokio::test]
async fn partition_keys_are_listed_and_what_is_held_back_says_who_has_the_turn() {
    let (place, client) = Place::migrated().await;
    assert!(stdout(&place.run(&["partitions"])).contains("nobody"));
    for _ in 0..2 {
        place.json(&[
            "enqueue",
            "call",
            "--state",
            "1",
            "--partition",
            "account:7",
        ]);
    }
    assert_eq!(place.json(&["partitions"])[0]["turn"], json!(null));
    assert!(
        stdout(&place.run(&["explain", "1"])).contains("no live worker: nobody gives out places")
    );
    run(&place, &client, "select S.place(0, 1000)").await;
    let keys = place.json(&["partitions"]);
    assert_eq!(
        (&keys[0]["key"], &keys[0]["waiting"], &keys[0]["turn"]["id"]),
        (&json!("account:7"), &json!(1), &json!(1))
    );
    assert!(stdout(&place.run(&["partitions"])).contains("account:7"));
    let said = stdout(&place.run(&["explain", "2"]));
    assert!(
        said.contains("its turn under the partition key account:7, which has instance 1"),
        "{said}"
    );
    assert!(stdout(&place.run(&["show", "2"])).contains("account:7, held back"));
    assert_eq!(
        place
            .json(&["ls", "--partition", "account:7"])
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(place.json(&["queues"])[0]["held_back"], 1);
    refused(
        &place,
        &["enqueue", "call", "--state", "1", "--lane-blocks"],
        2,
        "--lane",
    );
    refused(
        &place,
        &["enqueue", "call", "--state", "1", "--lane", ""],
        1,
        "lane",
    );
}
