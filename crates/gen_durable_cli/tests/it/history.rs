//! Tests the history of an instance in the output of `durable show`.

use gen_durable::{
    Client, Context, Engine, MINUTE, Machine, Outcome, SECOND, Signal, done, machine::Failure,
    next, retry_after, wait_for,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{TestSchema, note, stderr, stdout};

/// A machine with a step that fails once and is retried, and with a wait for a signal.
#[derive(Serialize, Deserialize)]
struct Eventful;

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Begin,
    Ask,
    Answered,
}

#[derive(Serialize, Deserialize)]
struct Paid;
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Eventful;
}

impl Machine for Eventful {
    const NAME: &'static str = "eventful";
    type App = ();
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Begin if cx.attempt() == 0 => Err("\u{1b}[31mthe bank is shut")?,
            At::Begin => Ok(next(At::Ask)),
            At::Ask => Ok(wait_for::<Paid>().then(At::Answered).forever()),
            At::Answered => Ok(done(())),
        }
    }
    async fn handle(&mut self, _: At, _: &Failure, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(retry_after(SECOND / 100))
    }
}

/// Runs an instance until it is done: its step fails once and is retried, and the instance then
/// waits until the test sends a signal.
async fn with_history() -> (TestSchema, Client) {
    let (db, client) = TestSchema::migrated().await;
    let engine = Engine::builder(client.pool().clone(), ())
        .register::<Eventful>()
        .build()
        .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    let id = client.enqueue(Eventful).await.unwrap().id;
    while client
        .inspect()
        .show(id.raw())
        .await
        .unwrap()
        .unwrap()
        .awaits
        .is_none()
    {
        tokio::task::yield_now().await;
    }
    client.signal(id, Paid).await.unwrap();
    assert!(client.settled(id, MINUTE).await.unwrap().is_some());
    drop(stop);
    running.await.unwrap().unwrap();
    (db, client)
}

#[tokio::test]
async fn durable_show_prints_one_line_per_history_row_of_an_instance() {
    let (db, _) = with_history().await;
    let shown = stdout(&db.run(&["show", "1"]));
    let history: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.contains("outcome"))
        .collect();
    let has = |line: usize, parts: &[&str]| {
        for part in parts {
            assert!(
                history[line].contains(part),
                "{part:?} in line {line}:\n{shown}"
            );
        }
    };
    let worker = format!("/{}", std::process::id());
    has(2, &["enqueued", "begin"]);
    has(
        3,
        &[
            "failed, retries",
            "begin",
            "\\u{1b}[31mthe bank is shut",
            &worker,
        ],
    );
    has(4, &["next", "begin → ask", " 1 "]);
    has(5, &["wait", "ask → answered", "woken by signal paid after"]);
    has(6, &["done", "answered"]);
    assert_eq!(history.len(), 7, "{shown}");
    assert!(
        !stdout(&db.run(&["show", "1", "--history", "0"])).contains("outcome"),
        "{shown}"
    );
}

#[tokio::test]
async fn durable_show_prints_the_history_of_an_instance_as_json_and_page_by_page() {
    let (db, _) = with_history().await;
    let all = db.json(&["show", "1"]);
    let words = |shown: &Value, name: &str| -> Vec<String> {
        let lines = shown["history"].as_array().unwrap();
        lines
            .iter()
            .map(|line| line[name].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(words(&all, "outcome"), ["failure", "next", "wait", "done"]);
    assert_eq!(words(&all, "to"), ["begin", "ask", "answered", "answered"]);
    assert_eq!(all["history_before"], Value::Null);
    let line = &all["history"][2];
    assert_eq!(
        (&line["status"], &line["cause"]),
        (&"awaiting_signal".into(), &"signal paid".into())
    );
    assert!(
        line["woken_at"].as_str() >= line["at"].as_str() && line["took_seconds"].as_f64().is_some(),
        "{line}"
    );
    assert_eq!(all["history"][1]["attempt"], 1);

    let newest = db.json(&["show", "1", "--history", "3"]);
    assert_eq!(words(&newest, "outcome"), ["next", "wait", "done"]);
    let before = newest["history_before"].as_str().unwrap();
    let oldest = db.json(&["show", "1", "--history", "3", "--before", before]);
    assert_eq!(words(&oldest, "outcome"), ["failure"]);
    assert_eq!(oldest["history_before"], Value::Null);
    let page = stdout(&db.run(&["show", "1", "--history", "3"]));
    assert!(
        page.contains(&format!("older: durable show 1 --before {before}"))
            && !page.contains("begin\n"),
        "{page}"
    );
}

#[tokio::test]
async fn durable_show_prints_no_table_for_an_empty_history_and_rejects_invalid_options() {
    let (db, client) = TestSchema::migrated().await;
    client.enqueue(note("x")).await.unwrap();
    assert!(!stdout(&db.run(&["show", "1"])).contains("outcome"));
    assert_eq!(db.json(&["show", "1"])["history"], serde_json::json!([]));
    client
        .cancel(gen_durable::Id::<super::Note>::from_raw(1), "\u{1b}[2Jno")
        .await
        .unwrap();
    let shown = stdout(&db.run(&["show", "1"]));
    assert!(
        shown.contains("cancelled") && shown.contains("\\u{1b}[2Jno"),
        "{shown}"
    );
    for wrong in [
        ["--before", "x"],
        ["--history", "1000"],
        ["--history", "-1"],
    ] {
        let output = db.run(&["show", "1", wrong[0], wrong[1]]);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{wrong:?}: {}",
            stderr(&output)
        );
    }
}
