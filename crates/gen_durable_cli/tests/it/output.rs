//! Tests the output of commands for people and for programs: width, colours, errors as JSON, the
//! filters of `durable ls`, and `durable wait`.

use std::process::{Command, Output};

use gen_durable::{Engine, operate::UntypedInstance};
use serde_json::{Value, json};

use super::{Note, TestSchema, durable, note, stderr, stdout};

fn command(db: &TestSchema, arguments: &[&str]) -> Command {
    let mut command = durable();
    command
        .args(arguments)
        .args(["--schema", &db.schema])
        .env("DATABASE_URL", &db.url)
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .env_remove("COLUMNS");
    command
}

pub(super) async fn sql(client: &gen_durable::Client, text: &str) {
    let tx = client.pool().begin().await.unwrap();
    tx.batch_execute(&text.replace("S.", &format!("{}.", client.pool().schema())))
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn the_table_of_durable_ls_fits_into_the_columns_of_the_terminal_and_has_colours_unless_no_color_is_set()
 {
    let (db, client) = TestSchema::migrated().await;
    sql(
        &client,
        "insert into S.instances (machine, step, state, status, settled_at, last_error)
         values (repeat('m', 3000), repeat('s', 300), '1', 'failed', S.clock(), repeat('e', 300))",
    )
    .await;
    let run = |changes: &[(&str, &str)]| {
        let mut command = command(&db, &["ls"]);
        command.envs(changes.iter().copied());
        stdout(&command.output().unwrap())
    };
    let columns = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
    let narrow = run(&[("COLUMNS", "80")]);
    assert!(columns(&narrow) <= 80, "{narrow}");
    assert!(
        narrow.contains("failed") && narrow.contains("m…"),
        "{narrow}"
    );
    // Output to a pipe is not shortened, because another program may read it.
    assert!(columns(&run(&[])) > 3_000);
    assert!(!run(&[]).contains('\u{1b}'));
    let forced = run(&[("CLICOLOR_FORCE", "1"), ("COLUMNS", "80")]);
    assert!(forced.contains("\u{1b}[31mfailed\u{1b}[0m"), "{forced:?}");
    let none = run(&[
        ("CLICOLOR_FORCE", "1"),
        ("NO_COLOR", "1"),
        ("COLUMNS", "80"),
    ]);
    assert!(!none.contains('\u{1b}'), "{none:?}");
}

#[tokio::test]
async fn durable_ls_filters_by_step_error_key_and_time() {
    let (db, client) = TestSchema::migrated().await;
    sql(
        &client,
        "insert into S.instances (machine, step, state, status, settled_at, last_error, inserted_at) values
         ('order', 'reserve', '1', 'failed', S.clock(), 'no van for 3', S.clock() - interval '2 days'),
         ('order', 'charge', '1', 'failed', S.clock(), 'card declined', S.clock())",
    )
    .await;
    let mut keyed = UntypedInstance::new("order", "reserve", "1");
    keyed.key = Some("order:3".into());
    client.operate().enqueue(keyed).await.unwrap();
    let ids = |arguments: &[&str]| -> Vec<String> {
        let rows = db.listed(arguments);
        let rows = rows.as_array().unwrap();
        rows.iter()
            .map(|row| row["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&["--step", "reserve"]), ["3", "1"]);
    assert_eq!(ids(&["--error", "NO VAN"]), ["1"]);
    assert_eq!(ids(&["--key", "order:3"]), ["3"]);
    assert_eq!(
        ids(&["--key", "order:3", "--status", "failed"]),
        Vec::<String>::new()
    );
    assert_eq!(ids(&["--since", "1d", "--status", "failed"]), ["2"]);
    assert_eq!(ids(&["--until", "24h"]), ["1"]);
    assert_eq!(ids(&["--since", "2020-01-31T12:00:00Z"]), ["3", "2", "1"]);
    for wrong in ["yesterday", "5", "-5d", "d", ""] {
        let refused = db.run(&["ls", "--since", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
        assert!(
            stderr(&refused).contains("90s, 30m, 12h or 7d") || wrong == "-5d" || wrong.is_empty(),
            "{}",
            stderr(&refused)
        );
    }
}

#[tokio::test]
async fn durable_ls_has_the_filters_of_the_http_api() {
    let (db, client) = TestSchema::migrated().await;
    sql(
        &client,
        "insert into S.instances (machine, machine_version, step, state, status, settled_at, last_error, tenant, key, lane_key,
            partition_key, queue) values
         ('order', 1, 'reserve', '1', 'failed', S.clock(), 'order 7 not found', 'acme', 'order-7', 'a', 'x', 'slow'),
         ('order', 2, 'reserve', '1', 'failed', S.clock(), 'order 81 not found', 'acme', 'order-81', 'b', 'y', 'fast'),
         ('order', 2, 'reserve', '1', 'failed', S.clock(), 'card declined', 'other', 'parcel-7', 'b', 'y', 'fast')",
    )
    .await;
    let ids = |options: &[&str]| -> Vec<String> {
        let rows = db.listed(options);
        let id = |row: &Value| row["id"].as_str().unwrap().to_owned();
        rows.as_array().unwrap().iter().map(id).collect()
    };
    assert_eq!(ids(&["--machine-version", "1"]), ["1"]);
    assert_eq!(ids(&["--key-prefix", "order-"]), ["2", "1"]);
    assert_eq!(ids(&["--key-prefix", "order-", "--queue", "slow"]), ["1"]);
    assert_eq!(ids(&["--tenant", "acme"]), ["2", "1"]);
    assert_eq!(ids(&["--lane", "b", "--step", "reserve"]), ["3", "2"]);
    assert_eq!(ids(&["--partition", "x"]), ["1"]);
    let group = ["--error-group", "order # not found"];
    assert_eq!(ids(&group), ["2", "1"]);
    let failed = [
        "--machine",
        "order",
        "--step",
        "reserve",
        "--status",
        "failed",
    ];
    assert_eq!(
        ids(&[&group[..], &failed, &["--tenant", "acme"]].concat()),
        ["2", "1"]
    );
    assert_eq!(ids(&[&group[..], &["--before", "2"]].concat()), ["1"]);
    let page = db.json(&["ls", "--limit", "2"]);
    assert_eq!(
        (&page["next"], &page["next_at"]),
        (&"2".into(), &page["instances"][1]["inserted_at"])
    );
    let refused = db.run(&["ls", "--key", &"k".repeat(501)]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[tokio::test]
async fn errors_are_json_objects_if_the_command_has_the_option_json() {
    let (db, _) = TestSchema::migrated().await;
    let error = |output: &Output| -> Value { serde_json::from_str(&stderr(output)).unwrap() };
    let missing = db.run(&["show", "42", "--json"]);
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(error(&missing)["error"]["code"], "failed");
    assert!(
        error(&missing)["error"]["message"]
            .as_str()
            .unwrap()
            .contains("no instance 42")
    );
    let target = db.run(&["cancel", "42", "--json"]);
    assert_eq!(
        error(&target)["error"]["code"],
        "no_target",
        "{}",
        stderr(&target)
    );
    let usage = db.run(&["ls", "--status", "asleep", "--json"]);
    assert_eq!(usage.status.code(), Some(2));
    assert_eq!(error(&usage)["error"]["code"], "usage");
    let no_url = durable()
        .args(["ls", "--json"])
        .env("DATABASE_URL", " ")
        .output()
        .unwrap();
    assert_eq!(no_url.status.code(), Some(2));
    assert_eq!(error(&no_url)["error"]["code"], "usage");
    let away = durable()
        .args([
            "ls",
            "--json",
            "--database-url",
            "postgres://localhost:1/x?sslmode=disable",
        ])
        .output()
        .unwrap();
    assert_eq!(
        error(&away)["error"]["code"],
        "database_away",
        "{}",
        stderr(&away)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn durable_wait_prints_the_result_and_tells_done_failed_and_late_apart() {
    let (db, client) = TestSchema::migrated().await;
    let id = client.enqueue(note("x")).await.unwrap().id.to_string();
    let late = db.run(&["wait", &id, "--timeout", "0", "--json"]);
    assert_eq!(late.status.code(), Some(3), "{}", stderr(&late));
    let printed: Value = serde_json::from_str(&stdout(&late)).unwrap();
    assert_eq!(
        (&printed["status"], &printed["settled"]),
        (&json!("runnable"), &json!(false))
    );
    let waiting = command(&db, &["wait", &id, "--json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let engine = Engine::builder(client.pool().clone(), ())
        .register::<Note>()
        .build()
        .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    let done = waiting.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(0));
    let printed: Value = serde_json::from_str(&stdout(&done)).unwrap();
    assert_eq!(
        (&printed["id"], &printed["status"]),
        (&json!(id), &json!("done"))
    );
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    let mut keyed = UntypedInstance::new("order", "reserve", "1");
    keyed.key = Some("order:3".into());
    let id = client
        .operate()
        .enqueue(keyed)
        .await
        .unwrap()
        .id
        .to_string();
    db.json(&["cancel", &id, "--reason", "a mistake"]);
    let cancelled = db.run(&["wait", &id]);
    assert_eq!(cancelled.status.code(), Some(1));
    assert!(
        stdout(&cancelled).contains("is cancelled: a mistake"),
        "{}",
        stdout(&cancelled)
    );
    assert_eq!(db.run(&["wait", "4711"]).status.code(), Some(1));
    assert_eq!(db.run(&["wait"]).status.code(), Some(2));
}

#[tokio::test]
async fn durable_pause_warns_about_a_queue_that_does_not_exist_and_names_the_others() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    let typo = db.run(&["pause", "defualt"]);
    assert_eq!(typo.status.code(), Some(0));
    assert!(
        stderr(&typo).contains("the queues are: default"),
        "{}",
        stderr(&typo)
    );
    let known = db.run(&["pause", "default"]);
    assert_eq!(stderr(&known), "");
}
