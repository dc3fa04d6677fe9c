//! Tests authentication, the check of host names, and the protection against cross-site requests.

use axum::http::StatusCode;
use gen_durable_dash::{Access, Caller, Options, routes};

use crate::support::{OPERATOR, READER, TestServer};

/// Returns the path of a route with its parameters filled in.
fn filled(path: &str) -> String {
    path.replace("{id}", "1")
        .replace("{name}", "x")
        .replace("{worker}", "x")
        .replace("{*name}", "app.js")
}

#[tokio::test]
async fn every_route_rejects_a_request_without_a_token_and_sends_all_security_headers() {
    let server = TestServer::new().await;
    let all = routes();
    assert!(all.len() > 30, "routes() returned too few routes");
    for route in all {
        let path = filled(route.path);
        for token in [
            None,
            Some("Bearer not-a-token-of-anybody-at-all"),
            Some("Basic abc"),
            Some("Bearer "),
        ] {
            let mut headers = vec![("x-durable", "1"), ("content-type", "application/json")];
            headers.extend(token.map(|token| ("authorization", token)));
            let answer = server.ask(&route.method, &path, &headers, "{}").await;
            let is_open = route.path == "/healthz";
            let refused = matches!(
                answer.status,
                StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS
            );
            assert_eq!(
                refused, !is_open,
                "{} {path} with {token:?}: {}",
                route.method, answer.status
            );
            let policy = answer.headers["content-security-policy"].to_str().unwrap();
            assert!(
                policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
                "{path}: {policy}"
            );
            assert_eq!(answer.headers["x-content-type-options"], "nosniff");
            assert_eq!(answer.headers["referrer-policy"], "no-referrer");
            assert!(!answer.headers.contains_key("access-control-allow-origin"));
        }
    }
    // The server rejects an unauthenticated request for an unknown path in the same way as for a
    // known path, so the response does not reveal which paths exist.
    assert_eq!(
        server.ask("GET", "/nothing", &[], "").await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        server
            .ask("DELETE", "/api/v1/instances/1", &[("x-durable", "1")], "")
            .await
            .status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn every_route_that_changes_something_rejects_the_reader_token() {
    let server = TestServer::new().await;
    let reader = format!("Bearer {READER}");
    for route in routes()
        .into_iter()
        .filter(|route| !["/login", "/api/v1/session/end"].contains(&route.path))
    {
        let headers = [
            ("authorization", reader.as_str()),
            ("content-type", "application/json"),
        ];
        if route.path == "/api/v1/live" {
            continue; // The response does not end; the module `live` tests this route.
        }
        let answer = server
            .ask(&route.method, &filled(route.path), &headers, "{}")
            .await;
        let forbidden = answer.status == StatusCode::FORBIDDEN;
        assert_eq!(
            forbidden,
            route.method != "GET",
            "{} {}: {}",
            route.method,
            route.path,
            answer.text
        );
    }
}

#[tokio::test]
async fn requests_from_pages_of_other_sites_are_rejected() {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    let post = async |headers: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/json")], headers].concat();
        server
            .ask("POST", "/api/v1/queues/q/pause", &headers, "{}")
            .await
            .status
    };
    // An action needs the header `x-durable`, which only pages of the dashboard can send. Even with
    // this header, the server rejects a request from another site.
    assert_eq!(post(&[]).await, StatusCode::FORBIDDEN);
    assert_eq!(
        post(&[("sec-fetch-site", "cross-site")]).await,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        post(&[("x-durable", "1"), ("sec-fetch-site", "cross-site")]).await,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        post(&[("x-durable", "1"), ("sec-fetch-site", "same-site")]).await,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        post(&[("x-durable", "1"), ("origin", "https://evil.example")]).await,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        post(&[("x-durable", "1"), ("origin", "null")]).await,
        StatusCode::FORBIDDEN
    );
    assert!(
        server.client.inspect().queues().await.unwrap().is_empty(),
        "nothing was done"
    );
    assert_eq!(
        post(&[("x-durable", "1"), ("origin", "http://localhost:7070")]).await,
        StatusCode::OK
    );
    // The server rejects a body without the content type of JSON, such as the body of a form.
    let form = [("x-durable", "1"), ("content-type", "text/plain")];
    let answer = server
        .ask(
            "POST",
            "/api/v1/instances",
            &form,
            "{\"machine\": \"m\", \"step\": \"s\"}",
        )
        .await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    // The server rejects requests of another site for the API or the event stream, and allows a
    // link of another site to a page of the dashboard.
    let cross = [("sec-fetch-site", "cross-site")];
    for path in [
        "/api/v1/overview",
        "/api/v1/live",
        "/api/v1/instances",
        "/metrics",
    ] {
        assert_eq!(
            server.ask("GET", path, &cross, "").await.status,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    assert_eq!(
        server.ask("GET", "/", &cross, "").await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn requests_for_a_host_name_that_is_not_configured_are_rejected() {
    let server = TestServer::with(
        Access::only_local("me"),
        Options::new().hosts(["ops.example.com"]),
    )
    .await;
    let by = async |host: &str| {
        let request = axum::http::Request::builder()
            .uri("/healthz")
            .header("host", host);
        server
            .send(request.body(axum::body::Body::empty()).unwrap())
            .await
            .status
    };
    for ours in [
        "localhost",
        "localhost:1",
        "127.0.0.1:7070",
        "[::1]:7070",
        "10.0.0.7",
        "ops.example.com",
        "OPS.example.com:443",
    ] {
        assert_eq!(by(ours).await, StatusCode::OK, "{ours}");
    }
    for other in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:7070",
        "",
        "ops.example.com.evil.example",
    ] {
        assert_eq!(by(other).await, StatusCode::MISDIRECTED_REQUEST, "{other}");
    }
}

#[tokio::test]
async fn a_sign_in_with_a_token_starts_a_browser_session_and_a_sign_out_ends_it() {
    let server = TestServer::new().await;
    let page = server.ask("GET", "/", &[("accept", "text/html")], "").await;
    assert_eq!(page.status, StatusCode::UNAUTHORIZED);
    assert!(page.text.contains("name=\"token\""), "{}", page.text);
    assert!(
        page.headers["content-security-policy"]
            .to_str()
            .unwrap()
            .contains("style-src 'sha256-")
    );
    assert_eq!(
        server
            .ask("POST", "/login", &[], "token=wrong")
            .await
            .status,
        StatusCode::UNAUTHORIZED
    );
    let foreign = [("origin", "https://evil.example")];
    assert_eq!(
        server
            .ask("POST", "/login", &foreign, &format!("token={OPERATOR}"))
            .await
            .status,
        StatusCode::FORBIDDEN
    );
    // The test sends the headers that a browser sends for a form on a page with the policy
    // `no-referrer`.
    let form = [("origin", "null"), ("sec-fetch-site", "same-origin")];
    let signed = server
        .ask("POST", "/login", &form, &format!("token={OPERATOR}"))
        .await;
    assert_eq!(signed.status, StatusCode::SEE_OTHER);
    let cookie = signed.headers["set-cookie"].to_str().unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"),
        "{cookie}"
    );
    assert!(!cookie.contains(OPERATOR));
    let cookie = cookie.split(';').next().unwrap();
    let who = server
        .ask("GET", "/api/v1/session", &[("cookie", cookie)], "")
        .await;
    assert_eq!(who.json()["role"], "operator");
    // A browser sends the session cookie with every request, cross-site requests included, so the
    // server rejects an action with the cookie alone.
    let act = server
        .ask("POST", "/api/v1/queues/q/pause", &[("cookie", cookie)], "")
        .await;
    assert_eq!(act.status, StatusCode::FORBIDDEN);
    let both = [("cookie", cookie), ("x-durable", "1")];
    assert_eq!(
        server
            .ask("POST", "/api/v1/session/end", &both, "")
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        server
            .ask("GET", "/api/v1/session", &[("cookie", cookie)], "")
            .await
            .status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn a_request_is_rejected_unless_the_host_application_names_its_caller() {
    let server = TestServer::with(Access::by_host(), Options::new()).await;
    assert_eq!(
        server.ask("GET", "/api/v1/session", &[], "").await.status,
        StatusCode::UNAUTHORIZED
    );
    let named = server
        .router
        .clone()
        .layer(axum::Extension(Caller::reader("ann")));
    let server = TestServer {
        client: server.client,
        router: named,
    };
    assert_eq!(
        server.ask("GET", "/api/v1/session", &[], "").await.json()["name"],
        "ann"
    );
    let act = server
        .ask("POST", "/api/v1/queues/q/pause", &[("x-durable", "1")], "")
        .await;
    assert_eq!(act.status, StatusCode::FORBIDDEN);
}

#[test]
fn access_tokens_that_are_too_short_or_equal_are_rejected() {
    assert!(Access::tokens("short", None).is_err());
    assert!(Access::tokens(OPERATOR, Some("short")).is_err());
    assert!(Access::tokens(OPERATOR, Some(OPERATOR)).is_err());
    assert!(!format!("{:?}", Access::tokens(OPERATOR, None).unwrap()).contains(OPERATOR));
    let named = |token: &str| {
        Access::named_tokens([
            (Caller::operator("ann"), OPERATOR),
            (Caller::reader("bob"), token),
        ])
    };
    assert!(named("short").is_err() && named(OPERATOR).is_err() && named(READER).is_ok());
    assert!(Access::named_tokens::<&str>([]).is_err());
}

#[tokio::test]
async fn a_dashboard_mounted_under_a_path_prefix_serves_and_authenticates_all_routes() {
    let server = TestServer::new().await;
    let nested = axum::Router::new().nest_service("/ops/durable", server.router.clone());
    let server = TestServer {
        client: server.client,
        router: nested,
    };
    assert_eq!(
        server
            .ask("GET", "/ops/durable/api/v1/session", &[], "")
            .await
            .status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        server.get("/ops/durable/api/v1/session").await.status,
        StatusCode::OK
    );
    let page = server.get("/ops/durable").await;
    assert_eq!(page.status, StatusCode::PERMANENT_REDIRECT);
    assert_eq!(page.headers["location"], "/ops/durable/");
    // The relative address of the sign-in form would leave the prefix without the slash.
    let html = [("accept", "text/html")];
    let page = server.ask("GET", "/ops/durable", &html, "").await;
    assert_eq!(page.status, StatusCode::PERMANENT_REDIRECT);
    assert_eq!(page.headers["location"], "/ops/durable/");
    let page = server.ask("GET", "/ops/durable/", &html, "").await;
    assert_eq!(page.status, StatusCode::UNAUTHORIZED);
    assert!(page.text.contains("action=\"login\""));
    assert!(
        server
            .get("/ops/durable/")
            .await
            .text
            .contains("assets/app.js")
    );
    assert_eq!(
        server.get("/ops/durable/assets/app.js").await.status,
        StatusCode::OK
    );
}

/// HTTP/2 has no `Host` header: the host of a request is the authority of its URI.
#[tokio::test]
async fn the_host_check_uses_the_authority_of_the_uri_if_there_is_no_host_header() {
    let server = TestServer::with(
        Access::tokens(OPERATOR, None).unwrap(),
        Options::new().hosts(["ops.example.com"]),
    )
    .await;
    let by = async |address: &str| {
        let request = axum::http::Request::builder()
            .uri(address)
            .header("authorization", format!("Bearer {OPERATOR}"));
        server
            .send(request.body(axum::body::Body::empty()).unwrap())
            .await
            .status
    };
    assert_eq!(
        by("https://ops.example.com/api/v1/queues").await,
        StatusCode::OK
    );
    assert_eq!(
        by("https://evil.example.com/api/v1/queues").await,
        StatusCode::MISDIRECTED_REQUEST
    );
    assert_eq!(by("/api/v1/queues").await, StatusCode::MISDIRECTED_REQUEST);
}
