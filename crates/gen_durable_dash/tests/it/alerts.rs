//! Tests what the API says about work that does not run, about numbers that are bounds, and about
//! names that no worker knows.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Running, TestServer, eventually};

fn codes(overview: &Value) -> Vec<String> {
    let alerts = overview["alerts"].as_array().unwrap();
    alerts
        .iter()
        .map(|alert| alert["code"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn the_overview_reports_due_work_without_a_worker_and_queues_and_machines_without_a_worker() {
    let server = TestServer::new().await;
    assert_eq!(
        codes(&server.read("/api/v1/overview").await),
        Vec::<String>::new()
    );
    server
        .sql(
            "insert into SCHEMA.instances (machine, step, state, queue, eligible_at)
             select 'ghost', 's', '{}', 'odd', statement_timestamp() - interval '90 min' from generate_series(1, 3)",
        )
        .await;
    eventually("the missing worker is reported", async || {
        let overview = server.read("/api/v1/overview").await;
        let first = &overview["alerts"][0];
        first["code"] == "no_worker"
            && first["severity"] == "critical"
            && first["text"] == "No worker is running: 3 instances are due, the oldest for 90 min."
    })
    .await;
    let running = Running::start(&server.client);
    eventually("the queue and the machine are reported", async || {
        let codes = codes(&server.read("/api/v1/overview").await);
        codes.starts_with(&[
            "queue_without_worker".into(),
            "machine_without_worker".into(),
        ])
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn counts_that_stop_at_a_limit_are_marked_in_the_api_and_in_the_metrics() {
    let server = TestServer::new().await;
    server
        .sql(
            "insert into SCHEMA.instances (machine, step, state, status, settled_at, last_error)
             select case when n % 4 = 0 then 'a' else 'b' end, 's', '{}', 'failed', statement_timestamp(), 'no van'
             from generate_series(1, 10100) n;
             insert into SCHEMA.instances (machine, step, state) select 'a', 's', '{}' from generate_series(1, 10100)",
        )
        .await;
    eventually("the numbers are bounds", async || {
        let overview = server.read("/api/v1/overview").await;
        overview["failures_capped"] == true
            && overview["capped"]
                .as_array()
                .unwrap()
                .contains(&json!("failed"))
    })
    .await;
    let machines = server.read("/api/v1/machines").await;
    assert!(
        machines["capped"]
            .as_array()
            .unwrap()
            .contains(&json!("runnable")),
        "{machines}"
    );
    assert!(
        machines["at"].is_string() && machines["trouble"].is_null(),
        "{machines}"
    );
    assert_eq!(
        server.read("/api/v1/failures").await["failures_capped"],
        true
    );
    let metrics = server.get("/metrics").await.text;
    for line in [
        "durable_instances_capped{status=\"failed\"} 1",
        "durable_queue_due_capped{queue=\"default\"} 1",
        "durable_queue_scheduled_capped{queue=\"default\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn machines_and_steps_that_no_live_worker_knows_are_refused_unless_the_caller_insists() {
    let server = TestServer::new().await;
    let running = Running::start(&server.client);
    eventually("the worker has registered its machines", async || {
        let workers = server.read("/api/v1/workers").await;
        workers["workers"][0]["machines"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    })
    .await;
    let enqueue = async |body: Value| server.post("/api/v1/instances", &body.to_string()).await;
    let refused = enqueue(json!({"machine": "parcle", "step": "pack"})).await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        refused.text
    );
    assert_eq!(refused.json()["code"], "unknown_machine");
    assert!(
        refused.json()["known"]
            .as_array()
            .unwrap()
            .contains(&json!("parcel")),
        "{}",
        refused.text
    );
    let refused = enqueue(json!({"machine": "parcel", "step": "pakc"})).await;
    assert_eq!(refused.json()["code"], "unknown_step", "{}", refused.text);
    assert_eq!(refused.json()["known"], json!(["pack", "send"]));
    let forced = enqueue(json!({"machine": "parcle", "step": "pack", "force": true})).await;
    assert_eq!(forced.status, StatusCode::CREATED, "{}", forced.text);
    let new = enqueue(json!({"machine": "parcel", "step": "pack", "state": {"name": "x"}})).await;
    let path = format!("/api/v1/instances/{}", new.json()["id"].as_str().unwrap());
    assert_eq!(
        server.post(&format!("{path}/cancel"), "{}").await.status,
        StatusCode::OK
    );
    let retry = async |body: Value| {
        server
            .post(&format!("{path}/retry"), &body.to_string())
            .await
    };
    let refused = retry(json!({"step": "nosuchstep"})).await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        refused.text
    );
    assert_eq!(
        server.read(&path).await["status"],
        "cancelled",
        "nothing was done"
    );
    assert_eq!(retry(json!({"step": "pack"})).await.status, StatusCode::OK);
    let machine = server.read("/api/v1/machines/parcel").await;
    for step in ["pack", "send"] {
        assert!(
            machine["steps"][step].is_object(),
            "the page offers the step {step}: {machine}"
        );
    }
    running.stop().await;
}

/// A dashboard that has not read the database must not show that there is nothing.
#[tokio::test]
async fn machines_and_failures_are_errors_and_not_empty_while_the_database_has_not_answered() {
    let server = TestServer::new().await;
    server
        .sql("alter schema SCHEMA rename to SCHEMA_lost")
        .await;
    for path in [
        "/api/v1/machines",
        "/api/v1/failures",
        "/api/v1/machines/parcel",
    ] {
        let answer = server.get(path).await;
        assert_eq!(
            answer.status,
            StatusCode::SERVICE_UNAVAILABLE,
            "{path}: {}",
            answer.text
        );
    }
    let overview = server.read("/api/v1/overview").await;
    assert!(
        overview["at"].is_null() && overview["trouble"].is_string(),
        "{overview}"
    );
    assert!(overview["trouble_since"].is_string(), "{overview}");
    server
        .sql("alter schema SCHEMA_lost rename to SCHEMA")
        .await;
    eventually("the numbers are back", async || {
        let overview = server.read("/api/v1/overview").await;
        overview["at"].is_string() && overview["trouble_since"].is_null()
    })
    .await;
}

#[tokio::test]
async fn the_audit_record_of_a_bulk_action_names_the_filter_and_the_error_group() {
    let server = TestServer::new().await;
    server
        .sql(
            "insert into SCHEMA.instances (machine, step, state, status, settled_at, last_error)
             select 'order', 'reserve', '{}', 'failed', statement_timestamp(), 'order ' || n || ' not found' from generate_series(1, 3) n",
        )
        .await;
    let many = json!({"kind": "retry", "filter": {"status": "failed", "machine": "order", "step": "reserve",
        "error_group": "order # not found"}, "expect": 3});
    let begun = server.post("/api/v1/bulk", &many.to_string()).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text);
    eventually("the action is recorded", async || {
        let acts = server.read("/api/v1/audit").await;
        acts["acts"].as_array().unwrap().iter().any(|act| {
            act["action"] == "bulk retry"
                && act["subject"]
                    == "status failed, machine order, step reserve, error group order # not found"
                && act["outcome"] == "bulk 1: 3 instances"
        })
    })
    .await;
}
