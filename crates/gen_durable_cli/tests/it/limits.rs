//! Tests `durable limits`: the list, changes of bounds, pause and resume.

use gen_durable::{
    Client, Context, Engine, Job, Pool, StepError,
    machine::{Limit, Limits},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

use super::{TestSchema, output::sql, stderr, stdout};

#[derive(Serialize, Deserialize)]
struct Call;

impl Job for Call {
    const NAME: &'static str = "call";
    type App = ();
    type Output = ();
    fn limits(&self) -> Limits {
        Limits::of("api")
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// Returns a schema in which an engine has declared the limit `api`.
async fn declared() -> TestSchema {
    let (db, client) = TestSchema::migrated().await;
    let limit = Limit::new("api")
        .at_once(10)
        .rate(100, Duration::from_secs(1));
    let engine = Engine::builder(client.pool().clone(), ()).limit(limit);
    let engine = engine.register::<Call>().build().unwrap();
    engine.run(async {}).await.unwrap();
    db
}

fn limit(db: &TestSchema) -> Value {
    db.json(&["limits", "show", "api"])["limit"].take()
}

#[tokio::test]
async fn durable_limits_set_changes_the_bounds_until_reset() {
    let db = declared().await;
    let before = limit(&db);
    assert_eq!(before["at_once"], 10);
    assert_eq!(
        before["rate"],
        json!({"weight": 100.0, "period_seconds": 1.0, "burst": 100.0})
    );
    assert!(stdout(&db.run(&["limits"])).contains("100/s"));

    let set = [
        "limits",
        "set",
        "api",
        "--at-once",
        "3",
        "--per-key",
        "2",
        "--rate",
        "500/15m",
    ];
    let changed = db.json(&set);
    assert_eq!(changed, limit(&db));
    assert_eq!(
        (&changed["at_once"], &changed["per_key"]),
        (&json!(3), &json!(2))
    );
    assert_eq!(
        changed["rate"],
        json!({"weight": 500.0, "period_seconds": 900.0, "burst": 500.0})
    );
    assert!(changed["changed_at"].is_string());
    assert!(stdout(&db.run(&["limits"])).contains("changed by an operator"));

    let none = db.json(&["limits", "set", "api", "--rate", "none"]);
    assert_eq!((&none["rate"], &none["at_once"]), (&Value::Null, &json!(3)));
    let reset = db.json(&["limits", "reset", "api"]);
    assert_eq!(reset, before);
}

#[tokio::test]
async fn durable_limits_set_key_gives_one_key_bounds_of_its_own() {
    let db = declared().await;
    db.json(&["limits", "set-key", "api", "acme", "--at-once", "4"]);
    let keys = db.json(&["limits", "show", "api"])["keys"].take();
    assert_eq!(
        (&keys[0]["key"], &keys[0]["at_once"]),
        (&json!("acme"), &json!(4))
    );
    assert_eq!(keys[0]["is_own"], true);
    assert!(stdout(&db.run(&["limits", "show", "api"])).contains("bounds of its own"));
    db.json(&["limits", "unset-key", "api", "acme"]);
    assert_eq!(db.json(&["limits", "show", "api"])["keys"], json!([]));
}

#[tokio::test]
async fn durable_limits_pause_and_resume_are_recorded_and_shown() {
    let db = declared().await;
    assert!(db.json(&["limits", "pause", "api"])["paused_at"].is_string());
    assert!(stdout(&db.run(&["limits"])).contains("paused since"));
    assert_eq!(
        db.json(&["limits", "resume", "api"])["paused_at"],
        Value::Null
    );
    let audit = db.json(&["audit"]);
    let text = audit.to_string();
    assert!(
        text.contains("pause limit") && text.contains("resume limit"),
        "{text}"
    );
}

#[tokio::test]
async fn durable_limits_refuses_an_unknown_limit_and_invalid_bounds() {
    let db = declared().await;
    for (arguments, code, says) in [
        (
            &["limits", "set", "nothing", "--at-once", "1"][..],
            1,
            "nothing",
        ),
        (&["limits", "pause", "nothing"], 1, "nothing"),
        (&["limits", "set", "api"], 2, "nothing to change"),
        (&["limits", "set", "api", "--rate", "10"], 2, "100/15m"),
        (
            &["limits", "set-key", "api", "acme"],
            2,
            "nothing to change",
        ),
    ] {
        let output = db.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(says),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[tokio::test]
async fn durable_explain_names_the_limits_of_an_instance_that_awaits_them() {
    let db = declared().await;
    let client = Client::new(Pool::connect_to(&db.url, &db.schema).await.unwrap());
    let insert = r"insert into S.instances (machine, step, state, status, limit_group)
        values ('call', 'run', '{}', 'awaiting_limit', E'api\x01acme')";
    sql(&client, insert).await;
    db.json(&["limits", "pause", "api"]);
    let explained = stdout(&db.run(&["explain", "1"]));
    for part in [
        "it waits for a limit (started ",
        "; the limit api is paused (`durable limits resume api` resumes it): 0 of 10 steps run, 100 tokens are left",
        "; the key acme of the limit api is paused",
    ] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
}

#[tokio::test]
async fn durable_doctor_reports_limits_that_let_too_few_waiting_instances_begin() {
    let db = declared().await;
    let client = Client::new(Pool::connect_to(&db.url, &db.schema).await.unwrap());
    let codes = || -> Vec<String> {
        let output = db.run(&["doctor", "--json"]);
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let found = report["findings"].as_array().unwrap().iter();
        let code = |finding: &Value| finding["code"].as_str().unwrap().to_owned();
        found
            .map(code)
            .filter(|code| code.contains("limit"))
            .collect()
    };
    db.json(&["limits", "pause", "api"]);
    assert!(codes().is_empty(), "no instance waits");
    sql(
        &client,
        "insert into S.instances (machine, step, state, limit_group, status)
         select 'call', 'run', 'null', E'api\\x01acme', 'awaiting_limit' from generate_series(1, 100);
         insert into S.limit_backlog (limit_group, queue, names, held_on, ready_at)
         values (E'api\\x01acme', 'default', '{api}', 'api', clock_timestamp())",
    )
    .await;
    assert_eq!(codes(), ["limit_paused"]);
    db.json(&["limits", "resume", "api"]);
    assert!(codes().is_empty(), "a hundred a second are enough");
    db.json(&["limits", "set", "api", "--rate", "10/d"]);
    assert_eq!(codes(), ["limit_too_slow"]);
    db.json(&["limits", "set", "api", "--rate", "none", "--at-once", "0"]);
    assert_eq!(codes(), ["limit_of_zero"]);
    db.json(&["limits", "set", "api", "--at-once", "none"]);
    db.json(&["limits", "set-key", "api", "acme", "--at-once", "0"]);
    assert_eq!(codes(), ["limit_of_zero"]);
    db.json(&["limits", "unset-key", "api", "acme"]);
    assert!(codes().is_empty());
}
