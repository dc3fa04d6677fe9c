//! `durable audit`: acts from the command line are recorded like those of a dashboard.

use serde_json::json;

use super::{Place, stderr, stdout};

#[tokio::test]
async fn what_is_done_by_commands_is_recorded_with_who_did_it_and_how_it_went() {
    let (place, _) = Place::migrated().await;
    assert!(stdout(&place.run(&["audit"])).contains("nobody has done anything"));
    place.json(&[
        "enqueue",
        "note",
        "--state",
        r#"{"password": "hunter2"}"#,
        "--key",
        "k",
    ]);
    place.json(&["cancel", "1", "--reason", "a mistake"]);
    let refused = place.run(&["signal", "1", "go", r#"{"password": "hunter2"}"#]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    place.json(&["pause", "mail"]);
    // Looks are no acts, and neither is a command that is not understood.
    place.json(&["ls"]);
    assert_eq!(place.run(&["cancel"]).status.code(), Some(2));
    let acts = place.json(&["audit"]);
    let said: Vec<_> = acts
        .as_array()
        .unwrap()
        .iter()
        .map(|act| (&act["act"], &act["subject"], &act["went_well"]))
        .collect();
    assert_eq!(
        said,
        [
            (&json!("pause"), &json!("queue mail"), &json!(true)),
            (&json!("signal"), &json!("instance 1: go"), &json!(false)),
            (&json!("cancel"), &json!("instance 1"), &json!(true)),
            (&json!("enqueue"), &json!("machine note"), &json!(true)),
        ]
    );
    assert!(
        acts.to_string().contains("\"via\":\"command\"") && !acts.to_string().contains("hunter2"),
        "{acts}"
    );
    let page = place.json(&["audit", "--limit", "1", "--before", "4"]);
    assert_eq!(
        (page.as_array().unwrap().len(), &page[0]["id"]),
        (1, &json!(3))
    );
    let table = stdout(&place.run(&["audit", "--limit", "2"]));
    assert!(
        table.contains("queue mail") && table.contains("more: --before 3"),
        "{table}"
    );
    assert_eq!(place.run(&["audit", "--limit", "0"]).status.code(), Some(2));
}
