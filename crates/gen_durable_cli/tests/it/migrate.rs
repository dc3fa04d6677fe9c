//! Tests that `durable migrate` upgrades and downgrades the schema, and prints its SQL for other
//! tools.

use super::{TestSchema, durable, stderr, stdout};

#[test]
fn durable_migrate_installs_the_schema_and_removes_it_only_with_the_option_yes() {
    let db = TestSchema::new();
    assert_eq!(db.json(&["migrate", "status"])["installed"], 0);
    let output = db.run(&["ls"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("durable migrate up"),
        "{}",
        stderr(&output)
    );

    assert_eq!(
        db.json(&["migrate", "up", "--to", "1"])["applied"],
        serde_json::json!([1])
    );
    db.json(&["migrate", "up"]);
    assert_eq!(
        db.json(&["migrate", "up"])["applied"],
        serde_json::json!([])
    );
    let status = db.json(&["migrate", "status"]);
    assert_eq!(status["installed"], status["current"]);
    assert_eq!(db.listed(&[]), serde_json::json!([]));

    let refused = db.run(&["migrate", "down", "--to", "0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--yes"), "{}", stderr(&refused));
    assert_ne!(db.json(&["migrate", "status"])["installed"], 0);
    db.json(&["migrate", "down", "--to", "0", "--yes"]);
    assert_eq!(db.json(&["migrate", "status"])["installed"], 0);
}

#[tokio::test]
async fn a_downgrade_that_drops_tables_needs_the_option_yes_and_no_live_worker() {
    let (db, client) = TestSchema::migrated().await;
    let refused = db.run(&["migrate", "down", "--to", "0"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    assert!(
        ["--yes", "instances", "events", "audit"]
            .iter()
            .all(|part| message.contains(part)),
        "{message}"
    );
    let nothing = db.run(&["migrate", "down", "--to", "1"]);
    assert!(
        nothing.status.success(),
        "no table goes: {}",
        stderr(&nothing)
    );

    let tx = client.pool().begin().await.unwrap();
    let worker = format!(
        "insert into {}.workers (id, host, pid, queues, machines, lease_expires_at)
        values (gen_random_uuid(), 'here', 1, '{{default}}', '{{}}', now() + interval '1 minute')",
        db.schema
    );
    tx.batch_execute(&worker).await.unwrap();
    tx.commit().await.unwrap();
    let refused = db.run(&["migrate", "down", "--to", "0", "--yes"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("1 workers are running"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(
        db.json(&["migrate", "status"])["installed"],
        db.json(&["migrate", "status"])["current"]
    );

    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&format!("delete from {}.workers", db.schema))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    db.json(&["migrate", "down", "--to", "0", "--yes"]);
    assert_eq!(db.json(&["migrate", "status"])["installed"], 0);
}

#[test]
fn durable_migrate_prints_sql_for_the_given_schema_without_a_database_connection() {
    let print = |arguments: &[&str]| {
        let output = durable()
            .arg("migrate")
            .args(arguments)
            .args(["--schema", "elsewhere"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let up = print(&["sql"]);
    assert!(
        up.contains("create schema elsewhere;") && !up.contains("gen_durable."),
        "{up}"
    );
    assert!(print(&["sql", "--from", "1", "--to", "0"]).contains("drop schema elsewhere"));
    assert!(
        print(&[
            "grant",
            "--runtime",
            "r_role",
            "--reader",
            "l_role",
            "--print"
        ])
        .contains("\"r_role\"")
    );
}

#[tokio::test]
async fn durable_migrate_grant_gives_existing_roles_their_rights_and_rejects_missing_roles() {
    let (db, client) = TestSchema::migrated().await;
    let (runtime, reader) = (
        format!("{}_runtime", db.schema),
        format!("{}_reader", db.schema),
    );
    let grant = [
        "migrate",
        "grant",
        "--runtime",
        &runtime,
        "--reader",
        &reader,
    ];
    let output = db.run(&grant);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("does not exist"),
        "{}",
        stderr(&output)
    );
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&format!("create role {runtime}; create role {reader}"))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.json(&grant)["runtime"], runtime.as_str());
    let tx = client.pool().begin().await.unwrap();
    let may = format!(
        "select has_table_privilege($1::text::name, '{}.instances', $2)",
        db.schema
    );
    let may_insert: bool = tx
        .query_one(&may, &[&runtime, &"insert"])
        .await
        .unwrap()
        .get(0);
    let may_not: bool = tx
        .query_one(&may, &[&reader, &"insert"])
        .await
        .unwrap()
        .get(0);
    assert_eq!((may_insert, may_not), (true, false));
}
