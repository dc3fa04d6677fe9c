//! Tests the operator actions on one instance, on many instances and on queues, and the audit
//! records of these actions.

use axum::{Router, http::StatusCode};
use gen_durable::{
    Client,
    inspect::Status,
    operate::{BulkConditions, BulkKind, BulkState, NewBulkAction},
};
use gen_durable_dash::{Access, Options};
use serde_json::{Value, json};

use crate::support::{OPERATOR, Parcel, Running, TestServer, eventually, schema};

#[tokio::test]
async fn a_failed_instance_is_listed_with_its_error_and_is_done_after_an_operators_retry() {
    let server = TestServer::new().await;
    let running = Running::start(&server.client);
    let id = server
        .client
        .enqueue(Parcel {
            name: "vase".into(),
            password: String::new(),
        })
        .await
        .unwrap()
        .id;
    let path = format!("/api/v1/instances/{id}");
    let status = async |wanted: &str| {
        eventually(wanted, async || {
            server.read(&path).await["status"] == wanted
        })
        .await;
    };
    status("awaiting_signal").await;
    assert_eq!(
        server
            .post(
                &format!("{path}/signal"),
                r#"{"name": "go", "payload": {"well": false}}"#
            )
            .await
            .status,
        StatusCode::OK
    );
    status("failed").await;
    eventually("the instance is among the failures", async || {
        let failures = server.read("/api/v1/failures").await;
        let all = failures["failures"].as_array().unwrap();
        all.iter().any(|group| {
            group["machine"] == "parcel" && group["fingerprint"] == "no van for # of #"
        })
    })
    .await;
    let why = server.read(&format!("{path}/explain")).await;
    assert!(
        why["blockers"][0]["text"]
            .as_str()
            .unwrap()
            .contains("no van for 4 of 17"),
        "{why}"
    );
    let again = server
        .post(&format!("{path}/retry"), r#"{"step": "pack"}"#)
        .await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.text);
    status("awaiting_signal").await;
    assert_eq!(
        server
            .post(
                &format!("{path}/signal"),
                r#"{"name": "go", "payload": {"well": true}}"#
            )
            .await
            .status,
        StatusCode::OK
    );
    status("done").await;
    assert_eq!(server.read(&path).await["result"], "vase");
    // The API rejects the retry of an instance that is done, with an error that names this reason.
    let refused = server.post(&format!("{path}/retry"), "{}").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .contains("is done"),
        "{}",
        refused.text
    );
    let late = server
        .post(&format!("{path}/signal"), r#"{"name": "go"}"#)
        .await;
    assert_eq!(
        (late.status, &late.json()["code"]),
        (StatusCode::CONFLICT, &json!("no_target"))
    );
    let acts = server.read("/api/v1/audit").await;
    let acts: Vec<&str> = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| act["action"].as_str().unwrap())
        .collect();
    assert_eq!(acts, ["signal", "retry", "signal", "retry", "signal"]);
    running.stop().await;
}

#[tokio::test]
async fn a_retry_or_an_enqueue_with_the_key_of_another_instance_is_a_conflict() {
    let server = TestServer::new().await;
    let new = |machine: &str| {
        json!({"machine": machine, "step": "pack", "state": {"name": "x"}, "key": "k-1"})
            .to_string()
    };
    let made = server.post("/api/v1/instances", &new("parcel")).await;
    let path = format!("/api/v1/instances/{}", made.json()["id"].as_str().unwrap());
    let stranger = server.post("/api/v1/instances", &new("letter")).await;
    server.post(&format!("{path}/cancel"), "{}").await;
    let holder = server.post("/api/v1/instances", &new("parcel")).await;
    assert_eq!(holder.status, StatusCode::CREATED, "{}", holder.text);
    let retried = server.post(&format!("{path}/retry"), "{}").await;
    for refused in [stranger, retried] {
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (StatusCode::CONFLICT, &json!("key_taken")),
            "{}",
            refused.text
        );
    }
}

