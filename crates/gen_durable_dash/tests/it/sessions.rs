//! Tests browser sessions and tokens: event streams that end with their session, cookies of several
//! dashboards on one host, wrong tokens, and named tokens.

use std::net::SocketAddr;

use axum::{
    body::Body,
    extract::ConnectInfo,
    http::{Request, StatusCode},
};
use gen_durable_dash::{Access, Caller, Options, routes};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Answer, OPERATOR, READER, TestServer, eventually};

/// Sends a request from a client address.
async fn ask_from(
    server: &TestServer,
    address: &str,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let address: SocketAddr = address.parse().unwrap();
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .extension(ConnectInfo(address));
    let has_host = headers.iter().any(|(name, _)| *name == "host");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if !has_host {
        request = request.header("host", "localhost:7070");
    }
    server
        .send(request.body(Body::from(body.to_owned())).unwrap())
        .await
}

/// Signs in and returns the cookie in the form `name=value`, and its attributes.
async fn sign_in(server: &TestServer, token: &str, host: &str) -> (String, String) {
    let headers = [("host", host)];
    let body = format!("token={token}");
    let signed = ask_from(server, "127.0.0.1:9", ("POST", "/login"), &headers, &body).await;
    assert_eq!(signed.status, StatusCode::SEE_OTHER, "{}", signed.text);
    let cookie = signed.headers["set-cookie"].to_str().unwrap();
    let (pair, attributes) = cookie.split_once(';').unwrap();
    (pair.to_owned(), attributes.to_owned())
}

