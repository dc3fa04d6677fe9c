//! Projections over HTTP: how they do, what is asked for, and what a worker makes of it.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::{
    support::{Desk, eventually},
    till::{Clerk, GATE, sell},
};

/// With a worker that has caught up.
async fn open() -> (Desk, Clerk) {
    let desk = Desk::new().await;
    sell(&desk.client).await;
    let clerk = Clerk::hire(&desk).await;
    eventually("all is applied", async || {
        let all = desk.read("/api/v1/projections").await;
        let all = all["projections"].as_array().unwrap();
        all.len() == 3 && all.iter().all(|one| one["lag"] == 0)
    })
    .await;
    (desk, clerk)
}

/// Ask for a run, and wait for its end.
async fn run(desk: &Desk, what: &str, body: Value) -> Value {
    let asked = desk
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
    eventually("the run is over", async || {
        desk.read(&path).await["is_over"] == true
    })
    .await;
    desk.read(&path).await
}

#[tokio::test]
async fn projections_are_listed_with_health_and_lag_page_by_page() {
    let (desk, clerk) = open().await;
    let all = desk.read("/api/v1/projections").await;
    let first = &all["projections"][1];
    assert_eq!(
        (&first["projection"], &first["tenant"]),
        (&json!("till"), &json!("acme"))
    );
    assert_eq!(
        (&first["position"], &first["height"], &first["health"]),
        (&json!(40), &json!(40), &json!("up to date"))
    );
    assert_eq!(first["served"], true, "{first}");
    let mut tenants = Vec::new();
    let mut next = String::new();
    loop {
        let page = desk
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
        "the tenant without a name is one like any other"
    );
    // An empty tenant is that one, not all.
    let nameless = desk.read("/api/v1/projections?tenant=").await;
    assert_eq!(
        nameless["projections"].as_array().unwrap().len(),
        1,
        "{nameless}"
    );
    let failures = desk
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
            .contains("less than nothing"),
        "{failure}"
    );
    assert!(
        !failures.to_string().contains("hunter2"),
        "a secret is shown: {failures}"
    );
    clerk.dismiss().await;
    let gone = desk.read("/api/v1/projections/till?tenant=acme").await;
    assert_eq!(
        gone["projections"][0]["served"], false,
        "nobody is there for it any more"
    );
}

