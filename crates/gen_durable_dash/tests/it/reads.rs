//! Tests the read requests of the HTTP API: the search for instances, the page of one instance,
//! redaction, and invalid input.

use axum::http::StatusCode;
use gen_durable::operate::UntypedInstance;
use gen_durable_dash::{Access, Options};
use serde_json::{Value, json};

use crate::support::{OPERATOR, Parcel, READER, Running, TestServer, eventually};

fn ids(answer: &serde_json::Value) -> Vec<String> {
    answer["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn plant(server: &TestServer) {
    server.sql(
        "insert into SCHEMA.instances (machine, step, state, queue, tenant, status, settled_at, last_error, key, key_scope, inserted_at)
         select 'order', case g % 2 when 0 then 'charge' else 'ship' end, '{}', 'q' || g % 3, 't' || g % 2,
            (case g % 4 when 0 then 'failed' when 1 then 'done' when 2 then 'runnable' else 'cancelled' end)::SCHEMA.durable_status,
            case when g % 4 <> 2 then statement_timestamp() end, case when g % 4 = 0 then 'card ' || g || ' Declined' end,
            'key-' || g, '{runnable}', statement_timestamp() - (41 - g) * interval '1 minute'
         from generate_series(1, 40) g",
    )
    .await;
}

#[tokio::test]
async fn the_instance_search_filters_by_each_of_its_fields() {
    let server = TestServer::new().await;
    plant(&server).await;
    let count = async |query: &str| {
        ids(&server
            .read(&format!("/api/v1/instances?limit=200&{query}"))
            .await)
        .len()
    };
    assert_eq!(count("").await, 40);
    assert_eq!(count("machine=order").await, 40);
    assert_eq!(count("machine=").await, 40, "browsers send empty fields");
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
    assert_eq!(count("since=2020-01-31T12:00:00Z").await, 40);
    assert_eq!(count("until=2020-01-31T12:00:00Z").await, 0);
    assert_eq!(count("key_prefix=key-1").await, 11);
    assert_eq!(count("key_prefix=key-1&tenant=t1").await, 6);
    assert_eq!(
        (count("version=1").await, count("version=2").await),
        (40, 0)
    );
    assert_eq!((count("lane=a").await, count("partition=a").await), (0, 0));
    let group = "error_group=card%20%23%20Declined";
    assert_eq!(count(group).await, 10);
    let at_step = "&machine=order&step=charge&status=failed&tenant=t0";
    assert_eq!(count(&format!("{group}{at_step}")).await, 10);
    assert_eq!(count("error_group=card").await, 0);
    let oldest = server
        .read("/api/v1/instances?status=failed&sort=oldest&limit=3")
        .await;
    let oldest = ids(&oldest);
    assert!(
        oldest.is_sorted_by_key(|id| id.parse::<i64>().unwrap()),
        "{oldest:?}"
    );
}

#[tokio::test]
async fn the_pages_of_an_instance_search_together_list_each_instance_once() {
    let server = TestServer::new().await;
    plant(&server).await;
    for filter in ["", "&status=failed", "&status=runnable&queue=q2"] {
        let all = ids(&server
            .read(&format!("/api/v1/instances?limit=200{filter}"))
            .await);
        let mut walked = Vec::new();
        let mut before = String::new();
        loop {
            let page = server
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
async fn read_requests_with_invalid_parameters_are_rejected_with_status_400_or_404() {
    let server = TestServer::new().await;
    for path in [
        "/api/v1/instances?limit=0",
        "/api/v1/instances?sort=key",
        "/api/v1/instances?sort=oldest&before=7",
        "/api/v1/instances?after=7",
        "/api/v1/instances?limit=201",
        "/api/v1/instances?limit=-1",
        "/api/v1/instances?limit=99999999999999999999",
        "/api/v1/instances?status=nonsense",
        "/api/v1/instances?since=yesterday",
        "/api/v1/instances?version=one",
        "/api/v1/instances?before=x",
        "/api/v1/instances?before=99999999999999999999",
        "/api/v1/instances?newer_than=-1",
        "/api/v1/instances?newer_than=NaN",
        "/api/v1/instances?key=%00",
        "/api/v1/instances?unknown=1",
        "/api/v1/series?seconds=0",
        "/api/v1/series?seconds=1e9",
        "/api/v1/instances/1/history?step_seq=x",
    ] {
        let answer = server.get(path).await;
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
        let answer = server.get(path).await;
        assert_eq!(
            answer.status,
            StatusCode::NOT_FOUND,
            "{path}: {}",
            answer.text
        );
    }
    // The search treats SQL in a search value as text.
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
            let found = server
                .read(&format!("/api/v1/instances?{name}={word}"))
                .await;
            assert_eq!(ids(&found).len(), 0, "{name}={word}");
        }
    }
}

#[tokio::test]
async fn the_api_returns_the_state_history_inbox_children_and_blockers_of_an_instance() {
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
    eventually("it waits", async || {
        server.read(&path).await["status"] == "awaiting_signal"
    })
    .await;
    let row = server.read(&path).await;
    assert_eq!(
        (&row["machine"], &row["step"], &row["id"]),
        (&json!("parcel"), &json!("send"), &json!(id.to_string()))
    );
    assert_eq!(row["state"]["name"], "vase");
    assert_eq!(row["awaits"], json!(["go"]));
    let why = server.read(&format!("{path}/explain")).await;
    assert_eq!(why["blockers"][0]["kind"], "awaiting_signal", "{why}");
    let answer = server
        .post(
            &format!("{path}/signal"),
            r#"{"name": "noise", "payload": {"n": 123456789012345678901234567890}}"#,
        )
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let inbox = server.get(&format!("{path}/inbox")).await;
    assert!(
        inbox.text.contains("123456789012345678901234567890"),
        "numbers keep all digits: {}",
        inbox.text
    );
    let history = server.read(&format!("{path}/history")).await;
    assert_eq!(history["history"][0]["outcome"], "wait", "{history}");
    assert_eq!(
        (&history["history"][0]["from"], &history["history"][0]["to"]),
        (&json!("pack"), &json!("send"))
    );
    assert_eq!(
        server.read(&format!("{path}/children")).await["children"],
        json!([])
    );
    running.stop().await;
}

#[tokio::test]
async fn responses_redact_secrets_and_hide_payloads_from_the_reader_token() {
    const CANARY: &str = "canary-4711";
    let server = TestServer::new().await;
    let state =
        json!({"name": "x", "password": CANARY, "deep": {"apiToken": [CANARY]}}).to_string();
    let mut new = UntypedInstance::new("parcel", "pack", state);
    new.data = Some(json!({"card": {"number": CANARY}}).to_string());
    let id = server.client.operate().enqueue(new).await.unwrap().id;
    let to = gen_durable::Address::Id(id);
    server
        .client
        .operate()
        .signal(to, "go", &json!({"secret": CANARY}).to_string())
        .await
        .unwrap();
    server.sql(&format!(
        "update SCHEMA.instances set status = 'failed', settled_at = statement_timestamp(), last_error = 'refused: token={CANARY} is old'"
    ))
    .await;
    eventually("the error is among the failures", async || {
        server
            .get("/api/v1/overview")
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
        format!("{one}/history"),
        format!("{one}/explain"),
        "/api/v1/instances".to_owned(),
        "/api/v1/overview".to_owned(),
        "/api/v1/failures".to_owned(),
        "/metrics".to_owned(),
    ];
    for path in paths {
        for token in [format!("Bearer {OPERATOR}"), reader.clone()] {
            let text = server
                .ask("GET", &path, &[("authorization", &token)], "")
                .await
                .text;
            assert!(!text.contains(CANARY), "{path}: {text}");
        }
    }
    assert_eq!(server.read(&one).await["state"]["name"], "x");
    let hidden = server
        .ask("GET", &one, &[("authorization", &reader)], "")
        .await
        .json();
    assert_eq!(
        (&hidden["state"], &hidden["payloads_hidden"]),
        (&json!(null), &json!(true))
    );
}

#[tokio::test]
async fn a_search_by_key_finds_an_instance_older_than_the_rows_that_one_search_reads() {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    let mut new = UntypedInstance::new("note", "run", "{}");
    new.key = Some("order-1".into());
    let id = server.client.operate().enqueue(new).await.unwrap().id;
    // The test inserts more instances than one search reads.
    server.sql(
        "insert into SCHEMA.instances (machine, step, state) select 'note', 'run', '{}' from generate_series(1, 20100)",
    )
    .await;
    let found = server
        .ask("GET", "/api/v1/instances?key=order-1", &[], "")
        .await
        .json();
    assert_eq!(ids(&found), [id.to_string()]);
}

/// A11: the instance is older than the newest 20,000, and its key is in no index any more.
#[tokio::test]
async fn a_search_finds_an_old_settled_instance_by_its_key_tenant_and_age() {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    server
        .sql(
            "insert into SCHEMA.instances (machine, step, state, status, settled_at, key, tenant, inserted_at)
             select 'order', 's', '{}', 'done', statement_timestamp(), 'order-' || g, 't' || g,
                 statement_timestamp() - (70000 - g) * interval '1 s'
             from generate_series(1, 70000) g",
        )
        .await;
    for search in [
        "key=order-5",
        "tenant=t5",
        "older_than=69990&newer_than=90000",
    ] {
        let found = server.read(&format!("/api/v1/instances?{search}")).await;
        assert!(ids(&found).contains(&"5".to_owned()), "{search}: {found}");
    }
    let none = server.read("/api/v1/instances?key=order-99999999").await;
    assert_eq!(
        (&none["instances"], &none["next"]),
        (&json!([]), &Value::Null),
        "{none}"
    );
}

#[tokio::test]
async fn the_reason_of_an_instance_that_awaits_limits_names_each_limit_and_key_with_its_use() {
    let server = TestServer::new().await;
    server
        .sql(
            r"insert into SCHEMA.limits (name, at_once, per_key, rate, period, burst) values ('api', 2, 1, 1, 3600, 1);
              insert into SCHEMA.limits (name, paused_at) values ('mail', SCHEMA.clock());
              insert into SCHEMA.limit_tokens (name, key, tokens, at) values ('api', '', 0, SCHEMA.clock());
              insert into SCHEMA.instances (machine, step, state, status, limit_group, locked_by)
              values ('m', 's', '{}', 'executing', E'api\x01acme', gen_random_uuid()),
                  ('m', 's', '{}', 'awaiting_limit', E'api\x01acme\x02mail\x01', null)",
        )
        .await;
    let why = server.read("/api/v1/instances/2/explain").await;
    assert_eq!(why["blockers"][0]["kind"], "awaiting_limit", "{why}");
    let reason = why["reason"].as_str().unwrap();
    for part in [
        "It has waited for a limit since ",
        "the limit api has no room (1 of 2 steps runs, 0 tokens are left, it has room in ",
        "the key acme of the limit api has no room (1 of 1 step runs)",
        "the limit mail is paused (0 steps run)",
    ] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert!(!reason.contains('{'), "{reason}");
}

#[tokio::test]
async fn a_search_in_the_order_oldest_continues_with_the_cursor_after() {
    let server = TestServer::new().await;
    plant(&server).await;
    let search = "/api/v1/instances?sort=oldest&limit=20";
    let first = server.read(search).await;
    let next = first["next"].as_str().unwrap();
    let second = server.read(&format!("{search}&after={next}")).await;
    assert_eq!(ids(&second).first().map(String::as_str), Some("21"));
    let refused = server.get(&format!("{search}&before={next}")).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
}
