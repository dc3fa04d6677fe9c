//! The error responses of the HTTP API in the format `application/problem+json`: a status, a stable
//! code for programs, and a sentence for people.

use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Request, rejection::JsonRejection},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use gen_durable::{Error, client::ErrorKind};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::find::{FindError, InvalidQuery};

/// The detail text of an error response. The handler stores it as a response extension, and the
/// dashboard writes it into the audit record of the request.
#[derive(Debug, Clone)]
pub(crate) struct Said(pub(crate) String);

/// An error response of the HTTP API.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    /// The stable error code for programs. The code stays the same if a later version words
    /// `detail` differently.
    code: &'static str,
    detail: String,
    /// Further fields in the body of the error response, for programs.
    more: Value,
}

pub(crate) type Answer<T> = Result<T, Problem>;

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem {
            status,
            code,
            detail: detail.into(),
            more: Value::Null,
        }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// Returns the error of a reader that requests keys which the dashboard hides from readers.
    pub(crate) fn keys_hidden() -> Problem {
        let why = "this token may not see keys: use an operator token";
        Problem::new(StatusCode::FORBIDDEN, "keys_hidden", why)
    }

    /// Converts the error into an HTTP response. The detail text of the response begins with
    /// `what`, the consequence for the caller.
    pub(crate) fn because(mut self, what: &str) -> Response {
        self.detail = format!("{what}: {}", self.detail);
        self.into_response()
    }

    pub(crate) fn with(mut self, more: Value) -> Problem {
        self.more = more;
        self
    }
}

/// Formats an error of a call with its causes, for a response or an audit record.
pub(crate) fn with_causes(error: &Error) -> String {
    format!("{error:#}")
}

impl From<InvalidQuery> for Problem {
    fn from(error: InvalidQuery) -> Problem {
        Problem::invalid(error.to_string())
    }
}

impl From<FindError> for Problem {
    fn from(error: FindError) -> Problem {
        match error {
            FindError::Invalid(error) => error.into(),
            FindError::Failed(error) => error.into(),
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let (status, code) = match error.kind() {
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            ErrorKind::NoTarget => (StatusCode::CONFLICT, "no_target"),
            ErrorKind::KeyTaken => (StatusCode::CONFLICT, "key_taken"),
            ErrorKind::RunInProgress => (StatusCode::CONFLICT, "taken"),
            ErrorKind::InboxFull => (StatusCode::CONFLICT, "inbox_full"),
            ErrorKind::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            ErrorKind::Transient => (StatusCode::SERVICE_UNAVAILABLE, "database_away"),
            ErrorKind::Unknown => (StatusCode::GATEWAY_TIMEOUT, "outcome_unknown"),
            ErrorKind::Schema => (StatusCode::SERVICE_UNAVAILABLE, "schema"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Problem::new(status, code, with_causes(&error))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("refused");
        let mut body = json!({
            "type": format!("urn:gen_durable:{}", self.code),
            "title": title,
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, self.more) {
            body.extend(more);
        }
        let mut answer = (self.status, Json(body)).into_response();
        answer.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        answer.extensions_mut().insert(Said(self.detail));
        answer
    }
}

pub(crate) async fn no_such_page() -> Problem {
    Problem::not_found("no resource exists at this path")
}

/// A JSON request body. If the body cannot be decoded, the server responds with a [`Problem`].
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Body(body)),
            Err(JsonRejection::MissingJsonContentType(_)) => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not_json",
                "the body must be JSON with the header content-type: application/json",
            )),
            Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "too_large",
                    "the body is too large",
                ))
            }
            Err(rejection) => Err(Problem::invalid(rejection.body_text())),
        }
    }
}

/// The query string of a request. If the query string cannot be decoded, the server responds with a
/// [`Problem`].
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Query(query)),
            Err(rejection) => Err(Problem::invalid(rejection.body_text())),
        }
    }
}

/// The path parameters of a request. If a parameter cannot be decoded, the server responds with
/// 404.
#[derive(Debug)]
pub(crate) struct At<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(At(path)),
            Err(rejection) => Err(Problem::not_found(rejection.body_text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use gen_durable::Pool;

    use super::*;

    #[test]
    fn the_detail_of_an_error_contains_its_message_and_its_cause_once_each() {
        let error = Pool::open("postgres://u@h:port/x", "gen_durable", 1).unwrap_err();
        let problem = Problem::from(error);
        assert_eq!(
            (problem.status, problem.code),
            (StatusCode::UNPROCESSABLE_ENTITY, "invalid")
        );
        for message in [
            "the connection string is invalid",
            "invalid value for option `port`",
        ] {
            let times = problem.detail.matches(message).count();
            assert_eq!(times, 1, "{}", problem.detail);
        }
    }
}
