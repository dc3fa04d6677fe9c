//! Tests of the charts of rollups, and of the pages of one queue and one worker.

use axum::http::StatusCode;
use serde_json::json;

use crate::support::{READER, TestServer};

const WORKER: &str = "00000000-0000-0000-0000-000000000007";

/// Inserts a worker with a claim, a queue with a retention, and rollups of two pairs.
async fn plant(server: &TestServer) {
    server
        .sql(&format!(
            "insert into SCHEMA.workers (id, lease_expires_at, host, pid, queues, machines, steps, version, connections_max, draining)
             values ('{WORKER}', statement_timestamp() + interval '1 h', 'host', 1, array['mail'], array['parcel/1'], array['parcel/1/pack'], '9.9', 17, true);
             insert into SCHEMA.instances (machine, step, state, queue, status, locked_by, lease_expires_at, key, key_scope, last_error)
             values ('parcel', 'pack', '{{\"password\": \"x\"}}', 'mail', 'executing', '{WORKER}', statement_timestamp(), 'secret-key', '{{}}', 'password=x');
             insert into SCHEMA.queues (name, retention, failed_retention) values ('mail', 60, 'infinity');
             select SCHEMA._add_rollups('{WORKER}', 1, 0, array['parcel', ''], array['mail', ''], array[100, 1], array[10, 0], array[80, 1], array[5, 0],
                 array_cat(array[50, 45, 5] || array_fill(0::bigint, array[18]), array_fill(0::bigint, array[21])),
                 array_cat(array_fill(0::bigint, array[20]) || 100::bigint, 1::bigint || array_fill(0::bigint, array[20])))"
        ))
        .await;
}

#[tokio::test]
async fn rollups_are_read_by_period_machine_and_queue_with_bounds_for_percentiles() {
    let server = TestServer::new().await;
    let empty = server.read("/api/v1/rollups?machine=early").await;
    assert_eq!(
        (&empty["period"], &empty["oldest"], &empty["points"]),
        (&json!("hour"), &json!(null), &json!([]))
    );
    plant(&server).await;
    for (period, seconds, buckets) in [("hour", 60, 60), ("day", 600, 144), ("week", 3600, 168)] {
        let all = server
            .read(&format!("/api/v1/rollups?period={period}"))
            .await;
        assert_eq!(
            (&all["bucket_seconds"], &all["buckets"]),
            (&json!(seconds), &json!(buckets))
        );
        let points = all["points"].as_array().unwrap();
        assert_eq!(
            (points.len(), all["pairs"].as_array().unwrap().len()),
            (1, 2)
        );
        assert_eq!(
            (&points[0]["steps"], &points[0]["done"]),
            (&json!(101), &json!(81))
        );
        assert_eq!(points[0]["at"], all["oldest"]);
    }
    let one = server
        .read("/api/v1/rollups?period=day&machine=parcel&queue=mail")
        .await;
    let point = &one["points"][0];
    assert_eq!(
        (&point["steps"], &point["failures"], &point["failed"]),
        (&json!(100), &json!(10), &json!(5))
    );
    assert_eq!(
        point["queue_time"],
        json!({"count": 100, "p50": {"at_most_ms": 1}, "p95": {"at_most_ms": 2}, "p99": {"at_most_ms": 5}})
    );
    assert_eq!(point["duration"]["p50"], json!({"over_ms": 86_400_000}));
    let other = server.read("/api/v1/rollups?machine=other").await;
    assert_eq!(other["points"], json!([]));
    assert_ne!(other["oldest"], json!(null), "workers have counted");
    let wrong = server.get("/api/v1/rollups?period=month").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{}", wrong.text);
}

#[tokio::test]
async fn one_queue_shows_its_retention_and_workers_and_an_unknown_one_is_not_found() {
    let server = TestServer::new().await;
    plant(&server).await;
    let queue = server.read("/api/v1/queues/mail").await;
    assert_eq!(
        (
            &queue["queue"]["retention_seconds"],
            &queue["queue"]["failed_retention_seconds"]
        ),
        (&json!(60.0), &json!("infinity"))
    );
    assert_eq!(
        queue["workers"],
        json!([{"id": WORKER, "host": "host", "pid": 1, "draining": true}])
    );
    let unknown = server.get("/api/v1/queues/none").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn one_worker_shows_its_claims_without_keys_and_payloads_and_an_unknown_one_is_not_found() {
    let server = TestServer::new().await;
    plant(&server).await;
    let headers = [("authorization", &*format!("Bearer {READER}"))];
    let path = format!("/api/v1/workers/{WORKER}");
    let answer = server.ask("GET", &path, &headers, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    assert!(!answer.text.contains("secret-key") && !answer.text.contains("password"));
    let worker = answer.json();
    assert_eq!(
        (
            &worker["worker"]["version"],
            &worker["worker"]["connections_max"]
        ),
        (&json!("9.9"), &json!(17))
    );
    assert_eq!(worker["worker"]["draining"], json!(true));
    let claims = worker["claims"].as_array().unwrap();
    assert_eq!(claims.len(), 1);
    assert_eq!(
        (
            &claims[0]["machine"],
            &claims[0]["step"],
            &claims[0]["queue"]
        ),
        (&json!("parcel"), &json!("pack"), &json!("mail"))
    );
    for unknown in ["none", "00000000-0000-0000-0000-000000000008"] {
        let answer = server.get(&format!("/api/v1/workers/{unknown}")).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{unknown}");
    }
}

#[tokio::test]
async fn a_read_of_full_rollups_is_bounded_by_the_buckets_of_the_period() {
    let server = TestServer::new().await;
    // As many rows as the table can have: 101 pairs in each bucket of each length.
    server
        .sql(
            "insert into SCHEMA.rollups
             select k.seconds, date_bin(make_interval(secs => k.seconds), statement_timestamp(), 'epoch') - b * make_interval(secs => k.seconds),
                 'm' || p, 'q', 1, 0, 1, 0, array_fill(1::bigint, array[21]), array_fill(1::bigint, array[21])
             from (values (60, 180), (600, 288), (3600, 192)) as k(seconds, buckets)
             cross join lateral generate_series(0, k.buckets - 1) as b cross join generate_series(1, 101) as p;
             analyze SCHEMA.rollups",
        )
        .await;
    for (period, buckets) in [("hour", 60), ("day", 144), ("week", 168)] {
        let all = server
            .read(&format!("/api/v1/rollups?period={period}"))
            .await;
        let points = all["points"].as_array().unwrap();
        assert_eq!(points.len(), buckets, "{period}");
        assert!(points.iter().all(|point| point["steps"] == json!(101)));
        assert_eq!(all["pairs"].as_array().unwrap().len(), 101);
        assert_eq!(all["pairs"][0]["steps"], json!(buckets));
    }
}
