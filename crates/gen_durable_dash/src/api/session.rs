//! The HTTP handlers of browser sessions: sign-in, sign-out, and the authenticated user.

use std::net::SocketAddr;

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{ConnectInfo, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::{
    access::{Caller, Role},
    assets::login_page,
    guard::{CookieName, cookie, with_refusal},
    lockout::Refusal,
    problem::{Problem, Said},
    shared::Shared,
};

/// Exchanges a token for a browser session. The body of the request is an HTML form: `token=...`.
pub(crate) async fn sign_in(
    State(shared): State<Shared>,
    Extension(CookieName(name)): Extension<CookieName>,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    body: Bytes,
) -> Response {
    let text = String::from_utf8_lossy(&body);
    let token = text
        .split('&')
        .find_map(|pair| pair.strip_prefix("token="))
        .map(decoded)
        .unwrap_or_default();
    let place = from.map(|Extension(ConnectInfo(address))| address.ip().to_canonical().to_string());
    match shared.doors.by_token(&token, place.as_deref()) {
        Ok(caller) => {
            let seen = Caller {
                place,
                ..caller.clone()
            };
            shared.audit.note(
                &seen,
                "sign in",
                "a browser".to_owned(),
                Ok("signed in".to_owned()),
            );
            let Some(secret) = shared.doors.sign_in(caller) else {
                let why = "the operating system provides no random bytes";
                return Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", why)
                    .into_response();
            };
            let mut answer = StatusCode::SEE_OTHER.into_response();
            let secure = if shared.options.secure_cookies {
                "; Secure"
            } else {
                ""
            };
            // With `Lax`, a browser sends the cookie when its user follows a link from a chat or a
            // pager. Every action needs a header that pages of other sites cannot send.
            let cookie =
                format!("{name}={secret}; HttpOnly; SameSite=Lax; Path=/; Max-Age=43200{secure}");
            if let Ok(cookie) = HeaderValue::from_str(&cookie) {
                answer.headers_mut().insert(header::SET_COOKIE, cookie);
            }
            answer
                .headers_mut()
                .insert(header::LOCATION, HeaderValue::from_static("./"));
            answer
        }
        Err(refusal) => {
            let (status, said) = match refusal {
                Refusal::Wrong => (StatusCode::UNAUTHORIZED, "This token is not valid."),
                Refusal::TooMany => (
                    StatusCode::TOO_MANY_REQUESTS,
                    "Too many wrong tokens. Wait a minute, then try again.",
                ),
            };
            let mut answer = login_page(status, Some(said));
            answer.extensions_mut().insert(Said(said.to_owned()));
            with_refusal(answer, refusal)
        }
    }
}

/// Decodes a value of an HTML form (percent encoding, `+` for a space).
fn decoded(text: &str) -> String {
    percent_decoded(&text.replace('+', " ")).trim().to_owned()
}

/// Decodes the percent encoding of a text. Incomplete codes are left out.
pub(crate) fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
                if let (Some(high), Some(low)) = (digit(), digit()) {
                    bytes.extend(u8::try_from(high * 16 + low));
                }
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) async fn sign_out(
    State(shared): State<Shared>,
    Extension(CookieName(name)): Extension<CookieName>,
    headers: HeaderMap,
) -> Response {
    if let Some(secret) = cookie(&headers, &name) {
        shared.doors.sign_out(secret);
    }
    let mut answer = Json(json!({"signed_out": true})).into_response();
    let secure = if shared.options.secure_cookies {
        "; Secure"
    } else {
        ""
    };
    if let Ok(gone) = HeaderValue::from_str(&format!(
        "{name}=; HttpOnly; SameSite=Lax; Path=/; Max-Age=0{secure}"
    )) {
        answer.headers_mut().insert(header::SET_COOKIE, gone);
    }
    answer
}

pub(crate) async fn whoami(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Json<Value> {
    let is_operator = caller.role == Role::Operator;
    Json(json!({
        "name": caller.name, "role": if is_operator { "operator" } else { "reader" },
        "may_act": is_operator, "may_sign_out": shared.doors.has_tokens(), "title": shared.options.title,
        "schema": shared.client.pool().schema(), "version": env!("CARGO_PKG_VERSION"),
    }))
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn a_percent_encoded_form_value_is_decoded() {
        assert_eq!(decoded("a%2Bb+c%3d%"), "a+b c=");
    }
}
