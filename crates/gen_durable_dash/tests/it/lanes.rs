//! Lanes and partition keys: seen, found by a prefix, paged through, and let go on.

use axum::http::StatusCode;
use gen_durable::NewInstance;
use serde_json::{Value, json};

use crate::support::{Desk, READER, Running, eventually};

/// Stand in a lane; with `fails`, it fails for good and blocks it.
async fn stand(desk: &Desk, lane: &str, tenant: &str, fails: bool) -> i64 {
    let mut new = NewInstance::new("haul", "run", json!({"fails": fails}).to_string());
    (new.lane, new.lane_blocks, new.tenant) = (Some(lane.to_owned()), true, tenant.to_owned());
    desk.client.operate().enqueue(new).await.unwrap().0
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

async fn blocked(desk: &Desk) -> Vec<(String, String)> {
    keys(&desk.read("/api/v1/lanes?blocked=true").await)
}

#[tokio::test]
async fn a_blocked_lane_shows_why_and_goes_on_by_retry_skip_or_discard() {
    let desk = Desk::new().await;
    let running = Running::start(&desk.client);
    let mut heads = Vec::new();
    for lane in ["van/1 ?", "van:2", "van:3"] {
        heads.push(stand(&desk, lane, "acme", true).await);
        stand(&desk, lane, "acme", false).await;
    }
    eventually("all three stand still", async || {
        blocked(&desk).await.len() == 3
    })
    .await;
    let all = desk.read("/api/v1/lanes?blocked=true&tenant=acme").await;
    let lane = &all["lanes"][0];
    assert_eq!(
        (&lane["key"], &lane["depth"], &lane["blocked"]),
        (&json!("van/1 ?"), &json!(2), &json!(true)),
        "{all}"
    );
    assert_eq!(lane["head"]["id"], json!(heads[0].to_string()));
    assert_eq!(
        (&lane["head"]["status"], &lane["head"]["error"]),
        (&json!("failed"), &json!("a flat tyre")),
        "{lane}"
    );
    assert!(
        lane["head"]["inserted_at"].is_string()
            && !lane["head"]["reason"].as_str().unwrap().is_empty()
    );
    eventually("the overview counts them", async || {
        desk.read("/api/v1/overview").await["attention"]["lanes_blocked"] == 3
    })
    .await;
    assert!(
        desk.get("/metrics")
            .await
            .text
            .contains("durable_lanes_blocked 3")
    );
    // Who may only look may not decide, and a lane that is not there is not found.
    let reader = format!("Bearer {READER}");
    let headers = [
        ("authorization", reader.as_str()),
        ("content-type", "application/json"),
    ];
    let body = |key: &str| json!({"key": key, "tenant": "acme"}).to_string();
    for act in ["retry", "skip", "discard"] {
        let path = format!("/api/v1/lanes/{act}");
        assert_eq!(
            desk.ask("POST", &path, &headers, &body("van:2"))
                .await
                .status,
            StatusCode::FORBIDDEN
        );
        assert_eq!(
            desk.post(&path, &body("nowhere")).await.status,
            StatusCode::NOT_FOUND
        );
        assert_eq!(
            desk.post(&path, r#"{"key": "van:2"}"#).await.status,
            StatusCode::NOT_FOUND,
            "of another tenant"
        );
        assert_eq!(
            desk.post(&path, r#"{"tenant": "acme"}"#).await.status,
            StatusCode::BAD_REQUEST
        );
        assert!(desk.post(&path, &body("")).await.status.is_client_error());
    }
    let status =
        async |id: i64| desk.read(&format!("/api/v1/instances/{id}")).await["status"].clone();
    let skipped = desk.post("/api/v1/lanes/skip", &body("van/1 ?")).await;
    assert_eq!(
        (skipped.status, &skipped.json()["id"]),
        (StatusCode::OK, &json!(heads[0].to_string()))
    );
    let why = json!({"key": "van:2", "tenant": "acme", "why": "sold the van"}).to_string();
    assert_eq!(
        desk.post("/api/v1/lanes/discard", &why).await.status,
        StatusCode::OK
    );
    assert_eq!(
        blocked(&desk).await.len(),
        1,
        "what was done is seen at once"
    );
    desk.sql(&format!(
        "update SCHEMA.instances set state = '{{\"fails\": false}}' where id = {}",
        heads[2]
    ))
    .await;
    assert_eq!(
        desk.post("/api/v1/lanes/retry", &body("van:3"))
            .await
            .status,
        StatusCode::OK
    );
    eventually("nobody stands in a lane", async || {
        desk.read("/api/v1/lanes").await["lanes"] == json!([])
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
    let why = desk.read(&format!("/api/v1/instances/{}", heads[1])).await["error"].clone();
    assert!(why.as_str().unwrap().contains("sold the van"), "{why}");
    let acts = desk.read("/api/v1/audit").await;
    let went = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|act| act["outcome"].as_str().unwrap().contains("instance"));
    let went: Vec<&str> = went.map(|act| act["act"].as_str().unwrap()).collect();
    assert_eq!(went, ["lane retry", "lane discard", "lane skip"]);
    assert_eq!(
        acts["acts"].as_array().unwrap().len(),
        15,
        "what was refused is noted as well: {acts}"
    );
    running.stop().await;
}

#[tokio::test]
async fn lanes_are_paged_through_and_found_by_how_their_keys_begin() {
    let desk = Desk::new().await;
    for n in 0..12 {
        let tenant = if n % 3 == 0 { "acme" } else { "" };
        stand(
            &desk,
            &format!("{}:{n:02}", if n % 2 == 0 { "van" } else { "ship" }),
            tenant,
            false,
        )
        .await;
    }
    let all = keys(&desk.read("/api/v1/lanes").await);
    assert_eq!(all.len(), 12);
    for filter in [
        "",
        "&prefix=van",
        "&tenant=acme",
        "&prefix=ship%3A&tenant=acme",
    ] {
        let whole = keys(&desk.read(&format!("/api/v1/lanes?limit=200{filter}")).await);
        let (mut walked, mut place) = (Vec::new(), String::new());
        loop {
            let page = desk
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
    let vans = keys(&desk.read("/api/v1/lanes?prefix=van").await);
    assert!(
        vans.len() == 6 && vans.iter().all(|(_, key)| key.starts_with("van")),
        "{vans:?}"
    );
    assert_eq!(
        keys(&desk.read("/api/v1/lanes?prefix=%25").await).len(),
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
                desk.get(&format!("/api/v1/{path}?{wrong}")).await.status,
                StatusCode::BAD_REQUEST,
                "{wrong}"
            );
        }
    }
}

#[tokio::test]
async fn partition_keys_show_whose_turn_it_is_and_how_many_wait() {
    let desk = Desk::new().await;
    for n in 0..5 {
        let mut new = NewInstance::new("haul", "run", r#"{"fails": false}"#);
        new.partition = Some(format!("account-{}", n % 2));
        desk.client.operate().enqueue(new).await.unwrap();
    }
    let first = desk.read("/api/v1/partitions?limit=1").await;
    assert_eq!(first["partitions"][0]["key"], "account-0", "{first}");
    let second = desk
        .read("/api/v1/partitions?limit=1&after=account-0")
        .await;
    assert_eq!(second["partitions"][0]["key"], "account-1", "{second}");
    let waiting = |page: &Value| page["partitions"][0]["waiting"].as_i64().unwrap();
    let turns = |page: &Value| i64::from(!page["partitions"][0]["turn"].is_null());
    assert_eq!(
        (
            waiting(&first) + turns(&first),
            waiting(&second) + turns(&second)
        ),
        (3, 2)
    );
    assert_eq!(
        desk.get("/api/v1/partitions?blocked=true").await.status,
        StatusCode::BAD_REQUEST
    );
}
