//! Tests that the HTTP API lists, forecasts and cancels timers, and pauses, resumes, runs and
//! changes schedules.

use axum::http::StatusCode;
use gen_durable::{Address, Id, schedule::Timestamp};
use serde_json::{Value, json};

use crate::support::{Chime, READER, Running, TestServer, eventually};

/// Inserts `each` sleeps, deadlines and repeating timers, one minute apart, beginning now.
async fn plant(server: &TestServer, each: u32) {
    server.sql(&format!(
        "insert into SCHEMA.instances (machine, step, state, queue, eligible_at)
         select 'nap', 'wake', '{{}}', 'q' || g % 3, statement_timestamp() + g * interval '1 min' from generate_series(1, {each}) g;
         insert into SCHEMA.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
         select 'wish', 'hope', '{{}}', 'awaiting_signal', array['go'], statement_timestamp() + g * interval '1 min', 'despair'
         from generate_series(1, {each}) g;
         insert into SCHEMA.timers (instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance)
         select id, 0, deadline_at - interval '1 s', statement_timestamp(), 'R/PT1M', 'latest', '{{\"machine\": \"remind\"}}'
         from SCHEMA.instances where status = 'awaiting_signal'"
    ))
    .await;
}

fn names(answer: &Value) -> Vec<String> {
    let timers = answer["timers"].as_array().unwrap();
    timers
        .iter()
        .map(|timer| {
            format!(
                "{} {} {}",
                timer["kind"], timer["instance_id"], timer["due_at"]
            )
        })
        .collect()
}

