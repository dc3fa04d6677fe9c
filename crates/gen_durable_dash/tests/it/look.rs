//! Looking: lists, one instance, what is blacked out, and what nonsense gets.

use axum::http::StatusCode;
use gen_durable::NewInstance;
use gen_durable_dash::{Access, Options};
use serde_json::json;

use crate::support::{Desk, OPERATOR, Parcel, READER, Running, eventually};

fn ids(answer: &serde_json::Value) -> Vec<String> {
    answer["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn plant(desk: &Desk) {
    desk.sql(
        "insert into SCHEMA.instances (fsm, step, state, queue, tenant, status, finished_at, last_error, correlation_key, correlation_scope, inserted_at)
         select 'order', case g % 2 when 0 then 'charge' else 'ship' end, '{}', 'q' || g % 3, 't' || g % 2,
            (case g % 4 when 0 then 'failed' when 1 then 'done' when 2 then 'runnable' else 'cancelled' end)::SCHEMA.durable_status,
            case when g % 4 <> 2 then statement_timestamp() end, case when g % 4 = 0 then 'card ' || g || ' Declined' end,
            'key-' || g, '{runnable}', statement_timestamp() - g * interval '1 minute'
         from generate_series(1, 40) g",
    )
    .await;
}

#[tokio::test]
async fn instances_are_found_by_everything_that_they_are_known_by() {
    let desk = Desk::new().await;
    plant(&desk).await;
    let count = async |query: &str| {
        ids(&desk
            .read(&format!("/api/v1/instances?limit=200&{query}"))
            .await)
        .len()
    };
    assert_eq!(count("").await, 40);
    assert_eq!(count("machine=order").await, 40);
    assert_eq!(count("machine=").await, 40, "a browser sends what is empty");
    assert_eq!(count("machine=other").await, 0);
    assert_eq!(count("step=charge").await, 20);
    assert_eq!(count("status=failed").await, 10);
    assert_eq!(count("status=done").await, 10);
    assert_eq!(count("status=failed&step=ship").await, 0);
    assert_eq!(count("queue=q1").await, 14);
    assert_eq!(count("tenant=t1").await, 20);
    assert_eq!(count("key=key-7").await, 1);
    assert_eq!(count("error=dEcLiNeD").await, 10);
    assert_eq!(count("status=failed&error=card%204%20").await, 1);
    assert_eq!(count("newer_than=630").await, 10);
    assert_eq!(count("older_than=630&newer_than=1230").await, 10);
}

#[tokio::test]
async fn pages_follow_one_another_without_a_gap_or_a_repetition() {
    let desk = Desk::new().await;
    plant(&desk).await;
    for filter in ["", "&status=failed", "&status=runnable&queue=q2"] {
        let all = ids(&desk
            .read(&format!("/api/v1/instances?limit=200{filter}"))
            .await);
        let mut walked = Vec::new();
        let mut before = String::new();
        loop {
            let page = desk
                .read(&format!(
                    "/api/v1/instances?limit=3&before={before}{filter}"
                ))
                .await;
            walked.extend(ids(&page));
            match page["next"].as_str() {
                Some(next) => before = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(walked, all, "{filter}");
    }
}

#[tokio::test]
async fn nonsense_gets_a_clear_answer_and_nothing_breaks() {
    let desk = Desk::new().await;
    for path in [
        "/api/v1/instances?limit=0",
        "/api/v1/instances?limit=201",
        "/api/v1/instances?limit=-1",
        "/api/v1/instances?limit=99999999999999999999",
        "/api/v1/instances?status=nonsense",
        "/api/v1/instances?before=x",
        "/api/v1/instances?before=99999999999999999999",
        "/api/v1/instances?newer_than=-1",
        "/api/v1/instances?newer_than=NaN",
        "/api/v1/instances?key=%00",
        "/api/v1/instances?unknown=1",
        "/api/v1/series?seconds=0",
        "/api/v1/series?seconds=1e9",
        "/api/v1/instances/1/story?seq=x",
    ] {
        let answer = desk.get(path).await;
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{path}: {}",
            answer.text
        );
        assert_eq!(
            answer.headers["content-type"], "application/problem+json",
            "{path}"
        );
        assert!(
            answer.json()["detail"]
                .as_str()
                .is_some_and(|detail| !detail.is_empty()),
            "{path}"
        );
    }
    for path in [
        "/api/v1/instances/7",
        "/api/v1/instances/-1",
        "/api/v1/instances/x",
        "/api/v1/nothing",
        "/api/v1/bulk/9",
        "/assets/../lib.rs",
    ] {
        let answer = desk.get(path).await;
        assert_eq!(
            answer.status,
            StatusCode::NOT_FOUND,
            "{path}: {}",
            answer.text
        );
    }
    // Words that would mean something to SQL are words.
    for word in [
        "'; drop schema public; --",
        "%25",
        "_",
        "\\",
        "1%20or%201=1",
        "%F0%9F%98%80",
    ] {
        let word = word
            .replace(' ', "%20")
            .replace('\\', "%5C")
            .replace('"', "%22");
        for name in ["machine", "step", "queue", "tenant", "key", "error"] {
            let found = desk.read(&format!("/api/v1/instances?{name}={word}")).await;
            assert_eq!(ids(&found).len(), 0, "{name}={word}");
        }
    }
}

#[tokio::test]
async fn an_instance_is_shown_with_its_story_its_inbox_its_children_and_why_it_waits() {
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
    eventually("it waits", async || {
        desk.read(&path).await["status"] == "awaiting_signal"
    })
    .await;
    let row = desk.read(&path).await;
    assert_eq!(
        (&row["machine"], &row["step"], &row["id"]),
        (&json!("parcel"), &json!("send"), &json!(id.to_string()))
    );
    assert_eq!(row["state"]["name"], "vase");
    assert_eq!(row["awaits"], json!(["go"]));
    let why = desk.read(&format!("{path}/explain")).await;
    assert_eq!(why["blockers"][0]["kind"], "awaiting_signal", "{why}");
    let answer = desk
        .post(
            &format!("{path}/signal"),
            r#"{"name": "noise", "payload": {"n": 123456789012345678901234567890}}"#,
        )
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let inbox = desk.get(&format!("{path}/inbox")).await;
    assert!(
        inbox.text.contains("123456789012345678901234567890"),
        "number for number: {}",
        inbox.text
    );
    let story = desk.read(&format!("{path}/story")).await;
    assert_eq!(story["story"][0]["outcome"], "wait", "{story}");
    assert_eq!(
        (&story["story"][0]["from"], &story["story"][0]["to"]),
        (&json!("pack"), &json!("send"))
    );
    assert_eq!(
        desk.read(&format!("{path}/children")).await["children"],
        json!([])
    );
    running.stop().await;
}

#[tokio::test]
async fn secrets_are_blacked_out_everywhere_and_who_may_only_look_sees_no_payload() {
    const CANARY: &str = "canary-4711";
    let desk = Desk::new().await;
    let state =
        json!({"name": "x", "password": CANARY, "deep": {"apiToken": [CANARY]}}).to_string();
    let mut new = NewInstance::new("parcel", "pack", state);
    new.data = Some(json!({"card": {"number": CANARY}}).to_string());
    let (id, _) = desk.client.operate().enqueue(new).await.unwrap();
    let to = gen_durable::Address::Id(gen_durable::Id::from_raw(id));
    desk.client
        .operate()
        .signal(to, "go", &json!({"secret": CANARY}).to_string(), None)
        .await
        .unwrap();
    desk.sql(&format!(
        "update SCHEMA.instances set status = 'failed', finished_at = statement_timestamp(), last_error = 'refused: token={CANARY} is old'"
    ))
    .await;
    eventually("it shows among the failures", async || {
        desk.get("/api/v1/overview")
            .await
            .text
            .contains("token=[redacted]")
    })
    .await;
    let reader = format!("Bearer {READER}");
    let one = format!("/api/v1/instances/{id}");
    let paths = [
        one.clone(),
        format!("{one}/inbox"),
        format!("{one}/story"),
        format!("{one}/explain"),
        "/api/v1/instances".to_owned(),
        "/api/v1/overview".to_owned(),
        "/api/v1/failures".to_owned(),
        "/metrics".to_owned(),
    ];
    for path in paths {
        for token in [format!("Bearer {OPERATOR}"), reader.clone()] {
            let text = desk
                .ask("GET", &path, &[("authorization", &token)], "")
                .await
                .text;
            assert!(!text.contains(CANARY), "{path}: {text}");
        }
    }
    assert_eq!(desk.read(&one).await["state"]["name"], "x");
    let hidden = desk
        .ask("GET", &one, &[("authorization", &reader)], "")
        .await
        .json();
    assert_eq!(
        (&hidden["state"], &hidden["payloads_hidden"]),
        (&json!(null), &json!(true))
    );
}

#[tokio::test]
async fn a_holder_of_a_key_is_found_by_it_however_old_it_is() {
    let desk = Desk::with(Access::only_local("me"), Options::new()).await;
    let mut new = NewInstance::new("note", "run", "{}");
    new.key = Some("order-1".into());
    let (id, _) = desk.client.operate().enqueue(new).await.unwrap();
    // More than one look takes.
    desk.sql(
        "insert into SCHEMA.instances (fsm, step, state) select 'note', 'run', '{}' from generate_series(1, 20100)",
    )
    .await;
    let found = desk
        .ask("GET", "/api/v1/instances?key=order-1", &[], "")
        .await
        .json();
    assert_eq!(ids(&found), [id.to_string()]);
}