#[tokio::test]
async fn an_operator_enqueues_an_instance_by_machine_name_and_cancels_it_by_id() {
    let server = TestServer::new().await;
    let new = json!({"machine": "parcel", "step": "pack", "state": {"name": "x"}, "queue": "slow", "key": "k-1", "delay_seconds": 3600});
    let made = server.post("/api/v1/instances", &new.to_string()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let again = server.post("/api/v1/instances", &new.to_string()).await;
    assert_eq!(
        (again.status, &again.json()["id"]),
        (StatusCode::OK, &made.json()["id"])
    );
    let path = format!("/api/v1/instances/{}", made.json()["id"].as_str().unwrap());
    let why = server.read(&format!("{path}/explain")).await;
    let kinds: Vec<&Value> = why["blockers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|blocker| &blocker["kind"])
        .collect();
    assert_eq!(kinds, ["queue_not_worked", "not_due"]);
    let cancelled = server
        .post(&format!("{path}/cancel"), r#"{"why": "a mistake"}"#)
        .await;
    assert_eq!(cancelled.json()["cancelled"], true);
    assert_eq!(
        server.post(&format!("{path}/cancel"), "{}").await.json()["cancelled"],
        false
    );
    assert_eq!(server.read(&path).await["last_error"], "a mistake");
    for wrong in [
        r#"{"machine": "", "step": "s"}"#,
        r#"{"machine": "m"}"#,
        r#"{"machine": "m", "step": "s", "state": "#,
        r#"{"machine": "m", "step": "s", "delay_seconds": -1}"#,
        r#"{"machine": "m", "step": "s", "delay_seconds": 1e300}"#,
        r#"{"machine": "m", "step": "s", "due_at": "soon"}"#,
        r#"{"machine": "m", "step": "s", "priority": 99999}"#,
        r#"{"machine": "m", "step": "s", "state": "\u0000"}"#,
        r#"{"machine": "m", "step": "s", "scope": "x"}"#,
        r#"{"machine": "m", "step": "s", "unknown": 1}"#,
    ] {
        let answer = server.post("/api/v1/instances", wrong).await;
        assert!(
            answer.status.is_client_error(),
            "{wrong}: {} {}",
            answer.status,
            answer.text
        );
        assert_eq!(answer.headers["content-type"], "application/problem+json");
    }
    let large = format!(
        r#"{{"machine": "m", "step": "s", "state": "{}"}}"#,
        "x".repeat(2_000_000)
    );
    assert_eq!(
        server.post("/api/v1/instances", &large).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
}

#[tokio::test]
async fn an_operator_pauses_and_resumes_a_queue_over_http() {
    let server = TestServer::new().await;
    assert_eq!(
        server.post("/api/v1/queues/mail/pause", "").await.status,
        StatusCode::OK
    );
    let queues = server.read("/api/v1/queues").await;
    assert_eq!(
        (
            &queues["queues"][0]["name"],
            &queues["queues"][0]["paused_by"]
        ),
        (&json!("mail"), &json!("operator token"))
    );
    assert_eq!(
        server.post("/api/v1/queues/mail/resume", "").await.json()["was_paused"],
        true
    );
    assert_eq!(
        server.post("/api/v1/queues/mail/resume", "").await.json()["was_paused"],
        false
    );
    let long = "q".repeat(64);
    assert_eq!(
        server
            .post(&format!("/api/v1/queues/{long}/pause"), "")
            .await
            .status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
}

async fn plant_failures(server: &TestServer, count: i64) {
    server.sql(&format!(
        "insert into SCHEMA.instances (machine, step, state, status, settled_at, last_error)
         select 'order', 'charge', '{{}}', 'failed', statement_timestamp(), case g % 2 when 0 then 'card ' || g || ' declined' else 'bank away' end
         from generate_series(1, {count}) g"
    ))
    .await;
}

#[tokio::test]
async fn a_bulk_retry_needs_the_count_of_its_preview_and_retries_only_matching_instances() {
    let server = TestServer::new().await;
    plant_failures(&server, 500).await;
    let many = json!({"kind": "retry", "filter": {"status": "failed", "machine": "order", "error_group": "card # declined"}});
    let preview = server
        .post("/api/v1/bulk/preview", &many.to_string())
        .await
        .json();
    assert_eq!(
        (&preview["count"], &preview["is_exact"]),
        (&json!(250), &json!(true)),
        "{preview}"
    );
    let mut go = many.clone();
    assert_eq!(
        server.post("/api/v1/bulk", &go.to_string()).await.status,
        StatusCode::BAD_REQUEST,
        "expect is required"
    );
    go["expect"] = json!(200);
    let grown = server.post("/api/v1/bulk", &go.to_string()).await;
    assert_eq!(
        (grown.status, &grown.json()["count"]),
        (StatusCode::CONFLICT, &json!(250))
    );
    go["expect"] = json!(250);
    let begun = server.post("/api/v1/bulk", &go.to_string()).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text);
    let path = format!("/api/v1/bulk/{}", begun.json()["id"].as_str().unwrap());
    eventually("the bulk retry has ended", async || {
        server.read(&path).await["state"] != "running"
    })
    .await;
    let over = server.read(&path).await;
    assert_eq!(
        (&over["changed"], &over["refused"]),
        (&json!(250), &json!(0)),
        "{over}"
    );
    let left = server
        .read("/api/v1/instances?status=failed&limit=200")
        .await;
    let texts: Vec<&str> = left["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["last_error"].as_str().unwrap())
        .collect();
    assert!(texts.iter().all(|text| *text == "bank away"), "{texts:?}");
    // The API rejects a bulk action if its filter has no status, a status that does not allow the
    // action, or an order.
    for wrong in [
        json!({"kind": "retry", "filter": {}}),
        json!({"kind": "retry", "filter": {"status": "done"}}),
        json!({"kind": "cancel", "filter": {"status": "failed"}}),
        json!({"kind": "retry", "filter": {"status": "failed", "before": "7"}}),
        json!({"kind": "retry", "filter": {"status": "failed", "sort": "oldest"}}),
    ] {
        assert_eq!(
            server
                .post("/api/v1/bulk/preview", &wrong.to_string())
                .await
                .status,
            StatusCode::BAD_REQUEST,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn a_bulk_retry_that_an_operator_stops_leaves_the_remaining_instances_failed() {
    let server = TestServer::new().await;
    plant_failures(&server, 9_000).await;
    let go = json!({"kind": "retry", "filter": {"status": "failed"}, "expect": 9_000});
    let begun = server.post("/api/v1/bulk", &go.to_string()).await.json();
    let path = format!("/api/v1/bulk/{}", begun["id"].as_str().unwrap());
    server.post(&format!("{path}/stop"), "").await;
    eventually("the bulk retry has ended", async || {
        server.read(&path).await["state"] != "running"
    })
    .await;
    let over = server.read(&path).await;
    assert!(over["changed"].as_u64().unwrap() < 9_000, "{over}");
    assert_eq!(over["state"], "stopped");
}

#[tokio::test]
async fn a_dashboard_that_starts_continues_a_bulk_action_that_a_stopped_dashboard_has_left() {
    let client = Client::new(schema().await);
    let server = TestServer {
        router: Router::new(),
        client: client.clone(),
    };
    plant_failures(&server, 12_000).await;
    let operate = client.operate();
    let new = NewBulkAction::new(
        BulkKind::Retry,
        BulkConditions::new(Status::Failed),
        "ann",
        "dashboard",
    );
    let id = operate.begin_bulk(new).await.unwrap().id;
    let mut stopped = operate.bulk_runner();
    assert_eq!(stopped.take().await.unwrap(), Some(id));
    assert!(stopped.run_page().await.unwrap());
    drop(stopped);
    server
        .sql("update SCHEMA.bulk_actions set leased_until = statement_timestamp() - interval '1 s'")
        .await;
    let access = Access::tokens(OPERATOR, None).unwrap();
    let router = gen_durable_dash::router(client.clone(), access, Options::new()).unwrap();
    let server = TestServer { client, router };
    eventually("the bulk action has ended", async || {
        let bulk = server.client.inspect().bulk_action(id).await.unwrap();
        bulk.is_some_and(|bulk| bulk.state == BulkState::Done)
    })
    .await;
    // The number is above the limit of a preview.
    let shown = &server.read("/api/v1/bulk").await["bulks"][0];
    assert_eq!(
        (&shown["changed"], &shown["examined"], &shown["share"]),
        (&json!(12_000), &json!(12_000), &json!(1.0)),
        "{shown}"
    );
    let many = json!({"kind": "cancel", "filter": {"status": "runnable"}});
    let preview = server
        .post("/api/v1/bulk/preview", &many.to_string())
        .await
        .json();
    assert_eq!(
        (&preview["count"], &preview["is_exact"]),
        (&json!(10_000), &json!(false)),
        "{preview}"
    );
}

#[tokio::test]
async fn a_bulk_discard_is_audited_by_the_name_of_the_operator_when_it_begins_and_when_it_ends() {
    let server = TestServer::new().await;
    plant_failures(&server, 4).await;
    let go =
        json!({"kind": "discard", "filter": {"status": "failed", "machine": "order"}, "expect": 4});
    let begun = server.post("/api/v1/bulk", &go.to_string()).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text);
    eventually("the end is recorded", async || {
        let acts = server.read("/api/v1/audit").await;
        let is = |action: &str, subject: &str, outcome: &str| {
            acts["acts"].as_array().unwrap().iter().any(|act| {
                act["action"] == action
                    && act["subject"] == subject
                    && act["outcome"] == outcome
                    && act["actor"] == "operator token"
            })
        };
        is(
            "bulk discard",
            "status failed, machine order",
            "bulk 1: 4 instances",
        ) && is(
            "bulk discard ended",
            "bulk 1",
            "4 changed, 0 refused, 4 examined",
        )
    })
    .await;
    let left = server.read("/api/v1/instances?status=cancelled").await;
    assert_eq!(left["instances"].as_array().unwrap().len(), 4);
    // A step that no live worker knows is accepted without a worker; without a machine it is not.
    let wrong = json!({"kind": "retry", "filter": {"status": "failed"}, "step": "charge"});
    assert_eq!(
        server
            .post("/api/v1/bulk/preview", &wrong.to_string())
            .await
            .status,
        StatusCode::BAD_REQUEST
    );
}
