//! Tests of `durable top`.

use super::{TestSchema, note, output::sql, stdout};

#[tokio::test]
async fn durable_top_prints_queues_machines_and_rates_once_to_a_pipe() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue_all(["a", "b", "c"].map(note)).await.unwrap();
    let settle = |id: i32, status: &str| {
        format!(
            "update S.instances set status = '{status}', settled_at = S.clock() where id = {id}"
        )
    };
    sql(&client, &settle(1, "done")).await;
    sql(&client, &settle(2, "failed")).await;
    let reading = db.json(&["top"]);
    assert_eq!(reading["queues"][0]["name"], "default");
    assert_eq!(reading["queues"][0]["due"], 1);
    let machine = &reading["machines"][0];
    assert_eq!(machine["machine"], "note");
    assert_eq!(machine["statuses"]["runnable"], 1);
    assert_eq!(machine["statuses"]["failed"], 1);
    let rate = |name: &str| (reading[name].as_f64().unwrap() * 60.0).round();
    assert_eq!(
        (rate("settled_per_second"), rate("failed_per_second")),
        (2.0, 1.0)
    );
    assert_eq!(reading["workers"], serde_json::json!([]));
    let screen = stdout(&db.run(&["top"]));
    for part in ["settled/s", "default", "note", "worker", "0 workers"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    assert!(
        !screen.contains('\u{1b}'),
        "a pipe has no control sequences"
    );
}
