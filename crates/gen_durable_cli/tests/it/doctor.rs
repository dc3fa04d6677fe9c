//! Tests the findings of `durable doctor` about lanes, schedules and projections.

use gen_durable::Client;
use serde_json::{Value, json};

use super::{TestSchema, stdout};

async fn sql(client: &Client, text: &str) {
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&text.replace("S.", &format!("{}.", client.pool().schema())))
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// Runs `durable doctor` and returns its findings. Asserts that the exit code is 3 if there are
/// findings, and 0 if there are none.
fn findings(db: &TestSchema) -> Vec<String> {
    let found = report(db)["findings"].as_array().unwrap().clone();
    let text = |finding: &Value| {
        let part = |name: &str| finding[name].as_str().unwrap().to_owned();
        format!("{}: {}", part("text"), part("remedy"))
    };
    found.iter().map(text).collect()
}

fn report(db: &TestSchema) -> Value {
    let output = db.run(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let is_empty = report["findings"].as_array().unwrap().is_empty();
    let code = if is_empty { 0 } else { 3 };
    assert_eq!(output.status.code(), Some(code), "{report}");
    report
}

fn finds(db: &TestSchema, what: &str) {
    let found = findings(db);
    assert!(
        found.iter().any(|finding| finding.contains(what)),
        "{what}: {found:#?}"
    );
}

#[tokio::test]
async fn durable_doctor_reports_a_blocked_lane() {
    let (db, client) = TestSchema::migrated().await;
    for _ in 0..2 {
        db.json(&[
            "enqueue",
            "deploy",
            "--state",
            "1",
            "--lane",
            "server:7",
            "--lane-blocks",
        ]);
    }
    sql(&client, "select S._place(0, 1000)").await;
    sql(
        &client,
        "update S.instances set status = 'failed', settled_at = S.clock(), last_error = 'no disk' where id = 1",
    )
    .await;
    finds(
        &db,
        "the lane server:7 is blocked by a failed instance, with 2 instances in it",
    );
    db.json(&["lanes", "skip", "server:7"]);
    assert!(
        !findings(&db)
            .iter()
            .any(|finding| finding.contains("the lane")),
        "the lane is no longer blocked"
    );
}

#[tokio::test]
async fn durable_doctor_reports_a_schedule_without_a_live_worker_or_with_a_start_error() {
    let (db, client) = TestSchema::migrated().await;
    sql(
        &client,
        "insert into S.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at)
         values ('nightly', '30 2 * * * [UTC]', 'latest', '30 2 * * * [UTC]', 'latest', S.clock())",
    )
    .await;
    finds(&db, "no live worker registers the schedule nightly");
    sql(
        &client,
        "update S.schedules set last_error = 'its job is unknown'",
    )
    .await;
    finds(
        &db,
        "the schedule nightly cannot be started: its job is unknown",
    );
    sql(
        &client,
        "update S.schedules set last_error = null, paused_at = S.clock()",
    )
    .await;
    assert_eq!(
        findings(&db),
        Vec::<String>::new(),
        "a paused schedule is no finding"
    );
}

#[tokio::test]
async fn durable_doctor_reports_a_halted_projection_and_a_projection_without_a_live_worker() {
    let (db, client) = TestSchema::migrated().await;
    client.events().assign_positions("acme").await.unwrap();
    sql(&client, "select S.record('acme', 'sold', '1')").await;
    client.events().assign_positions("acme").await.unwrap();
    sql(
        &client,
        "insert into S.projections (tenant, projection, version, status, last_error)
         values ('acme', 'till', 1, 'halted', 'unknown article')",
    )
    .await;
    finds(
        &db,
        "the projection till of \"acme\" is halted at 0 of 1: unknown article",
    );
    finds(&db, "no live worker registers the projection till");
    sql(
        &client,
        "update S.projections set status = 'running', position = 1",
    )
    .await;
    assert_eq!(
        findings(&db),
        Vec::<String>::new(),
        "a projection without lag is no finding"
    );
}

#[tokio::test]
async fn durable_doctor_reports_due_work_without_a_worker_with_a_code_and_a_severity() {
    let (db, client) = TestSchema::migrated().await;
    sql(
        &client,
        "insert into S.instances (machine, step, state) select 'note', 'run', '1' from generate_series(1, 3);
         insert into S.instances (machine, step, state, status, settled_at, last_error)
         select 'note', 'run', '1', 'failed', S.clock(), 'no van' from generate_series(1, 10050)",
    )
    .await;
    let report = report(&db);
    let first = &report["findings"][0];
    assert_eq!(
        (&first["severity"], report["live_workers"].as_i64()),
        (&json!("critical"), Some(0)),
        "{report}"
    );
    let codes: Vec<&Value> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| &finding["code"])
        .collect();
    assert!(codes.contains(&&json!("no_worker")), "{report}");
    finds(&db, "no worker is running, and 3 instances are due");
    assert!(
        report["notes"][0]
            .as_str()
            .unwrap()
            .starts_with("10,000 or more instances have failed"),
        "{report}"
    );
    // A database that cannot be reached is an error, and not a finding.
    let lost = super::durable()
        .args([
            "doctor",
            "--database-url",
            "postgres://localhost:1/x?sslmode=disable",
        ])
        .output()
        .unwrap();
    assert_eq!(lost.status.code(), Some(1));
}
