//! Tests projections over HTTP: their progress, the operator actions on them, and the runs that a
//! worker executes.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::{
    support::{TestServer, eventually},
    till::{GATE, TillWorker, sell},
};

/// Starts a dashboard server and a worker, and waits until the worker has applied all events to the
/// projection.
async fn open() -> (TestServer, TillWorker) {
    let server = TestServer::new().await;
    sell(&server.client).await;
    let worker = TillWorker::start(&server).await;
    eventually("all events are applied", async || {
        let all = server.read("/api/v1/projections").await;
        let all = all["projections"].as_array().unwrap();
        all.len() == 3 && all.iter().all(|one| one["lag"] == 0)
    })
    .await;
    (server, worker)
}

/// Requests a run of the projection over HTTP and waits until a worker has ended the run.
async fn run(server: &TestServer, what: &str, body: Value) -> Value {
    let asked = server
        .post(
            &format!("/api/v1/projections/till/{what}"),
            &body.to_string(),
        )
        .await;
    assert_eq!(asked.status, StatusCode::ACCEPTED, "{}", asked.text);
    assert_eq!(asked.json()["served"], true, "{}", asked.text);
    let path = format!(
        "/api/v1/projection_runs/{}",
        asked.json()["run"]["id"].as_str().unwrap()
    );
    eventually("the run has ended", async || {
        server.read(&path).await["is_over"] == true
    })
    .await;
    server.read(&path).await
}

#[tokio::test]
async fn the_api_lists_projections_page_by_page_with_their_health_and_lag() {
    let (server, worker) = open().await;
    let all = server.read("/api/v1/projections").await;
    let first = &all["projections"][1];
    assert_eq!(
        (&first["projection"], &first["tenant"]),
        (&json!("till"), &json!("acme"))
    );
    assert_eq!(
        (&first["position"], &first["log_position"], &first["health"]),
        (&json!(40), &json!(40), &json!("up to date"))
    );
    assert_eq!(first["served"], true, "{first}");
    let mut tenants = Vec::new();
    let mut next = String::new();
    loop {
        let page = server
            .read(&format!("/api/v1/projections/till?limit=1{next}"))
            .await;
        let rows = page["projections"].as_array().unwrap();
        tenants.extend(
            rows.iter()
                .map(|row| row["tenant"].as_str().unwrap().to_owned()),
        );
        let Some(after) = page["next"].as_str() else {
            break;
        };
        next = format!(
            "&after={}",
            after
                .replace('"', "%22")
                .replace('[', "%5B")
                .replace(']', "%5D")
        );
    }
    assert_eq!(
        tenants,
        ["", "acme", "odd"],
        "the tenant with the empty name is listed too"
    );
    // An empty `tenant` in the query selects the tenant with the empty name, not all tenants.
    let nameless = server.read("/api/v1/projections?tenant=").await;
    assert_eq!(
        nameless["projections"].as_array().unwrap().len(),
        1,
        "{nameless}"
    );
    let failures = server
        .read("/api/v1/projection_failures?projection=till&tenant=odd")
        .await;
    let failure = &failures["failures"][0];
    assert_eq!(
        (&failure["position"], &failure["state"], &failure["event"]),
        (&json!(2), &json!("parked"), &json!("sold"))
    );
    assert!(
        failure["error"]
            .as_str()
            .unwrap()
            .contains("must not be negative"),
        "{failure}"
    );
    assert!(
        !failures.to_string().contains("hunter2"),
        "a secret is shown: {failures}"
    );
    worker.stop().await;
    let gone = server.read("/api/v1/projections/till?tenant=acme").await;
    assert_eq!(
        gone["projections"][0]["served"], false,
        "no live worker registers it"
    );
}