#[tokio::test]
async fn a_rebuild_is_asked_for_here_and_done_by_a_worker_with_progress() {
    let (desk, clerk) = open().await;
    desk.client.pause(GATE, "the test").await.unwrap();
    let asked = desk
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
    eventually("it is half-way", async || {
        desk.read(&path).await["position"] == 20
    })
    .await;
    let half = desk.read(&path).await;
    assert_eq!(
        (&half["target"], &half["status"], &half["equal"]),
        (&json!(40), &json!("running"), &Value::Null)
    );
    // One at a time.
    let second = desk
        .post("/api/v1/projections/till/verify", r#"{"tenant": "acme"}"#)
        .await;
    assert_eq!(
        (second.status, &second.json()["code"]),
        (StatusCode::CONFLICT, &json!("taken")),
        "{}",
        second.text
    );
    desk.client.resume(GATE).await.unwrap();
    eventually("it is over", async || {
        desk.read(&path).await["is_over"] == true
    })
    .await;
    let over = desk.read(&path).await;
    assert_eq!(
        (&over["status"], &over["equal"]),
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
    let scope = desk.read("/api/v1/projections/till?tenant=acme").await;
    assert_eq!(
        scope["projections"][0]["generation"], 2,
        "readers see the new rows"
    );
    clerk.dismiss().await;
}

#[tokio::test]
async fn a_verification_says_whether_they_are_equal_or_how_they_differ() {
    let (desk, clerk) = open().await;
    let equal = run(&desk, "verify", json!({"tenant": "acme"})).await;
    assert_eq!(
        (&equal["status"], &equal["equal"]),
        (&json!("done"), &json!(true)),
        "{equal}"
    );
    desk.sql("update SCHEMA.till set cents = 0 where tenant = 'acme' and position = 7")
        .await;
    let differs = run(&desk, "verify", json!({"tenant": "acme"})).await;
    assert_eq!(differs["equal"], false, "{differs}");
    assert!(
        differs["verdict"]
            .as_str()
            .unwrap()
            .starts_with("differs at position 40"),
        "{differs}"
    );
    // Nothing is swapped that differs, unless that is said.
    let refused = run(&desk, "rebuild", json!({"tenant": "acme"})).await;
    assert_eq!(refused["status"], "failed", "{refused}");
    let anyway = run(&desk, "rebuild", json!({"tenant": "acme", "anyway": true})).await;
    assert_eq!(anyway["status"], "done", "{anyway}");
    let in_place = run(
        &desk,
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
        &desk,
        "replay",
        json!({"tenant": "", "after": 4, "up_to": 5}),
    )
    .await;
    assert_eq!(replayed["status"], "done", "{replayed}");
    let runs = desk
        .read("/api/v1/projection_runs?projection=till&tenant=acme&limit=3")
        .await;
    assert_eq!(runs["runs"].as_array().unwrap().len(), 3);
    let rest = desk
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
    clerk.dismiss().await;
}

#[tokio::test]
async fn what_nobody_is_there_for_waits_and_can_be_cancelled() {
    let (desk, clerk) = open().await;
    clerk.dismiss().await;
    let asked = desk
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
        desk.read(&format!("/api/v1/projection_runs/{id}")).await["status"],
        "pending"
    );
    let path = format!("/api/v1/projection_runs/{id}/cancel");
    assert_eq!(
        desk.post(&path, r#"{"why": "no need"}"#).await.json()["cancelled"],
        true
    );
    assert_eq!(desk.post(&path, "{}").await.json()["cancelled"], false);
    assert_eq!(
        desk.read(&format!("/api/v1/projection_runs/{id}")).await["error"],
        "no need"
    );
    assert_eq!(
        desk.post("/api/v1/projection_runs/999/cancel", "{}")
            .await
            .status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_parked_event_is_tried_again_and_a_halted_scope_goes_on() {
    let (desk, clerk) = open().await;
    let redrive = "/api/v1/projections/till/redrive";
    assert_eq!(
        desk.post(redrive, r#"{"tenant": "odd", "position": 1}"#)
            .await
            .json()["tried_again"],
        0
    );
    assert_eq!(
        desk.post(redrive, r#"{"tenant": "odd", "position": 2}"#)
            .await
            .json()["tried_again"],
        1
    );
    eventually("it has failed again", async || {
        let failures = desk.read("/api/v1/projection_failures").await;
        failures["failures"][0]["attempts"] == 2
    })
    .await;
    let retry = "/api/v1/projections/till/retry";
    assert_eq!(
        desk.post(retry, r#"{"tenant": "acme"}"#).await.json()["goes_on"],
        false
    );
    clerk.dismiss().await;
    desk.sql(
        "update SCHEMA.projections set status = 'halted', last_error = 'x' where tenant = 'acme'",
    )
    .await;
    assert_eq!(
        desk.read("/api/v1/projections/till?tenant=acme").await["projections"][0]["health"],
        "halted"
    );
    assert_eq!(
        desk.post(retry, r#"{"tenant": "acme"}"#).await.json()["goes_on"],
        true
    );
    let acts = desk.read("/api/v1/audit").await;
    let acts: Vec<&str> = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| act["act"].as_str().unwrap())
        .collect();
    assert_eq!(
        acts,
        ["retry projection", "retry projection", "redrive", "redrive"]
    );
}

#[tokio::test]
async fn bad_input_is_refused_with_a_sentence() {
    let desk = Desk::new().await;
    let long = "x".repeat(201);
    for (path, body) in [
        ("nothing/verify", r#"{"tenant": "acme"}"#),
        ("a%00b/verify", "{}"),
        ("a%00b/retry", "{}"),
        ("a%00b/redrive", "{}"),
        ("till/verify", r#"{"tenant": "a\u0000b"}"#),
        ("till/redrive", r#"{"tenant": "a\u0000b"}"#),
        ("till/rebuild", r#"{"in_place": true, "anyway": true}"#),
        ("till/rebuild", r#"{"inplace": true}"#),
        ("till/replay", r#"{"after": -1}"#),
        ("till/replay", r#"{"after": 9, "up_to": 3}"#),
        ("till/replay", r#"{"after": 1e99}"#),
        (&format!("{long}/verify"), "{}"),
    ] {
        let answer = desk
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
        let answer = desk.get(path).await;
        assert!(
            answer.status.is_client_error(),
            "{path}: {} {}",
            answer.status,
            answer.text
        );
    }
}
