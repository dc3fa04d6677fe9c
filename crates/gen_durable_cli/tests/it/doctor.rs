//! Tests the findings of `durable doctor` about lanes, schedules and projections.

use gen_durable::Client;

use super::{TestSchema, stdout};

async fn sql(client: &Client, text: &str) {
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&text.replace("S.", &format!("{}.", client.pool().schema())))
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// Runs `durable doctor` and returns its findings. Asserts that the exit code is 0 only if there
/// are no findings.
fn findings(db: &TestSchema) -> Vec<String> {
    let output = db.run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let findings: Vec<String> = serde_json::from_value(report["findings"].clone()).unwrap();
    assert_eq!(
        output.status.code(),
        Some(i32::from(!findings.is_empty())),
        "{report}"
    );
    findings
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
