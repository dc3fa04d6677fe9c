//! What every request goes through first, whatever it asks for: who asks, by which name, from which page. And what every answer
//! carries, refusals included.

use std::{net::IpAddr, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    access::{Caller, Refusal, Role},
    assets,
    audit::{self, Audit, NO_ACTS},
    problem::Problem,
    routes::BODY_BYTES_MAX,
    shared::Shared,
};

/// A page of another site cannot send this header without being asked first, and is told nothing when it asks.
pub(crate) const OWN_HEADER: &str = "x-durable";
/// The cookie of a browser that is signed in.
pub(crate) const COOKIE: &str = "durable_session";
/// The one page for everybody: it says that the process lives, and nothing else.
pub(crate) const HEALTH: &str = "/healthz";
/// Where a token is changed into a session, and back.
pub(crate) const LOGIN: &str = "/login";
/// So long may a body take.
const BODY_TIME: Duration = Duration::from_secs(10);
const LOGOUT: &str = "/api/v1/session/end";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

pub(crate) async fn guard(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let answer = match admit(&shared, &request) {
        Ok(caller) => admitted(shared, caller, request, next)
            .await
            .unwrap_or_else(|refused| *refused),
        Err(refused) => *refused,
    };
    with_headers(answer)
}

async fn admitted(
    shared: Shared,
    caller: Option<Caller>,
    request: Request,
    next: Next,
) -> Result<Response, Box<Response>> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(run(caller, request, next).await);
    }
    // All of it is here before anything begins: who sends it slowly holds up nobody, and for a while only.
    let request = whole(request, BODY_TIME).await?;
    match caller {
        Some(caller) if !NO_ACTS.contains(&request.uri().path()) => {
            let place = caller.place.clone().or_else(|| audit::place(&request));
            Ok(Audit::through(shared, Caller { place, ..caller }, request, next).await)
        }
        caller => Ok(run(caller, request, next).await),
    }
}

async fn run(caller: Option<Caller>, mut request: Request, next: Next) -> Response {
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
    next.run(request).await
}

/// A request with all of its body.
async fn whole(request: Request, within: Duration) -> Result<Request, Box<Response>> {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(within, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => {
            let why = format!("the body is larger than {BODY_BYTES_MAX} bytes, or broke off");
            Err(refuse(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                why,
            )))
        }
        Err(_) => {
            let why = format!("the body did not come within {within:?}");
            Err(refuse(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "too_slow",
                why,
            )))
        }
    }
}

/// Let it through, with who asks; or the answer that refuses it.
fn admit(shared: &Shared, request: &Request) -> Result<Option<Caller>, Box<Response>> {
    let (headers, host) = (request.headers(), host(request));
    if !host.is_some_and(|host| is_ours(host, &shared.options.hosts)) {
        let why = "this server does not go by that name: start it with the name it is reached by";
        return Err(refuse(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "wrong_host",
            why,
        )));
    }
    let path = request.uri().path();
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    if path == HEALTH && looks {
        return Ok(None);
    }
    check_origin(headers, host, path, looks)?;
    if path == LOGIN && request.method() == Method::POST {
        // It looks at the token itself.
        return Ok(None);
    }
    let caller = caller(shared, request)?;
    // Whoever came in may leave.
    if !looks && path != LOGOUT && caller.role != Role::Operator {
        let why = "this token may only look";
        return Err(refuse(Problem::new(
            StatusCode::FORBIDDEN,
            "read_only",
            why,
        )));
    }
    Ok(Some(caller))
}

fn refuse(problem: Problem) -> Box<Response> {
    Box::new(problem.into_response())
}

/// Returns the host that the caller asked for: a header in HTTP/1, part of the address in HTTP/2.
fn host(request: &Request) -> Option<&str> {
    match request.headers().get(header::HOST) {
        Some(host) => host.to_str().ok(),
        None => request
            .uri()
            .authority()
            .map(|authority| authority.as_str()),
    }
}

