//! Compares the JSON that the command prints with the JSON that the HTTP API returns.

use gen_durable::{Engine, schedule::Cycle};
use serde_json::{Map, Value, json};

use super::{
    Note, TestSchema, note,
    projections::{Sold, Till},
    serve::Serving,
};

/// Returns a value with every scalar replaced by null, and every array reduced to its first item.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), shape(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        _ => Value::Null,
    }
}

/// Returns an object without these fields, each of which it must have.
fn without(value: &Value, names: &[&str]) -> Value {
    let mut fields = value.as_object().unwrap().clone();
    for name in names {
        assert!(fields.remove(*name).is_some(), "{name} in {value}");
    }
    fields.into()
}

/// Enqueues instances in a lane and under a partition key, and an event; starts an engine with a
/// schedule and a projection, which runs none of these instances.
async fn prepared(db: &TestSchema, client: &gen_durable::Client) -> Engine {
    let tx = client.pool().begin().await.unwrap();
    let table = format!(
        "create table {}.till (tenant text, generation int, position bigint, cents bigint)",
        db.schema
    );
    tx.batch_execute(&table).await.unwrap();
    tx.commit().await.unwrap();
    client.record("acme", Sold { cents: 1 }).await.unwrap();
    for words in [["--lane", "server:7"], ["--partition", "account:7"]] {
        for _ in 0..2 {
            let new = ["enqueue", "deploy", "--state", "1"];
            db.json(&[&new[..], &words].concat());
        }
    }
    let cycle: Cycle = "30 2 * * * [Europe/Madrid]".parse().unwrap();
    Engine::builder(client.pool().clone(), ())
        .register::<Note>()
        .schedule("nightly", cycle, |_| note("x"))
        .project(Till::<1>(db.schema.clone()))
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_and_the_http_api_show_the_same_keys() {
    let (db, client) = TestSchema::migrated().await;
    let engine = prepared(&db, &client).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    client
        .sync::<Till<1>>("acme", 1, gen_durable::MINUTE)
        .await
        .unwrap();
    let is_placed = || {
        let (lanes, partitions) = (db.json(&["lanes"]), db.json(&["partitions"]));
        lanes[0]["head"].is_object() && partitions[0]["holder"].is_object()
    };
    while !is_placed() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let serving = Serving::start(&db, &["--listen", "127.0.0.1:0"], false);
    let http = |path: &str| -> Value {
        let (status, body) = serving.ask("GET", &format!("/api/v1/{path}"), None);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    };
    for (command, path) in [
        ("queues", "queues"),
        ("workers", "workers"),
        ("lanes", "lanes"),
        ("partitions", "partitions"),
        ("schedules", "schedules"),
        ("projections", "projections"),
    ] {
        let (printed, returned) = (db.json(&[command]), http(path));
        assert_ne!(printed, json!([]), "{command}");
        assert_eq!(shape(&printed), shape(&returned[path]), "{command}");
    }
    let (printed, returned) = (db.json(&["audit"]), http("audit"));
    assert_eq!(shape(&printed), shape(&returned["acts"]));
    let (printed, returned) = (db.json(&["timers"]), http("timers"));
    assert_eq!(
        shape(&printed["timers"][0]),
        shape(&without(&returned["timers"][0], &["may_cancel"]))
    );

    let (printed, returned) = (db.json(&["ls"]), http("instances"));
    assert_eq!(printed, returned);
    assert_eq!(
        db.json(&["ls", "--limit", "2"]),
        http("instances?limit=2"),
        "with a cursor"
    );
    // A list contains a part of the columns, with the same values.
    let listed = &printed["instances"][0];
    let id = listed["id"].as_str().unwrap();
    let shown = db.json(&["show", id]);
    for (name, value) in listed.as_object().unwrap() {
        assert_eq!(shown.get(name), Some(value), "{name}");
    }
    let returned = http(&format!("instances/{id}"));
    let more = ["payloads_hidden", "ancestors"];
    let shown_more = ["signals", "children", "history", "history_before"];
    assert_eq!(without(&returned, &more), without(&shown, &shown_more));
    let (printed, returned) = (
        db.json(&["explain", id]),
        http(&format!("instances/{id}/explain")),
    );
    assert_eq!(shape(&printed), shape(&returned));
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
