//! Tests that the HTTP API shows limits and their keys, changes their bounds, pauses and resumes
//! them, and makes queues fair.

use axum::http::StatusCode;
use gen_durable_dash::{Access, Options};
use serde_json::{Value, json};

use crate::support::{OPERATOR, READER, TestServer};

/// Declares the limits "api" and "gpu", and inserts two instances that take them and three that
/// wait: of the key "acme" two for "api" alone, of "globex" one for both limits.
async fn plant(server: &TestServer) {
    server
        .sql(
            "select SCHEMA._declare_limits('[{\"name\": \"api\", \"at_once\": 2, \"per_key\": 2, \"rate\": 10, \"period\": 60, \"burst\": 10},
                 {\"name\": \"gpu\", \"at_once\": 1}]');
             insert into SCHEMA.instances (machine, step, state, limit_group, status, locked_by, claim_epoch)
             select 'fetch', 'run', '{}', E'api\\x01acme', 'executing', '00000000-0000-0000-0000-00000000000f', 1 from generate_series(1, 2);
             insert into SCHEMA.instances (machine, step, state, limit_group, status)
             values ('fetch', 'run', '{}', E'api\\x01acme', 'awaiting_limit'), ('fetch', 'run', '{}', E'api\\x01acme', 'awaiting_limit'),
                 ('fetch', 'run', '{}', E'api\\x01globex\\x02gpu\\x01', 'awaiting_limit');
             insert into SCHEMA.limit_backlog (limit_group, queue, names, held_on)
             values (E'api\\x01acme', 'default', '{api}', 'api'), (E'api\\x01globex\\x02gpu\\x01', 'default', '{api,gpu}', 'api')",
        )
        .await;
}

async fn planted() -> TestServer {
    let server = TestServer::new().await;
    plant(&server).await;
    server
}

async fn limit(server: &TestServer, name: &str) -> Value {
    server.read(&format!("/api/v1/limits/{name}")).await["limit"].clone()
}

/// Sends a POST request with the operator token, asserts that the request succeeds, and returns
/// the limit after it.
async fn act(server: &TestServer, path: &str, body: &str) -> Value {
    let answer = server.post(&format!("/api/v1/limits/{path}"), body).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    limit(server, path.split('/').next().unwrap()).await
}

async fn as_reader(server: &TestServer, path: &str) -> Value {
    let token = format!("Bearer {READER}");
    let headers = [("authorization", token.as_str())];
    let answer = server.ask("GET", path, &headers, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    answer.json()
}

#[tokio::test]
async fn the_api_lists_limits_and_shows_the_keys_and_the_chart_of_one() {
    let server = planted().await;
    let list = server.read("/api/v1/limits").await;
    let [api, gpu] = [&list["limits"][0], &list["limits"][1]];
    assert_eq!(
        (&api["name"], &api["running"], &api["waiting"]),
        (&json!("api"), &json!(2), &json!(3)),
        "{list}"
    );
    assert_eq!(
        (&gpu["name"], &gpu["running"], &gpu["waiting"]),
        (&json!("gpu"), &json!(0), &json!(1)),
        "{list}"
    );
    let rate = json!({"weight": 10.0, "period_seconds": 60.0, "burst": 10.0});
    assert_eq!((&api["rate"], &api["tokens"]), (&rate, &json!(10.0)));
    let one = server.read("/api/v1/limits/api").await;
    let keys = one["keys"].as_array().unwrap();
    let key = |key: &Value| json!([key["key"], key["running"], key["waiting"], key["at_once"]]);
    assert_eq!(
        keys.iter().map(key).collect::<Vec<_>>(),
        [json!(["acme", 2, 2, 2]), json!(["globex", 0, 1, 2])],
        "{one}"
    );
    // The chart ends with the second of the last read. A waiting instance counts for each of its
    // limits.
    let last = |one: &Value, name: &str| one["chart"][name].as_array().unwrap().last().cloned();
    assert_eq!(last(&one, "running"), Some(json!(2)));
    assert_eq!(last(&one, "waiting"), Some(json!(3)));
    assert_eq!(one["chart"]["waiting"].as_array().unwrap().len(), 300);
    let gpu = server.read("/api/v1/limits/gpu").await;
    assert_eq!(last(&gpu, "waiting"), Some(json!(1)));
    let explained = server.read("/api/v1/instances/3/explain").await;
    let waits = &explained["blockers"][0];
    assert_eq!(
        (&waits["kind"], &waits["limits"][0]["limit"]),
        (&json!("awaiting_limit"), &json!("api")),
        "{explained}"
    );
    let waiting = server.read("/api/v1/instances?status=awaiting_limit").await;
    assert_eq!(waiting["instances"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn an_operator_changes_resets_pauses_and_resumes_a_limit_and_each_action_is_recorded() {
    let server = planted().await;
    let set = act(
        &server,
        "api/set",
        r#"{"at_once": 40, "per_key": null, "rate": {"weight": 100, "period_seconds": 900, "burst": 5}}"#,
    )
    .await;
    assert_eq!(
        (&set["at_once"], &set["per_key"], &set["rate"]),
        (
            &json!(40),
            &json!(null),
            &json!({"weight": 100.0, "period_seconds": 900.0, "burst": 5.0})
        ),
        "{set}"
    );
    assert!(set["changed_at"].is_string());
    // A missing field keeps its bound, and a rate without a burst has a burst of its own size.
    let set = act(&server, "api/set", r#"{"rate": {"weight": 7}}"#).await;
    assert_eq!(
        (&set["at_once"], &set["rate"]),
        (
            &json!(40),
            &json!({"weight": 7.0, "period_seconds": 1.0, "burst": 7.0})
        )
    );
    let set = act(&server, "api/set", r#"{"rate": null}"#).await;
    assert_eq!((&set["rate"], &set["tokens"]), (&json!(null), &json!(null)));
    act(
        &server,
        "api/set_key",
        r#"{"key": "initech ", "at_once": 9, "rate": {"weight": 2}}"#,
    )
    .await;
    let keys = server.read("/api/v1/limits/api").await["keys"].clone();
    let own = keys
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["is_own"] == true);
    let own = own.unwrap();
    assert_eq!(
        (&own["key"], &own["at_once"], &own["rate"]["burst"]),
        (&json!("initech "), &json!(9), &json!(2.0))
    );
    act(&server, "api/unset_key", r#"{"key": "initech "}"#).await;
    let keys = server.read("/api/v1/limits/api").await["keys"].clone();
    assert!(!keys.to_string().contains("initech"), "{keys}");
    assert!(act(&server, "api/pause", "").await["paused_at"].is_string());
    assert_eq!(
        act(&server, "api/resume", "").await["paused_at"],
        json!(null)
    );
    let reset = act(&server, "api/reset", "").await;
    assert_eq!(
        (&reset["at_once"], &reset["per_key"], &reset["changed_at"]),
        (&json!(2), &json!(2), &json!(null))
    );
    let acts = server.read("/api/v1/audit").await;
    let acts: Vec<Value> = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|act| json!([act["action"], act["subject"], act["succeeded"]]))
        .collect();
    assert_eq!(
        acts,
        [
            json!([
                "set limit",
                "limit api: {\"at_once\":40,\"per_key\":null,\"rate\":{\"burst\":5.0,\"period_seconds\":900.0,\"weight\":100.0}}",
                true
            ]),
            json!([
                "set limit",
                "limit api: {\"rate\":{\"period_seconds\":1.0,\"weight\":7.0}}",
                true
            ]),
            json!(["set limit", "limit api: {\"rate\":null}", true]),
            json!([
                "set limit key",
                "limit api: {\"at_once\":9,\"key\":\"initech \",\"rate\":{\"period_seconds\":1.0,\"weight\":2.0}}",
                true
            ]),
            json!(["unset limit key", "limit api: {\"key\":\"initech \"}", true]),
            json!(["pause limit", "limit api", true]),
            json!(["resume limit", "limit api", true]),
            json!(["reset limit", "limit api", true]),
        ]
    );
}

/// A body that each action on a limit accepts.
const BODIES: [(&str, &str); 6] = [
    ("set", r#"{"at_once": 1}"#),
    ("set_key", r#"{"key": "acme", "at_once": 1}"#),
    ("unset_key", r#"{"key": "acme"}"#),
    ("reset", ""),
    ("pause", ""),
    ("resume", ""),
];

#[tokio::test]
async fn a_reader_changes_no_limit_and_an_unknown_limit_is_not_found() {
    let server = planted().await;
    let before = server.read("/api/v1/limits").await;
    let token = format!("Bearer {READER}");
    let headers = [
        ("authorization", token.as_str()),
        ("content-type", "application/json"),
    ];
    for (act, body) in BODIES {
        let path = format!("/api/v1/limits/api/{act}");
        let refused = server.ask("POST", &path, &headers, body).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{act}");
        assert_eq!(refused.json()["code"], "read_only");
        let unknown = server.post(&format!("/api/v1/limits/ap/{act}"), body).await;
        assert_eq!(
            unknown.status,
            StatusCode::NOT_FOUND,
            "{act}: {}",
            unknown.text
        );
        assert_eq!(
            unknown.json()["detail"],
            "there is no limit \"ap\": no worker has declared it"
        );
    }
    let unknown = server.get("/api/v1/limits/ap").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND, "{}", unknown.text);
    assert_eq!(server.read("/api/v1/limits").await, before);
    assert_eq!(as_reader(&server, "/api/v1/limits").await, before);
}

#[tokio::test]
async fn a_bound_that_no_limit_can_have_is_refused_with_its_name() {
    let server = planted().await;
    let before = limit(&server, "api").await;
    for (act, body, said) in [
        ("set", r#"{}"#, "nothing to change"),
        ("set", r#"{"at_once": -1}"#, "invalid value"),
        ("set", r#"{"at_once": 1.5}"#, "invalid type"),
        ("set", r#"{"at_once": "3"}"#, "invalid type"),
        (
            "set",
            r#"{"at_once": 2147483648}"#,
            "at_once must be 0 to 2147483647",
        ),
        (
            "set",
            r#"{"per_key": 4000000000}"#,
            "per_key must be 0 to 2147483647",
        ),
        ("set", r#"{"at_most": 3}"#, "unknown field `at_most`"),
        ("set", r#"{"rate": 3}"#, "invalid type"),
        (
            "set",
            r#"{"rate": {"weight": 0}}"#,
            "rate: the weight and the burst must be greater than 0",
        ),
        (
            "set",
            r#"{"rate": {"weight": 1, "burst": 0}}"#,
            "rate: the weight and the burst",
        ),
        (
            "set",
            r#"{"key_rate": {"weight": -1}}"#,
            "key_rate: the weight and the burst",
        ),
        (
            "set",
            r#"{"rate": {"weight": 1, "period_seconds": 0}}"#,
            "the period must be between 1 ms and 366 days",
        ),
        (
            "set",
            r#"{"rate": {"weight": 1, "period_seconds": 31622401}}"#,
            "the period must be between",
        ),
        (
            "set",
            r#"{"rate": {"weight": 1e999}}"#,
            "number out of range",
        ),
        ("set_key", r#"{"key": "acme"}"#, "no bound is given"),
        ("set_key", r#"{"at_once": 3}"#, "missing field `key`"),
        (
            "set_key",
            r#"{"key": "", "at_once": 3}"#,
            "the key must have 1 to 512 bytes",
        ),
        (
            "set_key",
            r#"{"key": "a\u0001b", "at_once": 3}"#,
            "no control characters",
        ),
        (
            "set_key",
            r#"{"key": "a", "rate": {"weight": 0}}"#,
            "rate: the weight and the burst",
        ),
        (
            "unset_key",
            r#"{"key": ""}"#,
            "the key must have 1 to 512 bytes",
        ),
    ] {
        let refused = server
            .post(&format!("/api/v1/limits/api/{act}"), body)
            .await;
        assert_eq!(
            refused.status,
            StatusCode::BAD_REQUEST,
            "{act} {body}: {}",
            refused.text
        );
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(said), "{act} {body}: {detail}");
    }
    assert_eq!(limit(&server, "api").await["at_once"], before["at_once"]);
    assert_eq!(limit(&server, "api").await["changed_at"], json!(null));
}

#[tokio::test]
async fn keys_of_limits_are_hidden_from_readers_if_the_options_say_so() {
    let access = Access::tokens(OPERATOR, Some(READER)).unwrap();
    let server = TestServer::with(access, Options::new().hide_keys_from_readers()).await;
    plant(&server).await;
    act(&server, "api/set_key", r#"{"key": "acme", "at_once": 9}"#).await;
    act(&server, "api/unset_key", r#"{"key": "acme"}"#).await;
    for path in [
        "/api/v1/limits/api",
        "/api/v1/instances/3/explain",
        "/api/v1/audit",
    ] {
        let operator = server.read(path).await.to_string();
        assert!(operator.contains("acme"), "{path}: {operator}");
        let reader = as_reader(&server, path).await.to_string();
        assert!(!reader.contains("acme"), "{path}: {reader}");
        assert!(reader.contains("[redacted]"), "{path}: {reader}");
    }
    let shown = as_reader(&server, "/api/v1/limits/api").await;
    assert_eq!(
        (&shown["keys_hidden"], &shown["keys"][0]["waiting"]),
        (&json!(true), &json!(2))
    );
}

#[tokio::test]
async fn the_metrics_have_the_use_of_the_first_hundred_limits() {
    let server = planted().await;
    server
        .sql(
            "insert into SCHEMA.limits (name) select 'z-' || lpad(g::text, 3, '0') from generate_series(1, 150) g;
             update SCHEMA.limits set paused_at = statement_timestamp() where name = 'gpu';
             update SCHEMA.limits set closed_until = statement_timestamp() + interval '1 h' where name = 'api';
             insert into SCHEMA.instances (machine, step, state, limit_group, status)
             select 'fetch', 'run', '{}', E'z-001\\x01', 'awaiting_limit' from generate_series(1, 1100)",
        )
        .await;
    let metrics = server.get("/metrics").await.text;
    for line in [
        "durable_limit_running{limit=\"api\"} 2",
        "durable_limit_waiting{limit=\"api\"} 3",
        "durable_limit_at_once{limit=\"api\"} 2",
        "durable_limit_paused{limit=\"api\"} 0",
        "durable_limit_closed{limit=\"api\"} 1",
        "durable_limit_capped{limit=\"api\"} 0",
        "durable_limit_waiting{limit=\"gpu\"} 1",
        "durable_limit_paused{limit=\"gpu\"} 1",
        // With a hundred limits, one read counts 500 instances of each.
        "durable_limit_waiting{limit=\"z-001\"} 500",
        "durable_limit_capped{limit=\"z-001\"} 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is missing: {metrics}"
        );
    }
    let count = |name: &str| metrics.matches(&format!("\n{name}{{")).count();
    assert_eq!(
        (
            count("durable_limit_running"),
            count("durable_limit_at_once")
        ),
        (100, 2)
    );
    // A limit beyond these has no chart.
    let last = server.read("/api/v1/limits/z-150").await;
    assert_eq!(last["chart"], json!(null));
}

#[tokio::test]
async fn an_operator_makes_a_queue_fair_sets_a_share_and_ends_it() {
    let server = TestServer::new().await;
    let queue = async || server.read("/api/v1/queues/mail").await["queue"].clone();
    let post = async |act: &str, body: &str| {
        let path = format!("/api/v1/queues/mail/{act}");
        let answer = server.post(&path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{act}: {}", answer.text);
        answer.json()["changed"].clone()
    };
    assert_eq!(post("fair", "").await, true);
    assert_eq!(post("fair", "").await, false);
    assert_eq!(
        post("share", r#"{"tenant": "acme", "share": 3}"#).await,
        true
    );
    let fair = queue().await;
    assert_eq!(
        (&fair["is_fair"], &fair["tenant_shares"]),
        (&json!(true), &json!({"acme": 3})),
        "{fair}"
    );
    let live = server.read("/api/v1/overview").await;
    assert_eq!(live["queues"][0]["is_fair"], true, "{live}");
    assert_eq!(
        post("share", r#"{"tenant": "acme", "share": null}"#).await,
        true
    );
    assert_eq!(post("unfair", "").await, true);
    let unfair = queue().await;
    assert_eq!(
        (&unfair["is_fair"], &unfair["tenant_shares"]),
        (&json!(false), &json!({}))
    );
    for (body, status) in [
        (
            r#"{"tenant": "acme", "share": 0}"#,
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            r#"{"tenant": "acme", "share": 1001}"#,
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            r#"{"tenant": "acme", "share": -1}"#,
            StatusCode::BAD_REQUEST,
        ),
        (r#"{"share": 3}"#, StatusCode::BAD_REQUEST),
    ] {
        let refused = server.post("/api/v1/queues/mail/share", body).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.text);
    }
    let token = format!("Bearer {READER}");
    let headers = [
        ("authorization", token.as_str()),
        ("content-type", "application/json"),
    ];
    for act in ["fair", "unfair", "share"] {
        let path = format!("/api/v1/queues/mail/{act}");
        let body = r#"{"tenant": "acme", "share": 3}"#;
        let refused = server.ask("POST", &path, &headers, body).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{act}");
    }
    assert_eq!(queue().await["tenant_shares"], json!({}));
    let acts = server.read("/api/v1/audit").await;
    let acts: Vec<Value> = acts["acts"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .filter(|act| act["succeeded"] == true)
        .map(|act| json!([act["action"], act["subject"]]))
        .collect();
    assert_eq!(
        acts,
        [
            json!(["fair queue", "queue mail"]),
            json!(["fair queue", "queue mail"]),
            json!(["set share", "queue mail: {\"share\":3,\"tenant\":\"acme\"}"]),
            json!([
                "set share",
                "queue mail: {\"share\":null,\"tenant\":\"acme\"}"
            ]),
            json!(["unfair queue", "queue mail"]),
        ]
    );
}