#[tokio::test]
async fn a_worker_runs_a_rebuild_that_an_operator_requests_and_reports_its_progress() {
    let (server, worker) = open().await;
    server.client.pause_queue(GATE, "the test").await.unwrap();
    let asked = server
        .post("/api/v1/projections/till/rebuild", r#"{"tenant": "acme"}"#)
        .await
        .json();
    let path = format!(
        "/api/v1/projection_runs/{}",
        asked["run"]["id"].as_str().unwrap()
    );
    assert_eq!(
        (&asked["run"]["kind"], &asked["run"]["requested_by"]),
        (&json!("shadow"), &json!("operator token"))
    );
    eventually("the rebuild is half-way", async || {
        server.read(&path).await["position"] == 20
    })
    .await;
    let half = server.read(&path).await;
    assert_eq!(
        (&half["target"], &half["status"], &half["is_equal"]),
        (&json!(40), &json!("running"), &Value::Null)
    );
    // A scope has only one run at a time, so the API rejects the request for a second run while the
    // first run has not ended.
    let second = server
        .post("/api/v1/projections/till/verify", r#"{"tenant": "acme"}"#)
        .await;
    assert_eq!(
        (second.status, &second.json()["code"]),
        (StatusCode::CONFLICT, &json!("taken")),
        "{}",
        second.text
    );
    server.client.resume_queue(GATE).await.unwrap();
    eventually("the rebuild has ended", async || {
        server.read(&path).await["is_over"] == true
    })
    .await;
    let over = server.read(&path).await;
    assert_eq!(
        (&over["status"], &over["is_equal"]),
        (&json!("done"), &json!(true)),
        "{over}"
    );
    assert!(
        over["verdict"]
            .as_str()
            .unwrap()
            .starts_with("equal at position 40"),
        "{over}"
    );
    let scope = server.read("/api/v1/projections/till?tenant=acme").await;
    assert_eq!(
        scope["projections"][0]["generation"], 2,
        "readers see the new rows"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_verification_run_reports_whether_the_table_equals_a_replay_of_the_log() {
    let (server, worker) = open().await;
    let equal = run(&server, "verify", json!({"tenant": "acme"})).await;
    assert_eq!(
        (&equal["status"], &equal["is_equal"]),
        (&json!("done"), &json!(true)),
        "{equal}"
    );
    server
        .sql("update SCHEMA.till set cents = 0 where tenant = 'acme' and position = 7")
        .await;
    let differs = run(&server, "verify", json!({"tenant": "acme"})).await;
    assert_eq!(differs["is_equal"], false, "{differs}");
    assert!(
        differs["verdict"]
            .as_str()
            .unwrap()
            .starts_with("differs at position 40"),
        "{differs}"
    );
    // A rebuild writes a new generation of rows. The worker does not make it the current generation
    // if the rows differ from those of the current generation, unless `force` is set.
    let refused = run(&server, "rebuild", json!({"tenant": "acme"})).await;
    assert_eq!(refused["status"], "failed", "{refused}");
    let force = run(&server, "rebuild", json!({"tenant": "acme", "force": true})).await;
    assert_eq!(force["status"], "done", "{force}");
    let in_place = run(
        &server,
        "rebuild",
        json!({"tenant": "acme", "in_place": true}),
    )
    .await;
    assert_eq!(
        (&in_place["status"], &in_place["kind"]),
        (&json!("done"), &json!("rebuild")),
        "{in_place}"
    );
    let replayed = run(
        &server,
        "replay",
        json!({"tenant": "", "after": 4, "up_to": 5}),
    )
    .await;
    assert_eq!(replayed["status"], "done", "{replayed}");
    let runs = server
        .read("/api/v1/projection_runs?projection=till&tenant=acme&limit=3")
        .await;
    assert_eq!(runs["runs"].as_array().unwrap().len(), 3);
    let rest = server
        .read(&format!(
            "/api/v1/projection_runs?projection=till&tenant=acme&before={}",
            runs["next"].as_str().unwrap()
        ))
        .await;
    assert_eq!(
        (rest["runs"].as_array().unwrap().len(), &rest["next"]),
        (2, &Value::Null),
        "{rest}"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_projection_run_waits_while_no_worker_registers_it_and_can_be_cancelled() {
    let (server, worker) = open().await;
    worker.stop().await;
    let asked = server
        .post("/api/v1/projections/till/verify", r#"{"tenant": "acme"}"#)
        .await;
    assert_eq!(
        (asked.status, &asked.json()["served"]),
        (StatusCode::ACCEPTED, &json!(false)),
        "{}",
        asked.text
    );
    let id = asked.json()["run"]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        server.read(&format!("/api/v1/projection_runs/{id}")).await["status"],
        "pending"
    );
    let path = format!("/api/v1/projection_runs/{id}/cancel");
    assert_eq!(
        server.post(&path, r#"{"why": "no need"}"#).await.json()["cancelled"],
        true
    );
    assert_eq!(server.post(&path, "{}").await.json()["cancelled"], false);
    assert_eq!(
        server.read(&format!("/api/v1/projection_runs/{id}")).await["error"],
        "no need"
    );
    assert_eq!(
        server
            .post("/api/v1/projection_runs/999/cancel", "{}")
            .await
            .status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn an_operator_redrives_a_parked_event_and_resumes_a_halted_projection() {
    let (server, worker) = open().await;
    let redrive = "/api/v1/projections/till/redrive";
    assert_eq!(
        server
            .post(redrive, r#"{"tenant": "odd", "position": 1}"#)
            .await
            .json()["retried"],
        0
    );
    assert_eq!(
        server
            .post(redrive, r#"{"tenant": "odd", "position": 2}"#)
            .await
            .json()["retried"],
        1
    );
    eventually("the event has failed again", async || {
        let failures = server.read("/api/v1/projection_failures").await;
        failures["failures"][0]["attempts"] == 2
    })
    .await;
    let retry = "/api/v1/projections/till/retry";
    assert_eq!(
        server.post(retry, r#"{"tenant": "acme"}"#).await.json()["resumed"],
        false
    );
    worker.stop().await;
    server.sql(
        "update SCHEMA.projections set status = 'halted', last_error = 'x' where tenant = 'acme'",
    )
    .await;
    assert_eq!(
        server.read("/api/v1/projections/till?tenant=acme").await["projections"][0]["health"],
        "halted"
    );
    assert_eq!(
        server.post(retry, r#"{"tenant": "acme"}"#).await.json()["resumed"],
        true
    );
    let acts = server.read("/api/v1/audit").await;
    let acts: Vec<&str> = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| act["action"].as_str().unwrap())
        .collect();
    assert_eq!(
        acts,
        ["retry projection", "retry projection", "redrive", "redrive"]
    );
}

#[tokio::test]
async fn projection_requests_with_invalid_input_are_rejected_with_an_error_text() {
    let server = TestServer::new().await;
    let long = "x".repeat(201);
    for (path, body) in [
        ("nothing/verify", r#"{"tenant": "acme"}"#),
        ("a%00b/verify", "{}"),
        ("a%00b/retry", "{}"),
        ("a%00b/redrive", "{}"),
        ("till/verify", r#"{"tenant": "a\u0000b"}"#),
        ("till/redrive", r#"{"tenant": "a\u0000b"}"#),
        ("till/rebuild", r#"{"in_place": true, "force": true}"#),
        ("till/rebuild", r#"{"inplace": true}"#),
        ("till/replay", r#"{"after": -1}"#),
        ("till/replay", r#"{"after": 9, "up_to": 3}"#),
        ("till/replay", r#"{"after": 1e99}"#),
        (&format!("{long}/verify"), "{}"),
    ] {
        let answer = server
            .post(&format!("/api/v1/projections/{path}"), body)
            .await;
        assert!(
            answer.status.is_client_error(),
            "{path} {body}: {} {}",
            answer.status,
            answer.text
        );
        assert_eq!(
            answer.headers["content-type"], "application/problem+json",
            "{path}"
        );
    }
    for path in [
        "/api/v1/projections?tenant=a%00b",
        "/api/v1/projections?limit=0",
        "/api/v1/projections?limit=201",
        "/api/v1/projections?after=nonsense",
        "/api/v1/projections?after=%5B%22a%5Cu0000%22,%22b%22%5D",
        "/api/v1/projections?what=1",
        "/api/v1/projections/nothing",
        "/api/v1/projection_runs?tenant=alone",
        "/api/v1/projection_runs?before=x",
        "/api/v1/projection_runs/x",
        "/api/v1/projection_runs/99999999999999999999",
        "/api/v1/projection_failures?tenant=alone",
        "/api/v1/audit?before=x",
        "/api/v1/audit?limit=0",
    ] {
        let answer = server.get(path).await;
        assert!(
            answer.status.is_client_error(),
            "{path}: {} {}",
            answer.status,
            answer.text
        );
    }
}
