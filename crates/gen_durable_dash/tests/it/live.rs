//! What is shown live, and what it costs however many look.

use axum::{body::Body, http::Request};
use gen_durable_dash::{Access, Options};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Desk, Note, Parcel, Running, eventually};

/// Follow, and hand out looks one by one.
struct Following {
    body: Body,
    rest: String,
}

impl Following {
    async fn begin(desk: &Desk) -> Following {
        let request = Request::builder()
            .uri("/api/v1/live")
            .header("host", "localhost")
            .body(Body::empty())
            .unwrap();
        let response = desk.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Following {
            body: response.into_body(),
            rest: String::new(),
        }
    }

    async fn next(&mut self) -> Value {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.rest = rest;
                if let Some(data) = event.strip_prefix("data: ") {
                    return serde_json::from_str(data).unwrap();
                }
                continue;
            }
            let frame = self.body.frame().await.unwrap().unwrap();
            self.rest
                .push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
        }
    }
}

async fn open() -> Desk {
    Desk::with(Access::only_local("me"), Options::new()).await
}

#[tokio::test]
async fn what_happens_is_seen_by_those_who_follow() {
    let desk = open().await;
    let mut following = Following::begin(&desk).await;
    assert_eq!(following.next().await["totals"], json!({}));
    let running = Running::start(&desk.client);
    desk.client
        .enqueue(Parcel {
            name: "vase".into(),
            password: String::new(),
        })
        .await
        .unwrap();
    desk.client
        .enqueue_all((0..50).map(|n| Note {
            text: n.to_string(),
        }))
        .await
        .unwrap();
    loop {
        let look = following.next().await;
        let done: i64 = look["chart"]["done"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_i64().unwrap())
            .sum();
        let arrived: i64 = look["chart"]["arrived"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_i64().unwrap())
            .sum();
        let parcel = look["machines"]
            .as_array()
            .unwrap()
            .iter()
            .find(|machine| machine["name"] == "parcel")
            .cloned();
        let waits = parcel
            .as_ref()
            .is_some_and(|parcel| parcel["steps"]["send"]["awaiting_signal"] == 1);
        let way = parcel.as_ref().is_some_and(|p| {
            p["edges"]
                .as_array()
                .unwrap()
                .iter()
                .any(|e| e["from"] == "pack" && e["to"] == "send")
        });
        if done == 50 && arrived == 51 && waits && way && look["minute"]["machines"]["note"] == 50 {
            assert!(look["minute"]["p50"].as_f64().unwrap() > 0.0);
            assert_eq!(look["workers"].as_array().unwrap().len(), 1);
            break;
        }
    }
    running.stop().await;
}

/// So many looks of a follower, while others follow and ask.
async fn statements_for(desk: &Desk, followers: usize, looks: usize) -> u64 {
    let mut all = Vec::new();
    for _ in 0..followers {
        all.push(Following::begin(desk).await);
    }
    let mut first = all.pop().unwrap();
    first.next().await;
    let before = metric(desk).await;
    for _ in 0..looks {
        first.next().await;
        // The others are given theirs as well.
        for follower in &mut all {
            follower.next().await;
        }
        let asked = (0..followers).map(|_| desk.ask("GET", "/api/v1/overview", &[], ""));
        futures_util::future::join_all(asked).await;
    }
    metric(desk).await - before
}

async fn metric(desk: &Desk) -> u64 {
    let text = desk.ask("GET", "/metrics", &[], "").await.text;
    let line = text
        .lines()
        .find(|line| line.starts_with("durable_dash_statements_total "))
        .unwrap()
        .to_owned();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_hundred_dashboards_cost_the_database_what_one_costs() {
    let desk = open().await;
    let one = statements_for(&desk, 1, 6).await;
    let hundred = statements_for(&desk, 100, 6).await;
    // The looks are counted, not the seconds; the slow ones fall where they fall.
    assert!(
        one > 0 && hundred <= one * 2,
        "one: {one} statements in 6 looks, a hundred: {hundred}"
    );
}

#[tokio::test]
async fn when_nobody_looks_the_database_is_left_in_peace() {
    let desk = open().await;
    let before = metric(&desk).await;
    drop(Following::begin(&desk).await);
    // Attention lasts a while after the last question; then nothing more is sent, for as long as nobody asks.
    let count = || async {
        let schema = desk.client.pool().schema().to_owned();
        let tx = desk.client.pool().begin().await.unwrap();
        let asked = "select coalesce(max(extract(epoch from statement_timestamp() - query_start)), 1e9)::float8
            from pg_stat_activity where application_name = 'gen_durable dash' and query like '%' || $1 || '%'";
        let idle: f64 = tx.query_one(asked, &[&schema]).await.unwrap().get(0);
        tx.rollback().await.unwrap();
        idle
    };
    eventually("nothing was sent for four seconds", async || {
        count().await > 4.0
    })
    .await;
    assert!(metric(&desk).await >= before);
}

#[tokio::test]
async fn the_numbers_for_prometheus_are_well_formed_whatever_names_there_are() {
    let desk = open().await;
    desk.sql("insert into SCHEMA.instances (fsm, step, state, queue) values (E'a\"b\\\\c\\nd', 's', '{}', E'q\"\\n')")
        .await;
    let text = desk.ask("GET", "/metrics", &[], "").await.text;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(name.starts_with("durable_"), "{line}");
    }
    assert!(
        text.contains(r#"durable_queue_due{queue="q\"\n"} 1"#),
        "{text}"
    );
}

#[tokio::test]
async fn health_says_whether_the_database_and_its_schema_are_well() {
    let desk = open().await;
    let health = desk.ask("GET", "/api/v1/health", &[], "").await;
    assert_eq!(
        (health.status.as_u16(), &health.json()["schema"]),
        (200, &json!("ok"))
    );
    desk.client.pool().migrations().down(0).await.unwrap();
    let health = desk.ask("GET", "/api/v1/health", &[], "").await;
    assert_eq!(health.status.as_u16(), 503, "{}", health.text);
    eventually("the overview says so too", async || {
        let look = desk.ask("GET", "/api/v1/overview", &[], "").await.json();
        look["trouble"]
            .as_str()
            .is_some_and(|trouble| trouble.contains("durable migrate up"))
    })
    .await;
}
