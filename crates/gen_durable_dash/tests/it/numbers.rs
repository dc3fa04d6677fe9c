//! Tests that the numbers of the dashboard are the numbers of the tables, or are marked as lower
//! bounds, with more rows than the dashboard counts.

use gen_durable_dash::{Access, Options};
use serde_json::{Value, json};

use crate::support::{TestServer, eventually};

/// The largest number that the dashboard shows as an exact number.
const EXACT_MAX: i64 = 10_000;

/// Returns by how much the numbers of rows are multiplied. The environment variable
/// `DURABLE_DASH_ROWS` sets it: about that many instances are inserted.
fn scale() -> i64 {
    let rows = std::env::var("DURABLE_DASH_ROWS").ok();
    let rows = rows.and_then(|rows| rows.parse::<i64>().ok());
    rows.map_or(1, |rows| (rows / 70_000).max(1))
}

async fn count(server: &TestServer, condition: &str) -> i64 {
    let schema = server.client.pool().schema();
    let text = format!("select count(*) from {schema}.instances where {condition}");
    let tx = server.client.pool().begin().await.unwrap();
    tx.query_one(&text, &[]).await.unwrap().get(0)
}

/// Inserts instances of every status, some with more rows than the dashboard counts.
async fn load(server: &TestServer) {
    let failed = "settled_at, last_error";
    for (machine, status, columns, values, rows) in [
        (
            "a",
            "failed",
            failed,
            "statement_timestamp(), 'card ' || g || ' declined'",
            12_000,
        ),
        (
            "b",
            "failed",
            failed,
            "statement_timestamp(), 'bank away'",
            300,
        ),
        ("b", "stuck", "last_error", "'odd ' || g", 70),
        (
            "b",
            "cancelled",
            "settled_at",
            "statement_timestamp()",
            10_000,
        ),
        ("c", "awaiting_signal", "awaits", "array['go']", 12_500),
        ("c", "awaiting_children", "children_pending", "1", 5),
        ("c", "awaiting_limit", "limit_group", r"E'api\x01'", 60),
        ("a", "executing", "locked_by", "gen_random_uuid()", 3),
        ("a", "runnable", "queue", "'big'", 11_500),
        ("b", "runnable", "queue", "'small'", 40),
        (
            "b",
            "runnable",
            "queue, eligible_at",
            "'small', statement_timestamp() + interval '1 h'",
            25,
        ),
        (
            "d",
            "done",
            "settled_at",
            "statement_timestamp() - g % 20 * interval '1 s'",
            25_000,
        ),
    ] {
        let rows = rows * scale();
        server
            .sql(&format!(
                "insert into SCHEMA.instances (machine, step, state, status, {columns})
                 select '{machine}', 's' || g % 2, '{{}}', '{status}', {values} from generate_series(1, {rows}) g"
            ))
            .await;
    }
    server
        .sql(
            "insert into SCHEMA.instances (machine, step, state, status, lane_key, lane_position, in_lane)
             select 'e', 's', '{}', (case g when 1 then 'awaiting_signal' else 'queued' end)::SCHEMA.durable_status, 'van', g, true
             from generate_series(1, 90) g;
             insert into SCHEMA.instances (machine, step, state, status, lane_key, arrival_no)
             select 'e', 's', '{}', 'queued', 'van', g from generate_series(1, 7) g;
             analyze SCHEMA.instances",
        )
        .await;
}

/// Compares a number with the tables: a number that is marked may be smaller, any other is equal.
fn compare(wrong: &mut Vec<String>, what: &str, shown: &Value, is_marked: bool, stored: i64) {
    let shown = shown.as_i64().unwrap_or(0);
    let is_right = match is_marked {
        true => shown <= stored && stored > EXACT_MAX / 2,
        false => shown == stored && shown <= EXACT_MAX,
    };
    if !is_right {
        wrong.push(format!(
            "{what}: {shown} (marked: {is_marked}), SQL: {stored}"
        ));
    }
}

