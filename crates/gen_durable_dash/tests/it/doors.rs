//! Who gets in, and what other sites' pages can do: nothing.

use axum::http::StatusCode;
use gen_durable_dash::{Access, Caller, Options, routes};

use crate::support::{Desk, OPERATOR, READER};

/// A route's address with its parameters filled in.
fn filled(path: &str) -> String {
    path.replace("{id}", "1")
        .replace("{name}", "x")
        .replace("{*name}", "app.js")
}

#[tokio::test]
async fn every_route_refuses_a_caller_without_a_token_and_says_so_with_all_headers() {
    let desk = Desk::new().await;
    let all = routes();
    assert!(all.len() > 30, "the routes were not found");
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
            let answer = desk.ask(&route.method, &path, &headers, "{}").await;
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
    // What is not there is not told either.
    assert_eq!(
        desk.ask("GET", "/nothing", &[], "").await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        desk.ask("DELETE", "/api/v1/instances/1", &[("x-durable", "1")], "")
            .await
            .status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn every_route_that_changes_something_refuses_the_token_that_may_only_look() {
    let desk = Desk::new().await;
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
            continue; // It does not end; who may look may follow, as `live` shows.
        }
        let answer = desk
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
async fn a_page_of_another_site_can_do_nothing() {
    let desk = Desk::with(Access::only_local("me"), Options::new()).await;
    let post = async |headers: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/json")], headers].concat();
        desk.ask("POST", "/api/v1/queues/q/pause", &headers, "{}")
            .await
            .status
    };
    // Without the header that only our own page can send, whatever else is said.
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
        desk.client.inspect().queues().await.unwrap().is_empty(),
        "nothing was done"
    );
    assert_eq!(
        post(&[("x-durable", "1"), ("origin", "http://localhost:7070")]).await,
        StatusCode::OK
    );
    // A form is no JSON.
    let form = [("x-durable", "1"), ("content-type", "text/plain")];
    let answer = desk
        .ask(
            "POST",
            "/api/v1/instances",
            &form,
            "{\"machine\": \"m\", \"step\": \"s\"}",
        )
        .await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    // It may not look either, nor follow; a link to a page is all right.
    let cross = [("sec-fetch-site", "cross-site")];
    for path in [
        "/api/v1/overview",
        "/api/v1/live",
        "/api/v1/instances",
        "/metrics",
    ] {
        assert_eq!(
            desk.ask("GET", path, &cross, "").await.status,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    assert_eq!(
        desk.ask("GET", "/", &cross, "").await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn only_names_of_ours_are_answered() {
    let desk = Desk::with(
        Access::only_local("me"),
        Options::new().hosts(["ops.example.com"]),
    )
    .await;
    let by = async |host: &str| {
        let request = axum::http::Request::builder()
            .uri("/healthz")
            .header("host", host);
        desk.send(request.body(axum::body::Body::empty()).unwrap())
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
async fn a_browser_signs_in_with_a_token_and_out_again() {
    let desk = Desk::new().await;
    let page = desk.ask("GET", "/", &[("accept", "text/html")], "").await;
    assert_eq!(page.status, StatusCode::UNAUTHORIZED);
    assert!(page.text.contains("name=\"token\""), "{}", page.text);
    assert!(
        page.headers["content-security-policy"]
            .to_str()
            .unwrap()
            .contains("style-src 'sha256-")
    );
    assert_eq!(
        desk.ask("POST", "/login", &[], "token=wrong").await.status,
        StatusCode::UNAUTHORIZED
    );
    let foreign = [("origin", "https://evil.example")];
    assert_eq!(
        desk.ask("POST", "/login", &foreign, &format!("token={OPERATOR}"))
            .await
            .status,
        StatusCode::FORBIDDEN
    );
    // As a browser sends a form of a page with `no-referrer`.
    let form = [("origin", "null"), ("sec-fetch-site", "same-origin")];
    let signed = desk
        .ask("POST", "/login", &form, &format!("token={OPERATOR}"))
        .await;
    assert_eq!(signed.status, StatusCode::SEE_OTHER);
    let cookie = signed.headers["set-cookie"].to_str().unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    assert!(!cookie.contains(OPERATOR));
    let cookie = cookie.split(';').next().unwrap();
    let who = desk
        .ask("GET", "/api/v1/session", &[("cookie", cookie)], "")
        .await;
    assert_eq!(who.json()["role"], "operator");
    // A cookie rides along with whatever a browser sends, so it is not enough for an act.
    let act = desk
        .ask("POST", "/api/v1/queues/q/pause", &[("cookie", cookie)], "")
        .await;
    assert_eq!(act.status, StatusCode::FORBIDDEN);
    let both = [("cookie", cookie), ("x-durable", "1")];
    assert_eq!(
        desk.ask("POST", "/api/v1/session/end", &both, "")
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        desk.ask("GET", "/api/v1/session", &[("cookie", cookie)], "")
            .await
            .status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn who_guesses_tokens_is_slowed_down_and_who_knows_one_is_not() {
    let desk = Desk::new().await;
    let mut slowed = false;
    for _ in 0..50 {
        slowed |= desk.ask("POST", "/login", &[], "token=guess").await.status
            == StatusCode::TOO_MANY_REQUESTS;
    }
    assert!(slowed);
    assert_eq!(desk.get("/api/v1/session").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_host_that_checks_callers_itself_names_them_and_nobody_else_gets_in() {
    let desk = Desk::with(Access::by_host(), Options::new()).await;
    assert_eq!(
        desk.ask("GET", "/api/v1/session", &[], "").await.status,
        StatusCode::UNAUTHORIZED
    );
    let named = desk
        .router
        .clone()
        .layer(axum::Extension(Caller::reader("ann")));
    let desk = Desk {
        client: desk.client,
        router: named,
    };
    assert_eq!(
        desk.ask("GET", "/api/v1/session", &[], "").await.json()["name"],
        "ann"
    );
    let act = desk
        .ask("POST", "/api/v1/queues/q/pause", &[("x-durable", "1")], "")
        .await;
    assert_eq!(act.status, StatusCode::FORBIDDEN);
}

#[test]
fn tokens_that_can_be_guessed_are_refused() {
    assert!(Access::tokens("short", None).is_err());
    assert!(Access::tokens(OPERATOR, Some("short")).is_err());
    assert!(Access::tokens(OPERATOR, Some(OPERATOR)).is_err());
    assert!(!format!("{:?}", Access::tokens(OPERATOR, None).unwrap()).contains(OPERATOR));
}

#[tokio::test]
async fn under_a_prefix_everything_is_found_and_still_guarded() {
    let desk = Desk::new().await;
    let nested = axum::Router::new().nest_service("/ops/durable", desk.router.clone());
    let desk = Desk {
        client: desk.client,
        router: nested,
    };
    assert_eq!(
        desk.ask("GET", "/ops/durable/api/v1/session", &[], "")
            .await
            .status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        desk.get("/ops/durable/api/v1/session").await.status,
        StatusCode::OK
    );
    let page = desk.get("/ops/durable").await;
    assert_eq!(page.status, StatusCode::PERMANENT_REDIRECT);
    assert_eq!(page.headers["location"], "/ops/durable/");
    assert!(
        desk.get("/ops/durable/")
            .await
            .text
            .contains("assets/app.js")
    );
    assert_eq!(
        desk.get("/ops/durable/assets/app.js").await.status,
        StatusCode::OK
    );
}

/// HTTP/2 has no `Host` header: the name is part of the address.
#[tokio::test]
async fn a_request_without_a_host_header_is_known_by_its_address() {
    let desk = Desk::with(
        Access::tokens(OPERATOR, None).unwrap(),
        Options::new().hosts(["ops.example.com"]),
    )
    .await;
    let by = async |address: &str| {
        let request = axum::http::Request::builder()
            .uri(address)
            .header("authorization", format!("Bearer {OPERATOR}"));
        desk.send(request.body(axum::body::Body::empty()).unwrap())
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
