//! Tests that responses reveal no sensitive value: neither in texts nor by the number of matches.

use axum::http::StatusCode;
use gen_durable::operate::UntypedInstance;
use gen_durable_dash::{Access, Options};
use serde_json::{Value, json};

use crate::support::{OPERATOR, READER, TestServer, eventually};

const CANARY: &str = "canaryvalue";

async fn as_reader(server: &TestServer, path: &str) -> Value {
    let reader = format!("Bearer {READER}");
    let answer = server
        .ask("GET", path, &[("authorization", &reader)], "")
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    answer.json()
}

async fn server_with_errors(errors: &[&str], options: Options) -> TestServer {
    let server = TestServer::with(Access::tokens(OPERATOR, Some(READER)).unwrap(), options).await;
    for error in errors {
        let mut new = UntypedInstance::new("parcel", "pack", "{}");
        new.key = Some(format!("ann@example.com {error}"));
        new.lane = Some("lane-of-ann".into());
        let id = server.client.operate().enqueue(new).await.unwrap().id;
        server
            .sql(&format!(
                "update SCHEMA.instances set status = 'failed', settled_at = statement_timestamp(), last_error = '{error}' where id = {id}"
            ))
            .await;
    }
    server
}

#[tokio::test]
async fn no_route_shows_a_secret_in_the_form_of_a_url_json_a_header_or_a_sentence() {
    let errors = [
        format!("GET https://h/x?user=7&token={CANARY}"),
        format!(r#"sent {{"a":1,"password":"{CANARY}"}}"#),
        format!("connect to postgres://u:{CANARY}@h/db"),
        format!("password = {CANARY}"),
        format!("the password is {CANARY}"),
        format!("api-key: {CANARY}"),
        format!("Authorization: Digest {CANARY}"),
        format!("x-api-key={CANARY}"),
    ];
    let texts: Vec<&str> = errors.iter().map(String::as_str).collect();
    let server = server_with_errors(&texts, Options::new()).await;
    eventually("all errors are among the failures", async || {
        let failures = server.read("/api/v1/failures").await;
        failures["failures"].as_array().unwrap().len() == errors.len()
    })
    .await;
    for path in [
        "/api/v1/instances?status=failed",
        "/api/v1/failures",
        "/api/v1/overview",
    ] {
        let text = server.get(path).await.text.replace("ann@example.com", "");
        // The keys of these instances contain the errors, and are not redacted by default.
        let keys = text.matches("\"key\":").count();
        assert!(text.matches(CANARY).count() <= keys, "{path}: {text}");
        let failures = server.read("/api/v1/failures").await.to_string();
        assert!(!failures.contains(CANARY), "{failures}");
    }
}

/// A reader that could search the stored text would learn a redacted value character by character.
#[tokio::test]
async fn a_search_of_a_reader_by_error_text_compares_the_redacted_text() {
    let errors = [
        format!("login refused: token={CANARY} is old"),
        "no van for 3 of 17".to_owned(),
    ];
    let texts: Vec<&str> = errors.iter().map(String::as_str).collect();
    let server = server_with_errors(&texts, Options::new()).await;
    let found = async |error: &str, limit: u8| {
        let path = format!("/api/v1/instances?status=failed&limit={limit}&error={error}");
        as_reader(&server, &path).await
    };
    for limit in [1, 50] {
        let (right, wrong) = (
            found(&format!("token={CANARY}"), limit).await,
            found("token=another", limit).await,
        );
        assert_eq!(right["instances"], json!([]), "{right}");
        assert_eq!(
            right, wrong,
            "the responses differ, so they reveal the value"
        );
    }
    let van = found("NO%20VAN", 50).await;
    assert_eq!(van["instances"].as_array().unwrap().len(), 1, "{van}");
    let token = found("token=[redacted]", 50).await;
    assert_eq!(token["instances"].as_array().unwrap().len(), 1, "{token}");
    // An operator searches the stored text.
    let all = server
        .read(&format!(
            "/api/v1/instances?status=failed&error=token={CANARY}"
        ))
        .await;
    assert_eq!(all["instances"].as_array().unwrap().len(), 1, "{all}");
}

#[tokio::test]
async fn a_search_of_a_reader_by_error_text_continues_at_the_cursor() {
    let errors = ["flat tyre", "no van", "flat tyre", "no van", "flat tyre"];
    let server = server_with_errors(&errors, Options::new()).await;
    let mut path = "/api/v1/instances?status=failed&limit=1&error=flat".to_owned();
    let mut ids = Vec::new();
    loop {
        let page = as_reader(&server, &path).await;
        let rows = page["instances"].as_array().unwrap();
        ids.extend(
            rows.iter()
                .map(|row| row["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next"].as_str().or(None) else {
            break;
        };
        path = format!("/api/v1/instances?status=failed&limit=1&error=flat&before={next}");
    }
    assert_eq!(ids, ["5", "3", "1"]);
}

#[tokio::test]
async fn keys_are_hidden_from_readers_if_the_options_say_so() {
    let server = server_with_errors(&["no van"], Options::new().hide_keys_from_readers()).await;
    let reader = format!("Bearer {READER}");
    for _ in 0..2 {
        let mut new = UntypedInstance::new("parcel", "pack", "{}");
        new.lane = Some("lane-of-ann".into());
        server.client.operate().enqueue(new).await.unwrap();
    }
    server.sql("select SCHEMA._place(0, 1000)").await;
    for path in [
        "/api/v1/instances",
        "/api/v1/instances/1",
        "/api/v1/instances/3/explain",
        "/api/v1/audit",
    ] {
        let text = as_reader(&server, path).await.to_string();
        assert!(
            !text.contains("ann@") && !text.contains("lane-of"),
            "{path}: {text}"
        );
        let operator = server.read(path).await.to_string();
        assert!(
            path.contains("audit") || operator.contains("-of-ann") || operator.contains("ann@"),
            "{operator}"
        );
    }
    for path in [
        "/api/v1/lanes",
        "/api/v1/partitions",
        "/api/v1/instances?key=x",
        "/api/v1/instances?key_prefix=x",
        "/api/v1/instances?lane=x",
        "/api/v1/instances?partition=x",
    ] {
        let headers = [("authorization", reader.as_str())];
        let answer = server.ask("GET", path, &headers, "").await;
        assert_eq!(
            answer.status,
            StatusCode::FORBIDDEN,
            "{path}: {}",
            answer.text
        );
        assert_eq!(server.get(path).await.status, StatusCode::OK, "{path}");
    }
}
