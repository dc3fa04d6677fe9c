//! `--watch`: the same look again and again, until somebody asks for the end.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;

use super::{Place, durable, note, serve::interrupt, stderr};

#[tokio::test]
async fn a_look_is_repeated_until_it_is_asked_to_end() {
    let (place, client) = Place::migrated().await;
    let mut command = durable();
    command
        .args(["queues", "--json", "--watch=1", "--schema", &place.schema])
        .env("DATABASE_URL", &place.url);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut looks = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    assert_eq!(looks.next().unwrap(), serde_json::json!([]));
    client.enqueue(note("x")).await.unwrap();
    let seen = looks.find(|look| look[0]["due"] == 1).unwrap();
    assert_eq!(seen[0]["name"], "default");
    interrupt(&process);
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

#[tokio::test]
async fn what_changes_something_is_not_repeated_and_a_look_that_fails_ends_it() {
    let (place, _) = Place::migrated().await;
    let refused = place.run(&["pause", "mail", "--watch"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("only look"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(
        place.json(&["queues"]),
        serde_json::json!([]),
        "nothing was done"
    );
    assert_eq!(
        place.run(&["show", "77", "--watch=1"]).status.code(),
        Some(1)
    );
    assert_eq!(place.run(&["queues", "--watch=0"]).status.code(), Some(2));
}
