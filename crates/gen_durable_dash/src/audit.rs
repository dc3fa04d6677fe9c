//! The audit log of the dashboard. The dashboard writes a record before it runs the HTTP handler of
//! a request that may change something, and completes the record after the handler has returned.
//! The handler adds a description of the action. The audit log therefore contains every action,
//! even if the handler describes nothing, or if the process crashes before the action ends.

use std::{
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
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
    api::session::percent_decoded,
    problem::{Problem, Said},
    shared::Shared,
};

/// The channel of all audit records that the dashboard writes.
const VIA: &str = "dashboard";
/// Paths for which the dashboard writes no audit record, because requests to them change nothing
/// except browser sessions. The handler of `/login` writes the audit record of a sign-in.
pub(crate) const NO_ACTS: [&str; 3] = ["/login", "/api/v1/session/end", "/api/v1/bulk/preview"];

/// The audit log has at most this many records of refused requests at once, and this many more per
/// hour. An attacker that sends many requests therefore cannot push the actions of operators out of
/// the log.
const REFUSED_BURST: f64 = 50.0;
const REFUSED_PER_HOUR: f64 = 100.0;

/// Marks a response that refuses a request of this actor. The dashboard audits the refusal.
#[derive(Debug, Clone)]
pub(crate) struct Refused(pub(crate) String);

/// The number of records of refused requests that the dashboard may still write.
#[derive(Debug)]
struct Allowance {
    left: f64,
    at: Instant,
    /// The number of refused requests without a record since the last record.
    unrecorded: u64,
}

impl Allowance {
    /// Takes one record. Returns the number of refused requests without a record before it, or
    /// `None` if the allowance is used up.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let passed = now.duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * REFUSED_PER_HOUR / 3600.0).min(REFUSED_BURST);
        self.at = now;
        if self.left < 1.0 {
            self.unrecorded += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.unrecorded))
    }
}

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
    /// A refused request locks this mutex briefly, never across an await.
    allowance: Mutex<Allowance>,
}

impl Audit {
    pub(crate) fn new(client: &Client) -> Audit {
        Audit {
            store: client.audit(),
            allowance: Mutex::new(Allowance {
                left: REFUSED_BURST,
                at: Instant::now(),
                unrecorded: 0,
            }),
        }
    }

    /// Writes an audit record and a log line of a refused request, unless there were too many.
    pub(crate) fn refused(
        &self,
        actor: &str,
        source: Option<String>,
        (method, path): (&str, &str),
        why: String,
    ) {
        let (action, subject) = described(method, path);
        let mut allowance = self
            .allowance
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(unrecorded) = allowance.take(Instant::now()) else {
            return;
        };
        drop(allowance);
        let why = match unrecorded {
            0 => why,
            count => format!("{why} ({count} more refused requests before it were not recorded)"),
        };
        let shown = source.as_deref().unwrap_or_default();
        tracing::warn!(target: "gen_durable_dash::audit", actor, source = %shown, action, subject, outcome = %why, "a request was refused");
        let by = Caller {
            place: source,
            ..Caller::reader(actor)
        };
        let (store, entry) = (self.store.clone(), audit_entry(&by, &action, &subject));
        tokio::spawn(async move {
            let written = match store.begin(&entry).await {
                Ok(id) => store.end(id, &entry, Err(&why)).await.map(drop),
                Err(error) => Err(error),
            };
            warn_if_failed(written);
        });
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
        let (action, subject) = described(request.method().as_str(), &path);
        let begun = audit_entry(&by, &action, &subject);
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

/// Describes the action that a request asks for: the action and its subject.
fn described(method: &str, path: &str) -> (String, String) {
    let path = percent_decoded(path);
    let parts: Vec<&str> = path
        .strip_prefix("/api/v1/")
        .unwrap_or_default()
        .split('/')
        .collect();
    let (action, subject) = match (method, parts.as_slice()) {
        ("POST", ["instances"]) => ("enqueue".to_owned(), "an instance".to_owned()),
        ("POST", ["instances", id, act]) => ((*act).to_owned(), format!("instance {id}")),
        ("POST", ["queues", name, act]) => {
            let action = match *act {
                "fair" | "unfair" => format!("{act} queue"),
                "share" => "set share".to_owned(),
                act => act.to_owned(),
            };
            (action, format!("queue {name}"))
        }
        ("POST", ["lanes", act]) => (format!("lane {act}"), "a lane".to_owned()),
        ("POST", ["timers", id, act]) => (format!("{act} timer"), format!("timer {id}")),
        ("POST", ["schedules", name, act]) => {
            (format!("{act} schedule"), format!("schedule {name}"))
        }
        ("POST", ["limits", name, act]) => {
            let action = match *act {
                "set_key" => "set limit key".to_owned(),
                "unset_key" => "unset limit key".to_owned(),
                act => format!("{act} limit"),
            };
            (action, format!("limit {name}"))
        }
        ("POST", ["projections", name, act]) => ((*act).to_owned(), format!("projection {name}")),
        ("POST", ["projection_runs", id, act]) => (format!("{act} run"), format!("run {id}")),
        ("POST", ["bulk", id, act]) => (format!("bulk {act}"), format!("bulk {id}")),
        ("POST", ["bulk", ..]) => ("bulk".to_owned(), "matching instances".to_owned()),
        ("POST", _) if path == "/login" => ("sign in".to_owned(), "a browser".to_owned()),
        _ => (method.to_owned(), path.clone()),
    };
    (action, subject)
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
pub(crate) fn outcome_of(answer: &Response) -> Result<String, String> {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_records_of_refused_requests_are_limited_and_the_next_record_counts_the_others() {
        let now = Instant::now();
        let mut allowance = Allowance {
            left: REFUSED_BURST,
            at: now,
            unrecorded: 0,
        };
        let recorded = (0..10_000).filter_map(|_| allowance.take(now)).count();
        assert_eq!(recorded, 50);
        let later = now + Duration::from_secs(40);
        assert_eq!(allowance.take(later), Some(9_950));
        let day =
            (0..24 * 3600).filter_map(|second| allowance.take(later + Duration::from_secs(second)));
        assert!(day.count() <= 2_450);
    }
}
