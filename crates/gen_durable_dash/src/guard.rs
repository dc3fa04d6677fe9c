//! The middleware of the dashboard. It checks the host name, the origin and the credentials of
//! every request, and sets the security headers of every response, including rejections.

use std::{net::IpAddr, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::{OriginalUri, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    access::{Caller, Role},
    assets,
    audit::{self, Audit, NO_ACTS, Refused},
    lockout::{Refusal, WINDOW},
    problem::Problem,
    routes::BODY_BYTES_MAX,
    shared::Shared,
};

/// Requests for operator actions need this header or a bearer token. A page of another site can
/// send the header only after a CORS preflight, and the dashboard rejects every preflight.
pub(crate) const OWN_HEADER: &str = "x-durable";
/// The begin of the name of the session cookie. The whole name contains the port and the path of
/// the dashboard, because browsers do not separate the cookies of the ports of a host.
pub(crate) const COOKIE: &str = "durable_session";
/// The only GET path without authentication. Its response says that the server process is alive,
/// and nothing else.
pub(crate) const HEALTH: &str = "/healthz";
/// The path of the sign-in, which exchanges a token for a browser session.
pub(crate) const LOGIN: &str = "/login";
/// Time limit for the response to a request that only reads. An event stream begins at once.
const READ_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit for receiving a request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const LOGOUT: &str = "/api/v1/session/end";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// The name of the session cookie of a request.
#[derive(Debug, Clone)]
pub(crate) struct CookieName(pub(crate) String);

pub(crate) async fn guard(
    State(shared): State<Shared>,
    mut request: Request,
    next: Next,
) -> Response {
    let cookie = CookieName(cookie_name(&request, shared.options.secure_cookies));
    request.extensions_mut().insert(cookie);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let source = audit::place(&request);
    let answer = match admit(&shared, &request) {
        Ok(caller) => admitted(shared.clone(), caller, request, next)
            .await
            .unwrap_or_else(|refused| *refused),
        Err(refused) => *refused,
    };
    if let Some(Refused(actor)) = answer.extensions().get::<Refused>() {
        let refused = audit::outcome_of(&answer).err().unwrap_or_default();
        shared
            .audit
            .refused(actor, source, (method.as_str(), &path), refused);
    }
    with_headers(answer)
}

async fn admitted(
    shared: Shared,
    caller: Option<Caller>,
    request: Request,
    next: Next,
) -> Result<Response, Box<Response>> {
    let caller = caller.map(|caller| Caller {
        place: caller.place.clone().or_else(|| audit::place(&request)),
        ..caller
    });
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        let read = tokio::time::timeout(READ_TIMEOUT, run(caller, request, next)).await;
        return read.map_err(|_| {
            let why = format!("the database did not answer within {READ_TIMEOUT:?}");
            refuse(Problem::new(
                StatusCode::GATEWAY_TIMEOUT,
                "database_away",
                why,
            ))
        });
    }
    // Receives the whole body of the request before the HTTP handler starts. A slow client then
    // occupies no handler. It occupies only its connection until `BODY_TIMEOUT` has passed.
    let request = with_whole_body(request, BODY_TIMEOUT).await?;
    match caller {
        Some(caller) if !NO_ACTS.contains(&request.uri().path()) => {
            Ok(Audit::through(shared, caller, request, next).await)
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

/// Reads the body of a request completely, within a time limit and a size limit.
async fn with_whole_body(request: Request, within: Duration) -> Result<Request, Box<Response>> {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(within, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => {
            let why = format!(
                "the body is larger than {BODY_BYTES_MAX} bytes, or the connection was interrupted"
            );
            Err(refuse(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                why,
            )))
        }
        Err(_) => {
            let why = format!("the body was not received within {within:?}");
            Err(refuse(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "too_slow",
                why,
            )))
        }
    }
}

/// Authenticates and authorizes a request. Returns the caller, `None` for a page without
/// authentication, or the response that rejects the request.
fn admit(shared: &Shared, request: &Request) -> Result<Option<Caller>, Box<Response>> {
    let (headers, host) = (request.headers(), host(request));
    if !host.is_some_and(|host| is_known_host(host, &shared.options.hosts)) {
        let why = "this host name is not configured: add it with `durable serve --host` or Options::hosts";
        return Err(refuse(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "wrong_host",
            why,
        )));
    }
    let path = request.uri().path();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if path == HEALTH && is_read {
        return Ok(None);
    }
    check_origin(headers, host, path, is_read)?;
    if path == LOGIN && request.method() == Method::POST {
        // Admits a sign-in request without credentials, because the handler of the sign-in checks
        // the token in the request body.
        return Ok(None);
    }
    let caller = caller(shared, request)?;
    // Rejects a caller with the reader role on every path that changes something, except the path
    // that signs the caller out.
    if !is_read && path != LOGOUT && caller.role != Role::Operator {
        let why = "this token may only read: use an operator token";
        let mut refused = refuse(Problem::new(StatusCode::FORBIDDEN, "read_only", why));
        refused.extensions_mut().insert(Refused(caller.name));
        return Err(refused);
    }
    Ok(Some(caller))
}

fn refuse(problem: Problem) -> Box<Response> {
    Box::new(problem.into_response())
}

/// Returns the host name of a request: the `Host` header in HTTP/1, the authority of the URI in
/// HTTP/2.
fn host(request: &Request) -> Option<&str> {
    match request.headers().get(header::HOST) {
        Some(host) => host.to_str().ok(),
        None => request
            .uri()
            .authority()
            .map(|authority| authority.as_str()),
    }
}

/// Returns whether the dashboard accepts requests with this host name: configured names, and every
/// IP address, because a DNS rebinding attack needs a domain name.
fn is_known_host(host: &str, names: &[String]) -> bool {
    let host = host.to_ascii_lowercase();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok() || names.iter().any(|known| known == name)
}