#[tokio::test]
async fn an_event_stream_ends_when_the_user_of_its_session_signs_out() {
    let server = TestServer::new().await;
    let (cookie, _) = sign_in(&server, READER, "localhost:7070").await;
    let open = |cookie: &str| {
        let request = Request::builder()
            .uri("/api/v1/live")
            .header("host", "localhost:7070")
            .header("cookie", cookie)
            .body(Body::empty())
            .unwrap();
        server.router.clone().oneshot(request)
    };
    let mut stream = open(&cookie).await.unwrap().into_body();
    assert!(stream.frame().await.unwrap().is_ok(), "the stream is open");
    let headers = [("cookie", cookie.as_str()), ("x-durable", "1")];
    let ended = server
        .ask("POST", "/api/v1/session/end", &headers, "")
        .await;
    assert_eq!(ended.status, StatusCode::OK);
    // The stream of a session that continues would send snapshots without an end.
    while let Some(frame) = stream.frame().await {
        frame.unwrap();
    }
    let again = open(&cookie).await.unwrap();
    assert_eq!(again.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn two_dashboards_on_one_host_have_separate_cookies_and_tls_adds_the_host_prefix() {
    let server = TestServer::new().await;
    let (first, _) = sign_in(&server, OPERATOR, "localhost:7070").await;
    let (second, _) = sign_in(&server, OPERATOR, "localhost:7071").await;
    let name = |pair: &str| pair.split('=').next().unwrap().to_owned();
    assert_ne!(name(&first), name(&second));
    let both = format!("{first}; {second}");
    for host in ["localhost:7070", "localhost:7071"] {
        let headers = [("host", host), ("cookie", both.as_str())];
        let session = ask_from(
            &server,
            "127.0.0.1:9",
            ("GET", "/api/v1/session"),
            &headers,
            "",
        )
        .await;
        assert_eq!(session.status, StatusCode::OK, "{host}");
    }
    let options = Options::new().secure_cookies();
    let server = TestServer::with(Access::tokens(OPERATOR, None).unwrap(), options).await;
    let (pair, attributes) = sign_in(&server, OPERATOR, "localhost").await;
    assert_eq!(name(&pair), "__Host-durable_session");
    assert!(
        attributes.contains("Secure")
            && attributes.contains("Path=/")
            && !attributes.contains("Domain"),
        "{attributes}"
    );
    let session = server
        .ask(
            "GET",
            "/api/v1/session",
            &[("host", "localhost"), ("cookie", &pair)],
            "",
        )
        .await;
    assert_eq!(
        session.status,
        StatusCode::UNAUTHORIZED,
        "the port is part of the name"
    );
}

#[tokio::test]
async fn a_dashboard_under_a_path_prefix_has_a_cookie_of_its_own() {
    let server = TestServer::new().await;
    let nested = axum::Router::new().nest_service("/ops/durable", server.router.clone());
    let server = TestServer {
        client: server.client,
        router: nested,
    };
    let body = format!("token={OPERATOR}");
    let signed = server.ask("POST", "/ops/durable/login", &[], &body).await;
    let cookie = signed.headers["set-cookie"].to_str().unwrap();
    assert!(
        cookie.starts_with("durable_session_7070_ops_durable="),
        "{cookie}"
    );
    let pair = cookie.split(';').next().unwrap();
    for path in ["/ops/durable/api/v1/session", "/ops/durable/"] {
        let seen = server.ask("GET", path, &[("cookie", pair)], "").await;
        assert_eq!(seen.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn many_sign_ins_with_the_reader_token_end_no_session_of_an_operator() {
    let server = TestServer::new().await;
    let (operator, _) = sign_in(&server, OPERATOR, "localhost:7070").await;
    let (oldest, _) = sign_in(&server, READER, "localhost:7070").await;
    for _ in 0..1_000 {
        sign_in(&server, READER, "localhost:7070").await;
    }
    let session = async |cookie: &str| {
        let headers = [("cookie", cookie)];
        server
            .ask("GET", "/api/v1/session", &headers, "")
            .await
            .status
    };
    assert_eq!(session(&operator).await, StatusCode::OK);
    assert_eq!(session(&oldest).await, StatusCode::UNAUTHORIZED);
}

/// If a right token were accepted meanwhile, an attacker could continue to guess at full speed.
#[tokio::test]
async fn after_too_many_wrong_tokens_an_address_waits_even_with_the_right_token() {
    let server = TestServer::new().await;
    let (here, there) = ("10.0.0.1:9", "10.0.0.2:9");
    let guess = async |address: &str, token: &str| {
        let body = format!("token={token}");
        ask_from(&server, address, ("POST", "/login"), &[], &body).await
    };
    let bearer = async |token: &str| {
        let token = format!("Bearer {token}");
        let headers = [("authorization", token.as_str())];
        ask_from(&server, here, ("GET", "/api/v1/session"), &headers, "").await
    };
    assert_eq!(bearer(READER).await.status, StatusCode::OK);
    for _ in 0..30 {
        assert_eq!(
            guess(here, "a-guess").await.status,
            StatusCode::UNAUTHORIZED
        );
    }
    let locked = guess(here, OPERATOR).await;
    assert_eq!(locked.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(locked.headers["retry-after"], "60");
    assert!(
        locked.text.contains("Wait a minute") && locked.text.contains("<form"),
        "{}",
        locked.text
    );
    assert_eq!(bearer(OPERATOR).await.status, StatusCode::TOO_MANY_REQUESTS);
    // A program that has used its token from this address before continues.
    assert_eq!(bearer(READER).await.status, StatusCode::OK);
    assert_eq!(guess(there, OPERATOR).await.status, StatusCode::SEE_OTHER);
}

async fn audit(server: &TestServer) -> Vec<Value> {
    let page = server.read("/api/v1/audit?limit=200").await;
    page["acts"].as_array().unwrap().clone()
}

#[tokio::test]
async fn the_audit_log_names_refused_actions_of_readers_and_wrong_tokens() {
    let server = TestServer::new().await;
    let reader = format!("Bearer {READER}");
    let not = ["/login", "/api/v1/session/end"];
    let posts: Vec<_> = routes()
        .into_iter()
        .filter(|route| route.method == "POST" && !not.contains(&route.path))
        .collect();
    for route in &posts {
        let path = route.path.replace("{id}", "1").replace("{name}", "mail");
        let headers = [("authorization", reader.as_str())];
        let answer = ask_from(&server, "10.0.0.1:9", ("POST", &path), &headers, "{}").await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
    }
    eventually("every refused action is recorded", async || {
        let records = audit(&server).await;
        let ended = records.iter().filter(|record| record["succeeded"] == false);
        ended.count() == posts.len()
    })
    .await;
    let records = audit(&server).await;
    for record in &records {
        assert_eq!(
            (&record["actor"], &record["source"], &record["succeeded"]),
            (&json!("reader token"), &json!("10.0.0.1"), &json!(false)),
            "{record}"
        );
        assert!(
            record["outcome"]
                .as_str()
                .unwrap()
                .contains("may only read"),
            "{record}"
        );
        assert_ne!(record["action"], "POST", "{record}");
    }
    let is = |record: &Value, action: &str, subject: &str| {
        record["action"] == action && record["subject"] == subject
    };
    assert!(
        records
            .iter()
            .any(|record| is(record, "pause", "queue mail")),
        "{records:?}"
    );

    let wrong = [("authorization", "Bearer not-a-token-of-this-server")];
    ask_from(
        &server,
        "10.0.0.3:9",
        ("GET", "/api/v1/overview"),
        &wrong,
        "",
    )
    .await;
    ask_from(
        &server,
        "10.0.0.3:9",
        ("POST", "/login"),
        &[],
        "token=guess",
    )
    .await;
    eventually("both wrong tokens are recorded", async || {
        let records = audit(&server).await;
        let from = records
            .iter()
            .filter(|record| record["source"] == "10.0.0.3");
        from.filter(|record| record["succeeded"] == false && record["actor"] == "unknown")
            .count()
            == 2
    })
    .await;
}

#[tokio::test]
async fn an_attacker_cannot_fill_the_audit_log_with_refused_requests() {
    let server = TestServer::new().await;
    server.post("/api/v1/queues/mail/pause", "").await;
    for n in 0..300 {
        let address = format!("10.0.{}.{}:9", n / 200, n % 200 + 1);
        ask_from(&server, &address, ("POST", "/login"), &[], "token=guess").await;
    }
    eventually("the records are written", async || {
        audit(&server).await.len() >= 50
    })
    .await;
    let records = audit(&server).await;
    assert!(records.len() <= 55, "{} records", records.len());
    assert!(
        records
            .iter()
            .any(|record| record["subject"] == "queue mail")
    );
}

#[tokio::test]
async fn the_audit_log_shows_the_name_of_a_named_token() {
    let access = Access::named_tokens([
        (Caller::operator("ann"), OPERATOR),
        (
            Caller::operator("bob"),
            "token-of-bob-with-enough-characters",
        ),
        (Caller::reader("grafana"), READER),
    ]);
    let server = TestServer::with(access.unwrap(), Options::new()).await;
    let session = async |token: &str| {
        let token = format!("Bearer {token}");
        let headers = [("authorization", token.as_str())];
        server
            .ask("GET", "/api/v1/session", &headers, "")
            .await
            .json()
    };
    assert_eq!(session(READER).await["name"], "grafana");
    assert_eq!(session(READER).await["may_act"], false);
    let bob = [(
        "authorization",
        "Bearer token-of-bob-with-enough-characters",
    )];
    let paused = server
        .ask("POST", "/api/v1/queues/mail/pause", &bob, "")
        .await;
    assert_eq!(paused.status, StatusCode::OK);
    assert_eq!(audit(&server).await[0]["actor"], "bob");
}
