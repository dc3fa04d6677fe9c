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
        stderr(&refused).contains("unexpected argument '--watch'"),
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

#[test]
fn the_help_of_a_command_offers_watch_only_if_the_command_accepts_it() {
    let reads = [
        "ls",
        "show",
        "explain",
        "queues",
        "lanes",
        "partitions",
        "limits",
        "timers",
        "schedules",
        "workers",
        "projections",
        "audit",
        "bulk",
        "doctor",
    ];
    let writes = [
        "cancel", "retry", "discard", "enqueue", "signal", "pause", "serve", "wait", "dev",
    ];
    for (commands, offers) in [(&reads[..], true), (&writes[..], false)] {
        for command in commands {
            let help = durable().args([command, "--help"]).output().unwrap();
            let help = super::stdout(&help);
            assert_eq!(help.contains("--watch"), offers, "{command}: {help}");
        }
    }
    let act = durable()
        .args(["lanes", "--watch", "skip", "van:7"])
        .output()
        .unwrap();
    assert_eq!(act.status.code(), Some(2), "{}", stderr(&act));
}