#[tokio::test]
async fn the_api_lists_timers_page_by_page_and_forecasts_how_many_become_due() {
    let server = TestServer::new().await;
    plant(&server, 30).await;
    // The test inserts twenty waits with the same deadline. The cursor of a page of timers must
    // distinguish them.
    server.sql("insert into SCHEMA.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
              select 'wish', 'hope', '{}', 'awaiting_signal', array['go'], date_trunc('hour', statement_timestamp()) - interval '1 d', 'despair' from generate_series(1, 20)").await;
    for (which, count) in [("", 110), ("&which=overdue", 20), ("&which=ahead", 90)] {
        let whole = server
            .read(&format!("/api/v1/timers?limit=200{which}"))
            .await;
        assert_eq!(
            (names(&whole).len(), &whole["next"]),
            (count, &json!(null)),
            "{which}"
        );
        let (mut walked, mut after) = (Vec::new(), String::new());
        loop {
            let page = server
                .read(&format!("/api/v1/timers?limit=7{which}&after={after}"))
                .await;
            walked.extend(names(&page));
            match page["next"].as_str() {
                Some(next) => after = next.replace(':', "%3A").replace('+', "%2B"),
                None => break,
            }
        }
        assert_eq!(walked, names(&whole), "{which}: no gaps and no duplicates");
        let at = |timer: &Value| {
            timer["due_at"]
                .as_str()
                .unwrap()
                .parse::<Timestamp>()
                .unwrap()
        };
        let mut due: Vec<Timestamp> = whole["timers"].as_array().unwrap().iter().map(at).collect();
        assert!(due.is_sorted(), "{which}");
        due.dedup();
        assert_eq!(due.len() < 30, which == "&which=overdue", "{which}");
    }
    let forecast = server.read("/api/v1/timers/forecast").await;
    let sums: Vec<i64> = forecast["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| {
            kind["counts"]
                .as_array()
                .unwrap()
                .iter()
                .map(|count| count.as_i64().unwrap())
                .sum()
        })
        .collect();
    assert_eq!(sums, [30, 30, 30, 0, 0], "{forecast}");
    assert_eq!(
        (&forecast["parts"], &forecast["capped"]),
        (&json!(12), &json!(false))
    );
    for wrong in [
        "which=x",
        "after=x",
        "after=x~1",
        "after=2026-01-01T00%3A00%3A00Z",
        "limit=0",
        "limit=999",
        "unknown=1",
    ] {
        assert_eq!(
            server.get(&format!("/api/v1/timers?{wrong}")).await.status,
            StatusCode::BAD_REQUEST,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn an_operator_cancels_the_repeating_timer_of_an_instance_but_not_a_schedule_timer() {
    let server = TestServer::new().await;
    let running = Running::start(&server.client);
    let id = server.client.enqueue(Chime {}).await.unwrap().id;
    let path = format!("/api/v1/instances/{id}/timers");
    eventually("it waits", async || {
        server.read(&path).await["timers"].as_array().unwrap().len() == 2
    })
    .await;
    let timers = server.read(&path).await;
    let kinds: Vec<&Value> = timers["timers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|timer| &timer["kind"])
        .collect();
    assert_eq!(kinds, ["repeat", "deadline"], "{timers}");
    let repeat = &timers["timers"][0];
    assert_eq!(
        (&repeat["machine"], &repeat["may_cancel"], &repeat["cycle"]),
        (&json!("note"), &json!(true), &json!("R/PT3600S"))
    );
    let cancel = format!("/api/v1/timers/{}/cancel", repeat["id"].as_str().unwrap());
    let reader = format!("Bearer {READER}");
    assert_eq!(
        server
            .ask("POST", &cancel, &[("authorization", &reader)], "")
            .await
            .status,
        StatusCode::FORBIDDEN
    );
    assert_eq!(server.post(&cancel, "").await.json()["cancelled"], true);
    assert_eq!(server.post(&cancel, "").await.json()["cancelled"], false);
    assert_eq!(
        server.read(&path).await["timers"].as_array().unwrap().len(),
        1
    );
    assert_eq!(
        server.post("/api/v1/timers/99999/cancel", "").await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        server.post("/api/v1/timers/x/cancel", "").await.status,
        StatusCode::NOT_FOUND
    );
    let of_a_schedule = server.read("/api/v1/timers?which=ahead").await;
    let next = of_a_schedule["timers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|timer| timer["kind"] == "schedule")
        .unwrap();
    assert_eq!(next["may_cancel"], false);
    let refused = server
        .post(
            &format!("/api/v1/timers/{}/cancel", next["id"].as_str().unwrap()),
            "",
        )
        .await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused.json()["detail"].as_str().unwrap().contains("pause"),
        "{}",
        refused.text
    );
    let acts = server.read("/api/v1/audit").await;
    let acts: Vec<&str> = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|act| act["actor"] == "operator token")
        .map(|act| act["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(acts.len(), 5, "{acts:?}");
    server
        .client
        .operate()
        .cancel(Address::Id(Id::from_raw(id.raw())), "over")
        .await
        .unwrap();
    running.stop().await;
}

#[tokio::test]
async fn an_operator_pauses_resumes_runs_and_changes_a_schedule_over_http() {
    let server = TestServer::new().await;
    let running = Running::start(&server.client);
    let path = "/api/v1/schedules/nightly%20%3Cb%3E";
    eventually("the schedule is registered", async || {
        server.get(path).await.status == StatusCode::OK && server.read(path).await["served"] == true
    })
    .await;
    let seen = server.read(path).await;
    assert_eq!(
        (&seen["cycle"], &seen["zone"]),
        (
            &json!("30 2 * * * [Europe/Madrid]"),
            &json!("Europe/Madrid")
        ),
        "{seen}"
    );
    assert_eq!(
        (
            seen["next_due_at"].as_array().unwrap().len(),
            &seen["runs"],
            &seen["missed"]
        ),
        (5, &json!([]), &json!("latest"))
    );
    assert_eq!(seen["registered_by"][0]["pid"], json!(std::process::id()));
    let reader = format!("Bearer {READER}");
    for act in ["pause", "resume", "run", "set"] {
        let headers = [
            ("authorization", reader.as_str()),
            ("content-type", "application/json"),
        ];
        let answer = server
            .ask(
                "POST",
                &format!("{path}/{act}"),
                &headers,
                r#"{"cycle": "R/PT1H"}"#,
            )
            .await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{act}");
        let unknown = server
            .post(
                &format!("/api/v1/schedules/unknown/{act}"),
                r#"{"cycle": "R/PT1H"}"#,
            )
            .await;
        assert_eq!(
            unknown.status,
            StatusCode::NOT_FOUND,
            "{act}: {}",
            unknown.text
        );
    }
    assert_eq!(
        server.post(&format!("{path}/pause"), "").await.json()["was_paused"],
        false
    );
    assert_eq!(
        server.post(&format!("{path}/pause"), "").await.json()["was_paused"],
        true
    );
    let paused = server.read(path).await;
    assert_eq!(
        (&paused["paused_by"], &paused["next_due_at"]),
        (&json!("operator token"), &json!([]))
    );
    // An operator can run a schedule while it is paused.
    assert_eq!(
        server.post(&format!("{path}/run"), "").await.status,
        StatusCode::OK
    );
    eventually("it ran", async || {
        server.read(path).await["runs"][0]["status"] == "done"
    })
    .await;
    assert_eq!(server.read(path).await["runs"][0]["manual"], true);
    assert_eq!(
        server.post(&format!("{path}/resume"), "").await.json()["was_paused"],
        true
    );
    for wrong in [
        r#"{"cycle": "61 * * * *"}"#,
        r#"{"cycle": "R/P"}"#,
        r#"{"cycle": "* * * * * [Nowhere/Atall]"}"#,
        r#"{"cycle": ""}"#,
    ] {
        let refused = server.post(&format!("{path}/set"), wrong).await;
        assert_eq!(
            refused.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{wrong}: {}",
            refused.text
        );
        assert!(
            refused.json()["detail"].as_str().unwrap().len() > 20,
            "{wrong}: {}",
            refused.text
        );
    }
    let odd = server
        .post(
            &format!("{path}/set"),
            r#"{"cycle": "R/PT1H", "missed": "maybe"}"#,
        )
        .await;
    assert_eq!(odd.status, StatusCode::BAD_REQUEST);
    let set = server
        .post(
            &format!("{path}/set"),
            r#"{"cycle": "R/P1D[Asia/Tokyo]", "missed": "skip"}"#,
        )
        .await;
    assert_eq!(set.status, StatusCode::OK, "{}", set.text);
    let seen = server.read(path).await;
    assert_eq!(
        (&seen["zone"], &seen["missed"], &seen["set_by"]),
        (
            &json!("Asia/Tokyo"),
            &json!("skip"),
            &json!("operator token")
        )
    );
    let listed = server.read("/api/v1/schedules?limit=1").await;
    assert_eq!(
        (&listed["schedules"][0]["name"], &listed["next"]),
        (&json!("hourly"), &json!("hourly")),
        "{listed}"
    );
    let rest = server.read("/api/v1/schedules?after=hourly").await;
    assert_eq!(
        (rest["schedules"].as_array().unwrap().len(), &rest["next"]),
        (1, &json!(null))
    );
    running.stop().await;
    // After its worker has stopped, no worker registers the schedules. The API shows the schedules
    // as not served, and the overview counts them.
    eventually("the schedules are shown as not served", async || {
        server.read("/api/v1/schedules").await["schedules"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["served"] == false)
            && server.read("/api/v1/overview").await["findings"]["schedules_failing"] == 2
    })
    .await;
    let acts = server.read("/api/v1/audit").await;
    let went: Vec<&str> = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|act| act["succeeded"] == true)
        .map(|act| act["action"].as_str().unwrap())
        .rev()
        .collect();
    assert_eq!(
        went,
        [
            "pause schedule",
            "pause schedule",
            "run schedule",
            "resume schedule",
            "set schedule"
        ]
    );
}
