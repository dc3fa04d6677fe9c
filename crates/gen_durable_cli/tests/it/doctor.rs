//! What the doctor finds in lanes, schedules and projections.

use gen_durable::Client;

use super::{Place, stdout};

async fn sql(client: &Client, text: &str) {
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&text.replace("S.", &format!("{}.", client.pool().schema())))
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// What it finds, and that it says so by its exit code.
fn findings(place: &Place) -> Vec<String> {
    let output = place.run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let findings: Vec<String> = serde_json::from_value(report["findings"].clone()).unwrap();
    assert_eq!(
        output.status.code(),
        Some(i32::from(!findings.is_empty())),
        "{report}"
    );
    findings
}

fn finds(place: &Place, what: &str) {
    let found = findings(place);
    assert!(
        found.iter().any(|finding| finding.contains(what)),
        "{what}: {found:#?}"
    );
}

#[tokio::test]
async fn a_lane_that_stands_still_is_found() {
    let (place, client) = Place::migrated().await;
    for _ in 0..2 {
        place.json(&[
            "enqueue",
            "deploy",
            "--state",
            "1",
            "--lane",
            "server:7",
            "--lane-blocks",
        ]);
    }
    sql(&client, "select S.place(0, 1000)").await;
    sql(
        &client,
        "update S.instances set status = 'failed', finished_at = S.clock(), last_error = 'no disk' where id = 1",
    )
    .await;
    finds(
        &place,
        "the lane server:7 stands still behind one that failed, with 2 in it",
    );
    place.json(&["lanes", "skip", "server:7"]);
    assert!(
        !findings(&place)
            .iter()
            .any(|finding| finding.contains("the lane")),
        "it goes on"
    );
}

#[tokio::test]
async fn a_schedule_that_nobody_registers_or_that_cannot_start_is_found() {
    let (place, client) = Place::migrated().await;
    sql(
        &client,
        "insert into S.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at)
         values ('nightly', '30 2 * * * [UTC]', 'latest', '30 2 * * * [UTC]', 'latest', S.clock())",
    )
    .await;
    finds(&place, "no live worker registers the schedule nightly");
    sql(
        &client,
        "update S.schedules set last_error = 'its job is unknown'",
    )
    .await;
    finds(
        &place,
        "the schedule nightly cannot be started: its job is unknown",
    );
    sql(
        &client,
        "update S.schedules set last_error = null, paused_at = S.clock()",
    )
    .await;
    assert_eq!(
        findings(&place),
        Vec::<String>::new(),
        "who paused it knows"
    );
}

#[tokio::test]
async fn a_projection_that_has_halted_or_that_nobody_registers_is_found() {
    let (place, client) = Place::migrated().await;
    client.events().place("acme").await.unwrap();
    sql(&client, "select S.record('acme', 'sold', '1')").await;
    client.events().place("acme").await.unwrap();
    sql(
        &client,
        "insert into S.projections (tenant, projection, version, status, last_error)
         values ('acme', 'till', 1, 'halted', 'nobody sells that')",
    )
    .await;
    finds(
        &place,
        "the projection till of \"acme\" is halted at 0 of 1: nobody sells that",
    );
    finds(&place, "no live worker registers the projection till");
    sql(
        &client,
        "update S.projections set status = 'running', position = 1",
    )
    .await;
    assert_eq!(
        findings(&place),
        Vec::<String>::new(),
        "it is up to date, and there is nothing to do"
    );
}