/// Whether it is asked for by a name of ours. Every address in numbers is: no other site can be reached by it.
fn is_ours(host: &str, names: &[String]) -> bool {
    let host = host.to_ascii_lowercase();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok() || names.iter().any(|known| known == name)
}

/// A page of another site may link here, and nothing else.
fn check_origin(
    headers: &HeaderMap,
    host: Option<&str>,
    path: &str,
    looks: bool,
) -> Result<(), Box<Response>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_page = looks && !path.starts_with("/api/") && path != "/metrics";
    let foreign =
        text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    // Everything whose host is not the one that was asked. A form of a page that refers to nobody says `null`: that is ours
    // only if the browser itself says so.
    let ours = text("sec-fetch-site") == Some("same-origin");
    let other = text("origin").is_some_and(|origin| match origin.split_once("://") {
        Some((_, named)) => Some(named) != host,
        None => !ours,
    });
    if !is_page && (foreign || other) {
        let why = "another site's page may not do this";
        return Err(refuse(Problem::new(
            StatusCode::FORBIDDEN,
            "cross_site",
            why,
        )));
    }
    let says_so = headers.contains_key(OWN_HEADER)
        || headers.contains_key(header::AUTHORIZATION)
        || path == LOGIN;
    if !looks && !says_so {
        let why = format!("acts need the header {OWN_HEADER}: 1, or a token");
        return Err(refuse(Problem::new(
            StatusCode::FORBIDDEN,
            "header_missing",
            why,
        )));
    }
    Ok(())
}

fn caller(shared: &Shared, request: &Request) -> Result<Caller, Box<Response>> {
    let doors = &shared.doors;
    if let Some(anybody) = doors.anybody() {
        return Ok(anybody);
    }
    if doors.is_by_host() {
        return request
            .extensions()
            .get::<Caller>()
            .cloned()
            .ok_or_else(|| unknown(false));
    }
    let headers = request.headers();
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    if let Some(token) = bearer.and_then(|value| value.strip_prefix("Bearer ")) {
        return doors
            .by_token(token)
            .map_err(|refusal| Box::new(refused_token(refusal)));
    }
    if let Some(caller) = cookie(headers).and_then(|cookie| doors.by_cookie(cookie)) {
        return Ok(caller);
    }
    // A person with a browser is shown where to put the token; still it is a refusal.
    let wants_page = request.method() == Method::GET
        && headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|a| a.contains("text/html"));
    Err(unknown(wants_page && doors.has_tokens()))
}

pub(crate) fn refused_token(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Wrong => Problem::new(
            StatusCode::UNAUTHORIZED,
            "wrong_token",
            "this token opens nothing here",
        ),
        Refusal::TooMany => Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many",
            "too many wrong tokens: wait a minute",
        ),
    }
    .into_response()
}

fn unknown(page: bool) -> Box<Response> {
    if page {
        return Box::new(assets::login_page(StatusCode::UNAUTHORIZED, None));
    }
    let why = "a token is needed: `Authorization: Bearer …`";
    let mut answer = Problem::new(StatusCode::UNAUTHORIZED, "token_needed", why).into_response();
    answer
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Box::new(answer)
}

/// What the session's cookie says.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    all.flat_map(|line| line.split(';')).find_map(|pair| {
        pair.trim()
            .split_once('=')
            .filter(|(name, _)| *name == COOKIE)
            .map(|(_, value)| value)
    })
}

fn with_headers(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    // The page where one signs in brings its own: its style stands in it.
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(POLICY));
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(
        "cross-origin-resource-policy",
        HeaderValue::from_static("same-origin"),
    );
    headers.insert(
        "cross-origin-opener-policy",
        HeaderValue::from_static("same-origin"),
    );
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_comes_too_slowly_is_not_waited_for() {
        let never = futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
        let request = Request::new(Body::from_stream(never));
        let refused = whole(request, Duration::from_millis(1))
            .await
            .err()
            .map(|answer| answer.status());
        assert_eq!(refused, Some(StatusCode::REQUEST_TIMEOUT));
    }
}
