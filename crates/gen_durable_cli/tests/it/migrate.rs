//! The schema up and down, and what is printed for other tools.

use super::{Place, durable, stderr, stdout};

#[test]
fn the_schema_goes_up_and_down_and_leaves_nothing() {
    let place = Place::new();
    assert_eq!(place.json(&["migrate", "status"])["installed"], 0);
    let output = place.run(&["ls"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("durable migrate up"),
        "{}",
        stderr(&output)
    );

    assert_eq!(
        place.json(&["migrate", "up", "--to", "1"])["applied"],
        serde_json::json!([1])
    );
    place.json(&["migrate", "up"]);
    assert_eq!(
        place.json(&["migrate", "up"])["applied"],
        serde_json::json!([])
    );
    let status = place.json(&["migrate", "status"]);
    assert_eq!(status["installed"], status["current"]);
    assert_eq!(place.json(&["ls"]), serde_json::json!([]));

    let refused = place.run(&["migrate", "down", "--to", "0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--yes"), "{}", stderr(&refused));
    assert_ne!(place.json(&["migrate", "status"])["installed"], 0);
    place.json(&["migrate", "down", "--to", "0", "--yes"]);
    assert_eq!(place.json(&["migrate", "status"])["installed"], 0);
}

#[tokio::test]
async fn a_migration_that_deletes_tables_names_them_and_waits_for_a_yes_and_for_the_workers_to_stop()
 {
    let (place, client) = Place::migrated().await;
    let refused = place.run(&["migrate", "down", "--to", "8"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    assert!(
        message.contains("--yes") && message.contains("events") && message.contains("audit"),
        "{message}"
    );
    assert!(!message.contains("instances"), "{message}");

    let tx = client.pool().begin().await.unwrap();
    let worker = format!(
        "insert into {}.workers (id, host, pid, queues, machines, lease_expires_at)
        values (gen_random_uuid(), 'here', 1, '{{default}}', '{{}}', now() + interval '1 minute')",
        place.schema
    );
    tx.batch_execute(&worker).await.unwrap();
    tx.commit().await.unwrap();
    let refused = place.run(&["migrate", "down", "--to", "8", "--yes"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("1 workers are running"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(
        place.json(&["migrate", "status"])["installed"],
        place.json(&["migrate", "status"])["current"]
    );

    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&format!("delete from {}.workers", place.schema))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    place.json(&["migrate", "down", "--to", "8", "--yes"]);
    assert_eq!(place.json(&["migrate", "status"])["installed"], 8);
}

#[test]
fn sql_is_printed_for_the_schema_that_is_named_and_without_a_database() {
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
async fn rights_are_granted_to_roles_that_exist() {
    let (place, client) = Place::migrated().await;
    let (runtime, reader) = (
        format!("{}_runtime", place.schema),
        format!("{}_reader", place.schema),
    );
    let grant = [
        "migrate",
        "grant",
        "--runtime",
        &runtime,
        "--reader",
        &reader,
    ];
    let output = place.run(&grant);
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
    assert_eq!(place.json(&grant)["runtime"], runtime.as_str());
    let tx = client.pool().begin().await.unwrap();
    let may = format!(
        "select has_table_privilege($1::text::name, '{}.instances', $2)",
        place.schema
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
