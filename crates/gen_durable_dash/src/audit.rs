//! The audit log of the dashboard. The dashboard writes a record before it runs the HTTP handler of
//! a request that may change something, and completes the record after the handler has returned.
//! The handler adds a description of the action. The audit log therefore contains every action,
//! even if the handler describes nothing, or if the process crashes before the action ends.

use std::{
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    extract::{ConnectInfo, Request},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use gen_durable::{Client, operate::AuditEntry};

use crate::{
    access::Caller,
    problem::{Problem, Said},
    shared::Shared,
};

/// The channel of all audit records that the dashboard writes.
const VIA: &str = "dashboard";
/// Paths for which the dashboard writes no audit record, because requests to them change nothing
/// except browser sessions. The handler of `/login` writes the audit record of a sign-in.
pub(crate) const NO_ACTS: [&str; 3] = ["/login", "/api/v1/session/end", "/api/v1/bulk/preview"];

/// The description that an HTTP handler gives of its action, for the audit record of the request.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The handler and the middleware of a request lock this mutex briefly, never across an await.
    note: Mutex<Note>,
}

#[derive(Debug, Default)]
enum Note {
    #[default]
    None,
    Some(Entry),
    /// The audit record of the request is complete. The dashboard writes a separate record for a
    /// later description.
    Closed,
}

#[derive(Debug, Clone)]
struct Entry {
    act: &'static str,
    /// The subject of the action in an audit record, for example an instance or a schedule.
    on: String,
    outcome: Result<String, String>,
}

impl Notes {
    /// Returns the description of the action, and closes the audit record of the request to later
    /// descriptions.
    fn close(&self) -> Option<Entry> {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *note, Note::Closed) {
            Note::Some(entry) => Some(entry),
            Note::None | Note::Closed => None,
        }
    }
}

/// Writes audit records to the database.
#[derive(Debug)]
pub(crate) struct Audit {
    store: gen_durable::operate::Audit,
}

impl Audit {
    pub(crate) fn new(client: &Client) -> Audit {
        Audit {
            store: client.audit(),
        }
    }

    /// Describes an action and its outcome. The description becomes part of the audit record of the
    /// HTTP request. Without a request, or after the record of the request is complete, this
    /// function writes the description as a separate record.
    pub(crate) fn note(
        &self,
        by: &Caller,
        act: &'static str,
        on: String,
        outcome: Result<String, String>,
    ) {
        let (succeeded, said) = match &outcome {
            Ok(said) => (true, said),
            Err(said) => (false, said),
        };
        let place = by.place.as_deref().unwrap_or_default();
        tracing::info!(target: "gen_durable_dash::audit", actor = %by.name, source = %place, action = act, subject = %on, succeeded, outcome = %said, "{act}");
        let entry = Entry { act, on, outcome };
        if let Some(notes) = &by.notes {
            let mut note = notes.note.lock().unwrap_or_else(PoisonError::into_inner);
            if !matches!(*note, Note::Closed) {
                *note = Note::Some(entry);
                return;
            }
        }
        let (store, by) = (self.store.clone(), by.clone());
        tokio::spawn(async move {
            let audited = audit_entry(&by, entry.act, &entry.on);
            let written = match store.begin(&audited).await {
                Ok(id) => store
                    .end(id, &audited, outcome_text(&entry.outcome))
                    .await
                    .map(drop),
                Err(error) => Err(error),
            };
            warn_if_failed(written);
        });
    }

    /// Writes an audit record, runs the HTTP handler of a request that may change something, and
    /// completes the record. The handler runs to its end even if the client disconnects.
    pub(crate) async fn through(
        shared: Shared,
        mut by: Caller,
        mut request: Request,
        next: Next,
    ) -> Response {
        let path = request.uri().path().to_owned();
        let begun = audit_entry(&by, request.method().as_str(), &path);
        let record = match shared.audit.store.begin(&begun).await {
            Ok(record) => record,
            Err(error) => {
                return Problem::from(error)
                    .because("nothing was done, because the audit record could not be written");
            }
        };
        let notes = Arc::new(Notes::default());
        by.notes = Some(notes.clone());
        request.extensions_mut().insert(by.clone());
        let act = tokio::spawn(async move {
            let answer = AssertUnwindSafe(next.run(request))
                .catch_unwind()
                .await
                .unwrap_or_else(|_| handler_panicked());
            let (entry, outcome) = match notes.close() {
                Some(entry) => (audit_entry(&by, entry.act, &entry.on), entry.outcome),
                None => (begun, outcome_of(&answer)),
            };
            warn_if_failed(
                shared
                    .audit
                    .store
                    .end(record, &entry, outcome_text(&outcome))
                    .await
                    .map(drop),
            );
            answer
        });
        act.await.unwrap_or_else(|_| handler_panicked())
    }
}

fn audit_entry(by: &Caller, act: &str, on: &str) -> AuditEntry {
    AuditEntry {
        actor: by.name.clone(),
        source: by.place.clone(),
        channel: VIA.to_owned(),
        action: act.to_owned(),
        subject: on.to_owned(),
    }
}

fn outcome_text(outcome: &Result<String, String>) -> Result<&str, &str> {
    outcome.as_deref().map_err(String::as_str)
}

/// Derives the outcome in the audit record from the response, for a handler that described no
/// action. Such a handler has usually rejected the request before the action.
fn outcome_of(answer: &Response) -> Result<String, String> {
    let said = answer
        .extensions()
        .get::<Said>()
        .map(|Said(text)| text.as_str());
    match answer.status() {
        status if status.is_success() => Ok("done".to_owned()),
        status => Err(said.map_or_else(
            || format!("refused: {status}"),
            |said| format!("refused: {said}"),
        )),
    }
}

fn handler_panicked() -> Response {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "failed",
        "the handler panicked: its effects up to that point remain, check the audit log",
    )
    .into_response()
}

/// Logs a failed write of an audit record. The failure does not undo the action. The audit record
/// of the action then has no outcome.
fn warn_if_failed(written: Result<(), gen_durable::Error>) {
    if let Err(error) = written {
        tracing::warn!(target: "gen_durable_dash::audit", error = format!("{error:#}"), "the outcome of an action could not be written to the audit log");
    }
}

/// Returns the peer address of the connection of a request, if the server provides the address.
/// Ignores headers with an address, because any client can forge them.
pub(crate) fn place(request: &Request) -> Option<String> {
    let from = request.extensions().get::<ConnectInfo<SocketAddr>>();
    from.map(|ConnectInfo(address)| address.ip().to_canonical().to_string())
}
