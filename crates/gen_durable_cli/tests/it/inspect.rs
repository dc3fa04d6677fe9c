//! Tests the commands ls, show, queues, pause, resume, workers and doctor.

use super::{TestSchema, note, stderr, stdout};

#[tokio::test]
async fn durable_ls_lists_instances_newest_first_and_page_by_page() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue_all(["a", "b", "c"].map(note)).await.unwrap();
    let all = db.listed(&[]);
    let ids: Vec<&str> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["3", "2", "1"]);
    assert_eq!(db.listed(&["--limit", "1", "--before", "3"])[0]["id"], "2");
    assert_eq!(db.listed(&["--machine", "nothing"]), serde_json::json!([]));
    assert_eq!(db.listed(&["--status", "done"]), serde_json::json!([]));
    assert_eq!(
        db.listed(&["--status", "runnable", "--queue", "default"])
            .as_array()
            .unwrap()
            .len(),
        3
    );
    let page = stdout(&db.run(&["ls", "--limit", "2"]));
    assert!(page.contains("older: --before 2"), "{page}");
    assert!(page.contains("runnable") && page.contains("note"), "{page}");
}

#[tokio::test]
async fn durable_show_prints_the_columns_and_the_state_of_an_instance() {
    let (db, client) = TestSchema::migrated().await;
    let id = client
        .enqueue(note("hello"))
        .priority(-3)
        .tenant("acme")
        .await
        .unwrap()
        .id;
    let shown = stdout(&db.run(&["show", &id.to_string()]));
    for part in [
        "instance 1",
        "note v1",
        "runnable",
        "priority -3",
        "acme",
        "\"text\": \"hello\"",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let json = db.json(&["show", "1"]);
    assert_eq!(
        (&json["tenant"], &json["state"]["text"]),
        (&"acme".into(), &"hello".into())
    );
    assert_eq!(json["result"], serde_json::Value::Null);
}

#[tokio::test]
async fn commands_escape_control_characters_in_stored_values_before_they_print_them() {
    let (db, client) = TestSchema::migrated().await;
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\u{7f}";
    client
        .enqueue(note(evil))
        .tenant("\u{1b}[31mtenant")
        .await
        .unwrap();
    let tx = client.pool().begin().await.unwrap();
    let update = format!(
        "update {}.instances set last_error = $1, machine = $1, queue = $1, step = $1",
        db.schema
    );
    tx.execute(&update, &[&evil]).await.unwrap();
    tx.commit().await.unwrap();
    client
        .operate()
        .signal(
            gen_durable::Address::Id(gen_durable::Id::from_raw(1)),
            evil,
            "1",
        )
        .await
        .unwrap();
    for command in ["ls", "show 1", "explain 1", "queues", "doctor"]
        .iter()
        .flat_map(|c| [(*c).to_owned(), format!("{c} --json")])
    {
        let output = db.run(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(stderr(&output), "", "{command}");
        let text = stdout(&output);
        let bad = text
            .chars()
            .find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(bad, None, "{command:?}: {text:?}");
    }
    // The JSON output of `durable show` contains the original text of the state after decoding.
    assert_eq!(db.json(&["show", "1"])["state"]["text"], evil);
}

#[tokio::test]
async fn durable_show_prints_all_digits_of_a_number_with_30_digits() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    let digits = "123456789012345678901234567890";
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&format!(
        "update {}.instances set state = '{{\"n\": {digits}}}'",
        db.schema
    ))
    .await
    .unwrap();
    tx.commit().await.unwrap();
    for command in [vec!["show", "1"], vec!["show", "1", "--json"]] {
        let text = stdout(&db.run(&command));
        assert!(text.contains(digits), "{command:?}: {text}");
    }
}

#[tokio::test]
async fn durable_pause_and_resume_change_the_status_of_a_queue() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    assert_eq!(db.json(&["queues"])[0]["paused"], false);
    assert_eq!(db.json(&["pause", "default"])["paused"], true);
    let queues = db.json(&["queues"]);
    assert_eq!(
        (&queues[0]["paused"], &queues[0]["due"]),
        (&true.into(), &1.into())
    );
    assert!(stdout(&db.run(&["queues"])).contains("paused"));
    assert_eq!(db.json(&["resume", "default"])["was_paused"], true);
    assert_eq!(db.json(&["resume", "default"])["was_paused"], false);
    assert_eq!(db.json(&["queues"])[0]["paused"], false);
}

#[tokio::test]
async fn durable_doctor_reports_instances_that_no_live_worker_can_run() {
    let (db, client) = TestSchema::migrated().await;
    assert_eq!(db.json(&["workers"]), serde_json::json!([]));
    assert_eq!(db.json(&["doctor"])["findings"], serde_json::json!([]));
    client.enqueue(note("x")).await.unwrap();
    let output = db.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stdout(&output).contains("no live worker runs note v1"),
        "{}",
        stdout(&output)
    );
}
