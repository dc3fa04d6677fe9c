//! Tests `durable audit`: the audit log contains the operator actions of commands, in the same form
//! as the actions in a dashboard.

use serde_json::json;

use super::{TestSchema, stderr, stdout};

#[tokio::test]
async fn the_audit_log_records_cli_commands_with_their_actor_and_outcome() {
    let (db, _) = TestSchema::migrated().await;
    assert!(stdout(&db.run(&["audit"])).contains("no actions are recorded"));
    db.json(&[
        "enqueue",
        "note",
        "--state",
        r#"{"password": "hunter2"}"#,
        "--key",
        "k",
    ]);
    db.json(&["cancel", "1", "--reason", "a mistake"]);
    let refused = db.run(&["signal", "1", "go", r#"{"password": "hunter2"}"#]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    db.json(&["pause", "mail"]);
    // The program `durable` writes no audit entry for a command that only reads, or for a command
    // with invalid usage.
    db.listed(&[]);
    assert_eq!(db.run(&["cancel"]).status.code(), Some(2));
    let acts = db.json(&["audit"]);
    let recorded: Vec<_> = acts
        .as_array()
        .unwrap()
        .iter()
        .map(|action| (&action["action"], &action["subject"], &action["succeeded"]))
        .collect();
    assert_eq!(
        recorded,
        [
            (&json!("pause"), &json!("queue mail"), &json!(true)),
            (&json!("signal"), &json!("instance 1: go"), &json!(false)),
            (&json!("cancel"), &json!("instance 1"), &json!(true)),
            (&json!("enqueue"), &json!("machine note"), &json!(true)),
        ]
    );
    assert!(
        acts.to_string().contains("\"channel\":\"command\"")
            && !acts.to_string().contains("hunter2"),
        "{acts}"
    );
    let page = db.json(&["audit", "--limit", "1", "--before", "4"]);
    assert_eq!(
        (page.as_array().unwrap().len(), &page[0]["id"]),
        (1, &json!("3"))
    );
    let table = stdout(&db.run(&["audit", "--limit", "2"]));
    assert!(
        table.contains("queue mail") && table.contains("more: --before 3"),
        "{table}"
    );
    assert_eq!(db.run(&["audit", "--limit", "0"]).status.code(), Some(2));
}
