//! Tests that the HTTP API lists lanes and partition keys, finds them by prefix, and retries, skips
//! or cancels the head of a blocked lane.

use axum::http::StatusCode;
use gen_durable::operate::UntypedInstance;
use serde_json::{Value, json};

use crate::support::{READER, Running, TestServer, eventually};

/// Enqueues an instance in a lane. If `fails` is set, the instance fails permanently and blocks its
/// lane.
async fn enqueue_in_lane(server: &TestServer, lane: &str, tenant: &str, fails: bool) -> i64 {
    let mut new = UntypedInstance::new("haul", "run", json!({"fails": fails}).to_string());
    (new.lane, new.lane_blocks, new.tenant) = (Some(lane.to_owned()), true, tenant.to_owned());
    server.client.operate().enqueue(new).await.unwrap().id.raw()
}

fn keys(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    answer["lanes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lane| (text(&lane["tenant"]), text(&lane["key"])))
        .collect()
}

async fn blocked(server: &TestServer) -> Vec<(String, String)> {
    keys(&server.read("/api/v1/lanes?blocked=true").await)
}

#[tokio::test]
async fn a_blocked_lane_shows_the_error_of_its_head_and_runs_after_retry_skip_or_discard() {
    let server = TestServer::new().await;
    let running = Running::start(&server.client);
    let mut heads = Vec::new();
    for lane in ["van/1 ?", "van:2", "van:3"] {
        heads.push(enqueue_in_lane(&server, lane, "acme", true).await);
        enqueue_in_lane(&server, lane, "acme", false).await;
    }
    eventually("all three lanes are blocked", async || {
        blocked(&server).await.len() == 3
    })
    .await;
    let all = server.read("/api/v1/lanes?blocked=true&tenant=acme").await;
    let lane = &all["lanes"][0];
    assert_eq!(
        (&lane["key"], &lane["depth"], &lane["blocked"]),
        (&json!("van/1 ?"), &json!(2), &json!(true)),
        "{all}"
    );
    assert_eq!(lane["head"]["id"], json!(heads[0].to_string()));
    assert_eq!(
        (&lane["head"]["status"], &lane["head"]["last_error"]),
        (&json!("failed"), &json!("a flat tyre")),
        "{lane}"
    );
    assert!(
        lane["head"]["inserted_at"].is_string()
            && !lane["head"]["reason"].as_str().unwrap().is_empty()
    );
    eventually("the overview counts the blocked lanes", async || {
        server.read("/api/v1/overview").await["findings"]["lanes_blocked"] == 3
    })
    .await;
    assert!(
        server
            .get("/metrics")
            .await
            .text
            .contains("durable_lanes_blocked 3")
    );
    // The API rejects an operator action on a lane with the reader token, and returns 404 for an
    // action on an unknown lane.
    let reader = format!("Bearer {READER}");
    let headers = [
        ("authorization", reader.as_str()),
        ("content-type", "application/json"),
    ];
    let body = |key: &str| json!({"key": key, "tenant": "acme"}).to_string();
    for act in ["retry", "skip", "discard"] {
        let path = format!("/api/v1/lanes/{act}");
        assert_eq!(
            server
                .ask("POST", &path, &headers, &body("van:2"))
                .await
                .status,
            StatusCode::FORBIDDEN
        );
        assert_eq!(
            server.post(&path, &body("nowhere")).await.status,
            StatusCode::NOT_FOUND
        );
        assert_eq!(
            server.post(&path, r#"{"key": "van:2"}"#).await.status,
            StatusCode::NOT_FOUND,
            "the lane belongs to another tenant"
        );
        assert_eq!(
            server.post(&path, r#"{"tenant": "acme"}"#).await.status,
            StatusCode::BAD_REQUEST
        );
        assert!(server.post(&path, &body("")).await.status.is_client_error());
    }
    let status =
        async |id: i64| server.read(&format!("/api/v1/instances/{id}")).await["status"].clone();
    let skipped = server.post("/api/v1/lanes/skip", &body("van/1 ?")).await;
    assert_eq!(
        (skipped.status, &skipped.json()["id"]),
        (StatusCode::OK, &json!(heads[0].to_string()))
    );
    let why = json!({"key": "van:2", "tenant": "acme", "why": "sold the van"}).to_string();
    assert_eq!(
        server.post("/api/v1/lanes/discard", &why).await.status,
        StatusCode::OK
    );
    assert_eq!(
        blocked(&server).await.len(),
        1,
        "the effect is visible at once"
    );
    server
        .sql(&format!(
            "update SCHEMA.instances set state = '{{\"fails\": false}}' where id = {}",
            heads[2]
        ))
        .await;
    assert_eq!(
        server
            .post("/api/v1/lanes/retry", &body("van:3"))
            .await
            .status,
        StatusCode::OK
    );
    eventually("all lanes are empty", async || {
        server.read("/api/v1/lanes").await["lanes"] == json!([])
    })
    .await;
    assert_eq!(
        [
            status(heads[0]).await,
            status(heads[1]).await,
            status(heads[2]).await
        ],
        ["failed", "cancelled", "done"]
    );
    let why = server
        .read(&format!("/api/v1/instances/{}", heads[1]))
        .await["last_error"]
        .clone();
    assert!(why.as_str().unwrap().contains("sold the van"), "{why}");
    let acts = server.read("/api/v1/audit").await;
    let went = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|act| act["succeeded"] == true);
    let went: Vec<&str> = went.map(|act| act["action"].as_str().unwrap()).collect();
    assert_eq!(went, ["lane retry", "lane discard", "lane skip"]);
    let own = acts["acts"].as_array().unwrap().iter();
    let own = own.filter(|act| act["actor"] == "operator token");
    assert_eq!(
        own.count(),
        15,
        "rejected actions are recorded as well: {acts}"
    );
    running.stop().await;
}

#[tokio::test]
async fn the_api_lists_lanes_page_by_page_and_filters_them_by_key_prefix_and_tenant() {
    let server = TestServer::new().await;
    for n in 0..12 {
        let tenant = if n % 3 == 0 { "acme" } else { "" };
        enqueue_in_lane(
            &server,
            &format!("{}:{n:02}", if n % 2 == 0 { "van" } else { "ship" }),
            tenant,
            false,
        )
        .await;
    }
    let all = keys(&server.read("/api/v1/lanes").await);
    assert_eq!(all.len(), 12);
    for filter in [
        "",
        "&prefix=van",
        "&tenant=acme",
        "&prefix=ship%3A&tenant=acme",
    ] {
        let whole = keys(
            &server
                .read(&format!("/api/v1/lanes?limit=200{filter}"))
                .await,
        );
        let (mut walked, mut place) = (Vec::new(), String::new());
        loop {
            let page = server
                .read(&format!("/api/v1/lanes?limit=2{filter}{place}"))
                .await;
            walked.extend(keys(&page));
            let Some(after) = page["next"]["after"].as_str() else {
                break;
            };
            place = format!(
                "&after={}&after_tenant={}",
                after.replace(':', "%3A"),
                page["next"]["after_tenant"].as_str().unwrap()
            );
        }
        assert_eq!(walked, whole, "{filter}");
        assert!(
            !whole.is_empty() && whole.iter().all(|lane| all.contains(lane)),
            "{filter}"
        );
    }
    let vans = keys(&server.read("/api/v1/lanes?prefix=van").await);
    assert!(
        vans.len() == 6 && vans.iter().all(|(_, key)| key.starts_with("van")),
        "{vans:?}"
    );
    assert_eq!(
        keys(&server.read("/api/v1/lanes?prefix=%25").await).len(),
        0,
        "no pattern"
    );
    for wrong in [
        "limit=0",
        "limit=201",
        "blocked=x",
        "prefix=%00",
        "unknown=1",
        &format!("prefix={}", "x".repeat(600)),
    ] {
        for path in ["lanes", "partitions"] {
            assert_eq!(
                server.get(&format!("/api/v1/{path}?{wrong}")).await.status,
                StatusCode::BAD_REQUEST,
                "{wrong}"
            );
        }
    }
}

#[tokio::test]
async fn the_api_lists_partition_keys_with_the_holder_and_the_number_of_waiting_instances() {
    let server = TestServer::new().await;
    for n in 0..5 {
        let mut new = UntypedInstance::new("haul", "run", r#"{"fails": false}"#);
        new.partition = Some(format!("account-{}", n % 2));
        server.client.operate().enqueue(new).await.unwrap();
    }
    let first = server.read("/api/v1/partitions?limit=1").await;
    assert_eq!(first["partitions"][0]["key"], "account-0", "{first}");
    let second = server
        .read("/api/v1/partitions?limit=1&after=account-0")
        .await;
    assert_eq!(second["partitions"][0]["key"], "account-1", "{second}");
    let waiting = |page: &Value| page["partitions"][0]["waiting"].as_i64().unwrap();
    let holders = |page: &Value| i64::from(!page["partitions"][0]["holder"].is_null());
    assert_eq!(
        (
            waiting(&first) + holders(&first),
            waiting(&second) + holders(&second)
        ),
        (3, 2)
    );
    assert_eq!(
        server.get("/api/v1/partitions?blocked=true").await.status,
        StatusCode::BAD_REQUEST
    );
}
