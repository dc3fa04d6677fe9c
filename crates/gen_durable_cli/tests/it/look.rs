//! ls, show, queues, pause, resume, workers, doctor.

use super::{Place, note, stderr, stdout};

#[tokio::test]
async fn what_is_enqueued_is_listed_the_newest_first_and_page_by_page() {
    let (place, client) = Place::migrated().await;
    client.enqueue_all(["a", "b", "c"].map(note)).await.unwrap();
    let all = place.json(&["ls"]);
    let ids: Vec<i64> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids, [3, 2, 1]);
    assert_eq!(all[0]["state"]["text"], "c");
    assert_eq!(
        place.json(&["ls", "--limit", "1", "--before", "3"])[0]["id"],
        2
    );
    assert_eq!(
        place.json(&["ls", "--machine", "nothing"]),
        serde_json::json!([])
    );
    assert_eq!(
        place.json(&["ls", "--status", "done"]),
        serde_json::json!([])
    );
    assert_eq!(
        place
            .json(&["ls", "--status", "runnable", "--queue", "default"])
            .as_array()
            .unwrap()
            .len(),
        3
    );
    let page = stdout(&place.run(&["ls", "--limit", "2"]));
    assert!(page.contains("older ones: --before 2"), "{page}");
    assert!(page.contains("runnable") && page.contains("note"), "{page}");
}

#[tokio::test]
async fn an_instance_is_shown_whole() {
    let (place, client) = Place::migrated().await;
    let id = client
        .enqueue(note("hello"))
        .priority(-3)
        .tenant("acme")
        .await
        .unwrap()
        .id;
    let shown = stdout(&place.run(&["show", &id.to_string()]));
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
    let json = place.json(&["show", "1"]);
    assert_eq!(
        (&json["tenant"], &json["state"]["text"]),
        (&"acme".into(), &"hello".into())
    );
    assert_eq!(json["result"], serde_json::Value::Null);
}

#[tokio::test]
async fn an_escape_sequence_in_a_state_or_an_error_does_not_reach_the_terminal() {
    let (place, client) = Place::migrated().await;
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\u{7f}";
    client
        .enqueue(note(evil))
        .tenant("\u{1b}[31mtenant")
        .await
        .unwrap();
    let tx = client.pool().begin().await.unwrap();
    let update = format!(
        "update {}.instances set last_error = $1, fsm = $1, queue = $1, step = $1",
        place.schema
    );
    tx.execute(&update, &[&evil]).await.unwrap();
    tx.commit().await.unwrap();
    client
        .operate()
        .signal(
            gen_durable::Address::Id(gen_durable::Id::from_raw(1)),
            evil,
            "1",
            None,
        )
        .await
        .unwrap();
    for command in ["ls", "show 1", "explain 1", "queues", "doctor"]
        .iter()
        .flat_map(|c| [(*c).to_owned(), format!("{c} --json")])
    {
        let output = place.run(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(stderr(&output), "", "{command}");
        let text = stdout(&output);
        let bad = text
            .chars()
            .find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(bad, None, "{command:?}: {text:?}");
    }
    // A program still gets what was there.
    assert_eq!(place.json(&["show", "1"])["state"]["text"], evil);
}

#[tokio::test]
async fn a_number_larger_than_any_integer_is_shown_digit_for_digit() {
    let (place, client) = Place::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    let digits = "123456789012345678901234567890";
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&format!(
        "update {}.instances set state = '{{\"n\": {digits}}}'",
        place.schema
    ))
    .await
    .unwrap();
    tx.commit().await.unwrap();
    for command in [
        vec!["show", "1"],
        vec!["show", "1", "--json"],
        vec!["ls", "--json"],
    ] {
        let text = stdout(&place.run(&command));
        assert!(text.contains(digits), "{command:?}: {text}");
    }
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed() {
    let (place, client) = Place::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    assert_eq!(place.json(&["queues"])[0]["paused"], false);
    assert_eq!(place.json(&["pause", "default"])["paused"], true);
    let queues = place.json(&["queues"]);
    assert_eq!(
        (&queues[0]["paused"], &queues[0]["due"]),
        (&true.into(), &1.into())
    );
    assert!(stdout(&place.run(&["queues"])).contains("paused"));
    assert_eq!(place.json(&["resume", "default"])["was_paused"], true);
    assert_eq!(place.json(&["resume", "default"])["was_paused"], false);
    assert_eq!(place.json(&["queues"])[0]["paused"], false);
}

#[tokio::test]
async fn the_doctor_is_content_with_an_empty_schema_and_not_with_work_that_nobody_can_run() {
    let (place, client) = Place::migrated().await;
    assert_eq!(place.json(&["workers"]), serde_json::json!([]));
    assert_eq!(place.json(&["doctor"])["findings"], serde_json::json!([]));
    client.enqueue(note("x")).await.unwrap();
    let output = place.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("no live worker runs note v1"),
        "{}",
        stdout(&output)
    );
}