#[tokio::test]
async fn every_number_above_the_largest_count_is_marked_and_every_other_number_is_that_of_the_tables()
 {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    load(&server).await;
    let overview = server.read("/api/v1/overview").await;
    let mut wrong = Vec::new();
    let is_capped = |status: &str| {
        overview["capped"]
            .as_array()
            .unwrap()
            .contains(&json!(status))
    };
    // Overview and Machines.
    for status in [
        "failed",
        "stuck",
        "cancelled",
        "awaiting_signal",
        "awaiting_children",
        "awaiting_limit",
        "executing",
        "runnable",
        "queued",
    ] {
        let stored = count(&server, &format!("status = '{status}'")).await;
        let shown = &overview["totals"][status];
        compare(&mut wrong, status, shown, is_capped(status), stored);
        for machine in overview["machines"].as_array().unwrap() {
            let name = machine["name"].as_str().unwrap();
            for (step, counts) in machine["steps"].as_object().unwrap() {
                let which =
                    format!("status = '{status}' and machine = '{name}' and step = '{step}'");
                let (shown, stored) = (
                    counts[status].as_i64().unwrap_or(0),
                    count(&server, &which).await,
                );
                if shown > stored || (shown < stored && !is_capped(status)) {
                    wrong.push(format!("{which}: {shown}, SQL: {stored}"));
                }
            }
        }
    }
    // Queues.
    for queue in overview["queues"].as_array().unwrap() {
        let name = queue["name"].as_str().unwrap();
        for (field, when) in [("due", "<="), ("scheduled", ">")] {
            let which = format!(
                "status = 'runnable' and queue = '{name}' and eligible_at {when} statement_timestamp()"
            );
            let (shown, stored) = (&queue[field], count(&server, &which).await);
            let is_marked = shown.as_i64().unwrap() > EXACT_MAX;
            compare(
                &mut wrong,
                &format!("{name} {field}"),
                shown,
                is_marked,
                stored,
            );
        }
    }
    // Failures.
    let failures = server.read("/api/v1/failures").await;
    let is_marked = failures["failures_capped"] == true;
    for group in failures["failures"].as_array().unwrap() {
        let of = |field: &str| group[field].as_str().unwrap().to_owned();
        let which = format!(
            "machine = '{}' and step = '{}' and status = '{}' and last_error like '{}'",
            of("machine"),
            of("step"),
            of("status"),
            of("fingerprint").replace('#', "%")
        );
        let (shown, stored) = (
            group["count"].as_i64().unwrap(),
            count(&server, &which).await,
        );
        if shown > stored || (shown < stored && !is_marked) {
            wrong.push(format!("{which}: {shown}, SQL: {stored}"));
        }
    }
    assert!(is_marked, "12,300 failures are grouped in part: {failures}");
    // The last minute.
    let minute = &overview["minute"];
    compare(
        &mut wrong,
        "done in a minute",
        &minute["done"],
        minute["is_lower_bound"] == true,
        count(
            &server,
            "status = 'done' and settled_at > statement_timestamp() - interval '1 min'",
        )
        .await,
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Metrics have the same marks.
    let metrics = server.get("/metrics").await.text;
    let due = format!("durable_queue_due{{queue=\"small\"}} {}", 40 * scale());
    let scheduled = format!(
        "durable_queue_scheduled{{queue=\"small\"}} {}",
        25 * scale()
    );
    for line in [
        "durable_instances_capped{status=\"failed\"} 1",
        "durable_instances_capped{status=\"awaiting_signal\"} 1",
        "durable_queue_due_capped{queue=\"big\"} 1",
        "durable_queue_due_capped{queue=\"small\"} 0",
        &due,
        &scheduled,
        "durable_lanes_blocked_capped 0",
        "durable_timers_overdue_capped 0",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is missing: {metrics}"
        );
    }
    assert!(
        scale() > 1 || !metrics.contains("durable_instances_capped{status=\"cancelled\"}"),
        "10,000 is exact"
    );
}

/// A5: a cancelled instance is not a failure, and its time is not a time to finish.
#[tokio::test]
async fn cancelled_instances_count_neither_as_failed_nor_in_the_time_to_finish() {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    let insert = |machine: &str, status: &str, took: i64, rows: i64| {
        format!(
            "insert into SCHEMA.instances (machine, step, state, status, inserted_at, settled_at)
             select '{machine}', 's', '{{}}', '{status}', statement_timestamp() - interval '{took} s', statement_timestamp()
             from generate_series(1, {rows})"
        )
    };
    server.sql(&insert("quick", "done", 2, 30)).await;
    server.sql(&insert("slow", "failed", 600, 2)).await;
    server.sql(&insert("slow", "cancelled", 36_000, 40)).await;
    eventually("the instances are counted", async || {
        server.read("/api/v1/overview").await["minute"]["done"] == 30
    })
    .await;
    let overview = server.read("/api/v1/overview").await;
    let minute = &overview["minute"];
    assert_eq!(
        (&minute["failed"], &minute["cancelled"]),
        (&json!(2), &json!(40)),
        "{minute}"
    );
    assert!(minute["p99"].as_f64().unwrap() < 1_000_000.0, "{minute}");
    let machine = |name: &str| {
        let machines = overview["machines"].as_array().unwrap();
        machines
            .iter()
            .find(|machine| machine["name"] == name)
            .unwrap()["minute"]
            .clone()
    };
    assert!(
        machine("quick")["p99"].as_f64().unwrap() < 4_000.0,
        "{overview}"
    );
    assert!(
        machine("slow")["p50"].as_f64().unwrap() > 400_000.0,
        "{overview}"
    );
    eventually("the metrics count them", async || {
        let metrics = server.get("/metrics").await.text;
        metrics.contains("durable_settled_total{end=\"cancelled\"}")
    })
    .await;
}

/// A4: transitions of a part of the history are marked as a sample.
#[tokio::test]
async fn transitions_between_steps_are_marked_as_a_sample_if_there_are_more() {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    let insert = async |from: i64, until: i64| {
        server
            .sql(&format!(
                "insert into SCHEMA.instances (machine, step, state) select 'm', 's1', '{{}}' from generate_series({from}, {until});
                 insert into SCHEMA.history (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
                 select id, 1, 1, statement_timestamp(), 0, status, 'next', 's1', 's2' from SCHEMA.instances where id between {from} and {until}"
            ))
            .await;
    };
    insert(1, 100).await;
    let sampled = async || server.read("/api/v1/overview").await["edges_sampled"].clone();
    eventually("the transitions are counted", async || {
        server.read("/api/v1/overview").await["machines"][0]["edges"][0]["count"] == 100
    })
    .await;
    assert_eq!(sampled().await, json!(false));
    insert(101, 6_000).await;
    eventually("the transitions are a sample", async || {
        sampled().await == json!(true)
    })
    .await;
}
