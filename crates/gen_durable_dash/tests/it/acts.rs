//! Acts: on one, on many, on queues; and the record of them.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Desk, Parcel, Running, eventually};

#[tokio::test]
async fn a_failed_instance_is_found_explained_retried_and_seen_to_end() {
    let desk = Desk::new().await;
    let running = Running::start(&desk.client);
    let id = desk
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
        eventually(wanted, async || desk.read(&path).await["status"] == wanted).await;
    };
    status("awaiting_signal").await;
    assert_eq!(
        desk.post(
            &format!("{path}/signal"),
            r#"{"name": "go", "payload": {"well": false}}"#
        )
        .await
        .status,
        StatusCode::OK
    );
    status("failed").await;
    eventually("it is among the failures", async || {
        let failures = desk.read("/api/v1/failures").await;
        let all = failures["failures"].as_array().unwrap();
        all.iter().any(|group| {
            group["machine"] == "parcel" && group["fingerprint"] == "no van for # of #"
        })
    })
    .await;
    let why = desk.read(&format!("{path}/explain")).await;
    assert!(
        why["blockers"][0]["text"]
            .as_str()
            .unwrap()
            .contains("no van for 4 of 17"),
        "{why}"
    );
    let again = desk
        .post(&format!("{path}/retry"), r#"{"step": "pack"}"#)
        .await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.text);
    status("awaiting_signal").await;
    assert_eq!(
        desk.post(
            &format!("{path}/signal"),
            r#"{"name": "go", "payload": {"well": true}}"#
        )
        .await
        .status,
        StatusCode::OK
    );
    status("done").await;
    assert_eq!(desk.read(&path).await["result"], "vase");
    // What has settled well is not run again, and says so.
    let refused = desk.post(&format!("{path}/retry"), "{}").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .contains("is done"),
        "{}",
        refused.text
    );
    let late = desk
        .post(&format!("{path}/signal"), r#"{"name": "go"}"#)
        .await;
    assert_eq!(
        (late.status, &late.json()["code"]),
        (StatusCode::CONFLICT, &json!("no_target"))
    );
    let acts = desk.read("/api/v1/audit").await;
    let acts: Vec<&str> = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| act["act"].as_str().unwrap())
        .collect();
    assert_eq!(acts, ["signal", "retry", "signal", "retry", "signal"]);
    running.stop().await;
}

