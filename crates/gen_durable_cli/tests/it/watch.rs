//! Tests that `--watch` repeats a command that only reads until the user interrupts the command.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;

use super::{TestSchema, durable, note, serve::interrupt, stderr};

#[tokio::test]
async fn a_command_with_the_option_watch_runs_repeatedly_until_it_receives_sigint() {
    let (db, client) = TestSchema::migrated().await;
    let mut command = durable();
    command
        .args(["queues", "--json", "--watch=1", "--schema", &db.schema])
        .env("DATABASE_URL", &db.url);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut outputs = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    assert_eq!(outputs.next().unwrap(), serde_json::json!([]));
    client.enqueue(note("x")).await.unwrap();
    let seen = outputs.find(|output| output[0]["due"] == 1).unwrap();
    assert_eq!(seen[0]["name"], "default");
    interrupt(&process);
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

#[tokio::test]
async fn the_option_watch_is_rejected_for_commands_that_write_and_a_watch_ends_at_an_error() {
    let (db, _) = TestSchema::migrated().await;
    let refused = db.run(&["pause", "mail", "--watch"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("only read"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(
        db.json(&["queues"]),
        serde_json::json!([]),
        "the command must change nothing"
    );
    assert_eq!(db.run(&["show", "77", "--watch=1"]).status.code(), Some(1));
    assert_eq!(db.run(&["queues", "--watch=0"]).status.code(), Some(2));
}