/// Rejects a cross-site request, unless the request reads a page of the dashboard, so that other
/// sites can link to its pages. Also rejects an action, except the sign-in, without the header
/// `x-durable` or a bearer token.
fn check_origin(
    headers: &HeaderMap,
    host: Option<&str>,
    path: &str,
    is_read: bool,
) -> Result<(), Box<Response>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_page = is_read && !path.starts_with("/api/") && path != "/metrics";
    let is_cross_site =
        text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    // Rejects a request with an `Origin` header that names another host than the request. A form on
    // a page with the policy `no-referrer` sends `Origin: null`; the dashboard accepts this value
    // only with the header `Sec-Fetch-Site: same-origin`.
    let ours = text("sec-fetch-site") == Some("same-origin");
    let other = text("origin").is_some_and(|origin| match origin.split_once("://") {
        Some((_, named)) => Some(named) != host,
        None => !ours,
    });
    if !is_page && (is_cross_site || other) {
        let why = "cross-site requests are not allowed";
        return Err(refuse(Problem::new(
            StatusCode::FORBIDDEN,
            "cross_site",
            why,
        )));
    }
    let is_intended = headers.contains_key(OWN_HEADER)
        || headers.contains_key(header::AUTHORIZATION)
        || path == LOGIN;
    if !is_read && !is_intended {
        let why = format!("an action needs the header `{OWN_HEADER}: 1` or a bearer token");
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
        let source = audit::place(request);
        return doors
            .by_token(token, source.as_deref())
            .map_err(|refusal| Box::new(refused_token(refusal)));
    }
    let name = request.extensions().get::<CookieName>();
    let cookie = name.and_then(|CookieName(name)| cookie(headers, name));
    if let Some(caller) = cookie.and_then(|cookie| doors.by_cookie(cookie)) {
        return Ok(caller);
    }
    // The dashboard responds to an unauthenticated browser with the sign-in page and the status
    // 401.
    let wants_page = request.method() == Method::GET
        && headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|a| a.contains("text/html"));
    let is_sign_in = wants_page && doors.has_tokens();
    // The form of the sign-in page has a relative address, like the links of the dashboard. The
    // path inside the router is `/` for a request to the bare prefix of a mounted dashboard.
    let original = request.extensions().get::<OriginalUri>();
    let redirect = original
        .filter(|_| is_sign_in && request.uri().path() == "/")
        .and_then(|OriginalUri(uri)| assets::redirect_to_slash(uri));
    Err(redirect.map_or_else(|| unknown(is_sign_in), Box::new))
}

/// The actor in the audit record of a wrong token.
const UNKNOWN: &str = "unknown";

pub(crate) fn refused_token(refusal: Refusal) -> Response {
    let answer = match refusal {
        Refusal::Wrong => Problem::new(
            StatusCode::UNAUTHORIZED,
            "wrong_token",
            "this token is not valid here",
        ),
        Refusal::TooMany => Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many",
            "too many wrong tokens: wait a minute",
        ),
    };
    with_refusal(answer.into_response(), refusal)
}

/// Marks a response to a wrong token: the dashboard audits it, and the client waits before it tries
/// again.
pub(crate) fn with_refusal(mut answer: Response, refusal: Refusal) -> Response {
    answer.extensions_mut().insert(Refused(UNKNOWN.to_owned()));
    if refusal == Refusal::TooMany {
        let seconds = HeaderValue::from(WINDOW.as_secs());
        answer.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    answer
}

fn unknown(page: bool) -> Box<Response> {
    if page {
        return Box::new(assets::login_page(StatusCode::UNAUTHORIZED, None));
    }
    let why = "authentication required: send `Authorization: Bearer …`";
    let mut answer = Problem::new(StatusCode::UNAUTHORIZED, "token_needed", why).into_response();
    answer
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Box::new(answer)
}

/// Returns the name of the session cookie: it contains the port of the host and the path under
/// which the host program mounts the dashboard. With TLS it has the prefix `__Host-`, so that
/// browsers accept the cookie from this host only.
fn cookie_name(request: &Request, is_secure: bool) -> String {
    let port = host(request).and_then(|host| host.rsplit_once(':'));
    let port = port.map(|(_, port)| port).unwrap_or_default();
    let original = request.extensions().get::<OriginalUri>();
    let original = original.map_or("", |OriginalUri(uri)| uri.path());
    let prefix = original
        .strip_suffix(request.uri().path())
        .or_else(|| (request.uri().path() == "/").then_some(original));
    let mut name = match is_secure {
        true => format!("__Host-{COOKIE}"),
        false => COOKIE.to_owned(),
    };
    for part in std::iter::once(port).chain(prefix.unwrap_or_default().split('/')) {
        let part: String = part.chars().filter(char::is_ascii_alphanumeric).collect();
        if !part.is_empty() {
            name.push('_');
            name.push_str(&part);
        }
    }
    name
}

/// Returns the value of a cookie in the headers of a request.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let all = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    all.flat_map(|line| line.split(';')).find_map(|pair| {
        pair.trim()
            .split_once('=')
            .filter(|(name, _)| *name == wanted)
            .map(|(_, value)| value)
    })
}

fn with_headers(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    // Keeps a content security policy that the response already has: the sign-in page sets its own
    // policy, because its style is inline.
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
    async fn a_request_with_a_body_that_arrives_too_slowly_is_rejected_with_status_408() {
        let never = futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
        let request = Request::new(Body::from_stream(never));
        let refused = with_whole_body(request, Duration::from_millis(1))
            .await
            .err()
            .map(|answer| answer.status());
        assert_eq!(refused, Some(StatusCode::REQUEST_TIMEOUT));
    }
}