#[tokio::test]
async fn an_instance_is_enqueued_and_cancelled_by_name() {
    let desk = Desk::new().await;
    let new = json!({"machine": "parcel", "step": "pack", "state": {"name": "x"}, "queue": "slow", "key": "k-1", "after_seconds": 3600});
    let made = desk.post("/api/v1/instances", &new.to_string()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let again = desk.post("/api/v1/instances", &new.to_string()).await;
    assert_eq!(
        (again.status, &again.json()["id"]),
        (StatusCode::OK, &made.json()["id"])
    );
    let path = format!("/api/v1/instances/{}", made.json()["id"].as_str().unwrap());
    let why = desk.read(&format!("{path}/explain")).await;
    let kinds: Vec<&Value> = why["blockers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|blocker| &blocker["kind"])
        .collect();
    assert_eq!(kinds, ["queue_not_worked", "not_due"]);
    let cancelled = desk
        .post(&format!("{path}/cancel"), r#"{"why": "a mistake"}"#)
        .await;
    assert_eq!(cancelled.json()["cancelled"], true);
    assert_eq!(
        desk.post(&format!("{path}/cancel"), "{}").await.json()["cancelled"],
        false
    );
    assert_eq!(desk.read(&path).await["error"], "a mistake");
    for wrong in [
        r#"{"machine": "", "step": "s"}"#,
        r#"{"machine": "m"}"#,
        r#"{"machine": "m", "step": "s", "state": "#,
        r#"{"machine": "m", "step": "s", "after_seconds": -1}"#,
        r#"{"machine": "m", "step": "s", "after_seconds": 1e300}"#,
        r#"{"machine": "m", "step": "s", "at": "soon"}"#,
        r#"{"machine": "m", "step": "s", "priority": 99999}"#,
        r#"{"machine": "m", "step": "s", "state": "\u0000"}"#,
        r#"{"machine": "m", "step": "s", "scope": "x"}"#,
        r#"{"machine": "m", "step": "s", "unknown": 1}"#,
    ] {
        let answer = desk.post("/api/v1/instances", wrong).await;
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
        desk.post("/api/v1/instances", &large).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed() {
    let desk = Desk::new().await;
    assert_eq!(
        desk.post("/api/v1/queues/mail/pause", "").await.status,
        StatusCode::OK
    );
    let queues = desk.read("/api/v1/queues").await;
    assert_eq!(
        (
            &queues["queues"][0]["name"],
            &queues["queues"][0]["paused_by"]
        ),
        (&json!("mail"), &json!("operator token"))
    );
    assert_eq!(
        desk.post("/api/v1/queues/mail/resume", "").await.json()["was_paused"],
        true
    );
    assert_eq!(
        desk.post("/api/v1/queues/mail/resume", "").await.json()["was_paused"],
        false
    );
    let long = "q".repeat(64);
    assert_eq!(
        desk.post(&format!("/api/v1/queues/{long}/pause"), "")
            .await
            .status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
}

async fn plant_failures(desk: &Desk, count: i64) {
    desk.sql(&format!(
        "insert into SCHEMA.instances (fsm, step, state, status, finished_at, last_error)
         select 'order', 'charge', '{{}}', 'failed', statement_timestamp(), case g % 2 when 0 then 'card ' || g || ' declined' else 'bank away' end
         from generate_series(1, {count}) g"
    ))
    .await;
}

#[tokio::test]
async fn many_are_retried_after_a_look_with_progress_and_only_those_that_were_meant() {
    let desk = Desk::new().await;
    plant_failures(&desk, 500).await;
    let many = json!({"act": "retry", "filter": {"status": "failed", "machine": "order"}, "fingerprint": "card # declined"});
    let preview = desk
        .post("/api/v1/bulk/preview", &many.to_string())
        .await
        .json();
    assert_eq!(
        (&preview["count"], &preview["is_all"]),
        (&json!(250), &json!(true)),
        "{preview}"
    );
    let mut go = many.clone();
    assert_eq!(
        desk.post("/api/v1/bulk", &go.to_string()).await.status,
        StatusCode::BAD_REQUEST,
        "it needs a count"
    );
    go["expect"] = json!(200);
    let grown = desk.post("/api/v1/bulk", &go.to_string()).await;
    assert_eq!(
        (grown.status, &grown.json()["count"]),
        (StatusCode::CONFLICT, &json!(250))
    );
    go["expect"] = json!(250);
    let begun = desk.post("/api/v1/bulk", &go.to_string()).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text);
    let path = format!("/api/v1/bulk/{}", begun.json()["id"].as_str().unwrap());
    eventually("it is over", async || {
        desk.read(&path).await["is_over"] == true
    })
    .await;
    let over = desk.read(&path).await;
    assert_eq!(
        (&over["done"], &over["refused"]),
        (&json!(250), &json!(0)),
        "{over}"
    );
    let left = desk.read("/api/v1/instances?status=failed&limit=200").await;
    let texts: Vec<&str> = left["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["error"].as_str().unwrap())
        .collect();
    assert!(texts.iter().all(|text| *text == "bank away"), "{texts:?}");
    // Nobody retries or cancels "everything".
    for wrong in [
        json!({"act": "retry", "filter": {}}),
        json!({"act": "retry", "filter": {"status": "done"}}),
        json!({"act": "cancel", "filter": {"status": "failed"}}),
    ] {
        assert_eq!(
            desk.post("/api/v1/bulk/preview", &wrong.to_string())
                .await
                .status,
            StatusCode::BAD_REQUEST,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn an_act_on_many_stops_when_it_is_told_to() {
    let desk = Desk::new().await;
    plant_failures(&desk, 9_000).await;
    let go = json!({"act": "retry", "filter": {"status": "failed"}, "expect": 9_000});
    let begun = desk.post("/api/v1/bulk", &go.to_string()).await.json();
    let path = format!("/api/v1/bulk/{}", begun["id"].as_str().unwrap());
    desk.post(&format!("{path}/stop"), "").await;
    eventually("it is over", async || {
        desk.read(&path).await["is_over"] == true
    })
    .await;
    let over = desk.read(&path).await;
    assert!(over["done"].as_u64().unwrap() < 9_000, "{over}");
    assert_eq!(over["is_stopped"], true);
}
