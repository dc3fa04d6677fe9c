//! Tests the numbers of the dashboard overview, and the number of statements that the dashboard
//! sends to read them.

use axum::{body::Body, http::Request};
use gen_durable_dash::{Access, Options};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Note, Parcel, Running, TestServer, eventually};

/// Reads the event stream of the dashboard, one snapshot of the overview at a time.
struct EventStream {
    body: Body,
    rest: String,
}

impl EventStream {
    async fn begin(server: &TestServer) -> EventStream {
        let request = Request::builder()
            .uri("/api/v1/live")
            .header("host", "localhost")
            .body(Body::empty())
            .unwrap();
        let response = server.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        EventStream {
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

async fn open() -> TestServer {
    TestServer::with(Access::only_local("me"), Options::new()).await
}

#[tokio::test]
async fn the_event_stream_sends_snapshots_that_contain_new_and_finished_instances() {
    let server = open().await;
    let mut stream = EventStream::begin(&server).await;
    assert_eq!(stream.next().await["totals"], json!({}));
    let running = Running::start(&server.client);
    server
        .client
        .enqueue(Parcel {
            name: "vase".into(),
            password: String::new(),
        })
        .await
        .unwrap();
    server
        .client
        .enqueue_all((0..50).map(|n| Note {
            text: n.to_string(),
        }))
        .await
        .unwrap();
    loop {
        let snapshot = stream.next().await;
        let done: i64 = snapshot["chart"]["done"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_i64().unwrap())
            .sum();
        let arrived: i64 = snapshot["chart"]["arrived"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_i64().unwrap())
            .sum();
        let parcel = snapshot["machines"]
            .as_array()
            .unwrap()
            .iter()
            .find(|machine| machine["name"] == "parcel")
            .cloned();
        let waits = parcel
            .as_ref()
            .is_some_and(|parcel| parcel["steps"]["send"]["awaiting_signal"] == 1);
        let edge = parcel.as_ref().is_some_and(|p| {
            p["edges"]
                .as_array()
                .unwrap()
                .iter()
                .any(|e| e["from"] == "pack" && e["to"] == "send")
        });
        if done == 50
            && arrived == 51
            && waits
            && edge
            && snapshot["minute"]["machines"]["note"]["done"] == 50
        {
            assert!(snapshot["minute"]["p50"].as_f64().unwrap() > 0.0);
            assert_eq!(snapshot["workers"].as_array().unwrap().len(), 1);
            break;
        }
    }
    running.stop().await;
}

/// Returns the number of statements that the dashboard sends to the database while each of
/// `streams` event streams receives `snapshots` snapshots. After each snapshot the function
/// requests the overview `streams` times in parallel.
async fn statements_for(server: &TestServer, streams: usize, snapshots: usize) -> u64 {
    let mut all = Vec::new();
    for _ in 0..streams {
        all.push(EventStream::begin(server).await);
    }
    let mut first = all.pop().unwrap();
    first.next().await;
    let before = metric(server).await;
    for _ in 0..snapshots {
        first.next().await;
        // Reads one snapshot from each of the remaining event streams.
        for other in &mut all {
            other.next().await;
        }
        let asked = (0..streams).map(|_| server.ask("GET", "/api/v1/overview", &[], ""));
        futures_util::future::join_all(asked).await;
    }
    metric(server).await - before
}

async fn metric(server: &TestServer) -> u64 {
    let text = server.ask("GET", "/metrics", &[], "").await.text;
    let line = text
        .lines()
        .find(|line| line.starts_with("durable_dash_statements_total "))
        .unwrap()
        .to_owned();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_hundred_open_dashboards_send_at_most_twice_the_statements_of_one() {
    let server = open().await;
    let one = statements_for(&server, 1, 6).await;
    let hundred = statements_for(&server, 100, 6).await;
    // The test compares statements per snapshot, not per second. The factor of two allows for the
    // statements that the server sends only for every third snapshot.
    assert!(
        one > 0 && hundred <= one * 2,
        "one: {one} statements for 6 snapshots, a hundred: {hundred}"
    );
}

#[tokio::test]
async fn a_server_sends_no_statements_while_no_dashboard_is_open() {
    let server = open().await;
    let before = metric(&server).await;
    drop(EventStream::begin(&server).await);
    // The server continues to read the numbers of the overview for a while after the last request.
    // After that time the server sends no statement until the next request.
    let count = || async {
        let schema = server.client.pool().schema().to_owned();
        let tx = server.client.pool().begin().await.unwrap();
        let asked = "select coalesce(max(extract(epoch from statement_timestamp() - query_start)), 1e9)::float8
            from pg_stat_activity where application_name = 'gen_durable dash' and query like '%' || $1 || '%'";
        let idle: f64 = tx.query_one(asked, &[&schema]).await.unwrap().get(0);
        tx.rollback().await.unwrap();
        idle
    };
    eventually("no statement was sent for four seconds", async || {
        count().await > 4.0
    })
    .await;
    assert!(metric(&server).await >= before);
}

#[tokio::test]
async fn the_metrics_route_escapes_quotes_and_newlines_in_machine_and_queue_names() {
    let server = open().await;
    server.sql("insert into SCHEMA.instances (machine, step, state, queue) values (E'a\"b\\\\c\\nd', 's', '{}', E'q\"\\n')")
        .await;
    let text = server.ask("GET", "/metrics", &[], "").await.text;
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
async fn the_health_route_returns_503_if_the_schema_is_not_installed() {
    let server = open().await;
    let health = server.ask("GET", "/api/v1/health", &[], "").await;
    assert_eq!(
        (health.status.as_u16(), &health.json()["schema"]),
        (200, &json!("ok"))
    );
    server.client.pool().migrations().down(0).await.unwrap();
    let health = server.ask("GET", "/api/v1/health", &[], "").await;
    assert_eq!(health.status.as_u16(), 503, "{}", health.text);
    eventually("the overview reports the error too", async || {
        let snapshot = server.ask("GET", "/api/v1/overview", &[], "").await.json();
        snapshot["trouble"]
            .as_str()
            .is_some_and(|trouble| trouble.contains("durable migrate up"))
    })
    .await;
}
