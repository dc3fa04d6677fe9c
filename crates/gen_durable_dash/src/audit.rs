//! What was done through here, and by whom. The guard records every request that may change something before it lets it through,
//! and again when it is over; the handler says in words what it was. So no act goes unrecorded, not even that of a handler which
//! says nothing, or of a process that dies.

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
use gen_durable::{Client, Deed};

use crate::{
    access::Caller,
    problem::{Problem, Said},
    shared::Shared,
};

/// Through what.
const VIA: &str = "dashboard";
/// They change nothing, or nothing but who is signed in (a sign-in is noted by its handler).
pub(crate) const NO_ACTS: [&str; 3] = ["/login", "/api/v1/session/end", "/api/v1/bulk/preview"];

/// What a handler has said of the act that it does.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Guarded for a moment, never over an await.
    note: Mutex<Note>,
}

#[derive(Debug, Default)]
enum Note {
    #[default]
    None,
    Some(Entry),
    /// The record is written: whatever is said from now on is a record of its own.
    Closed,
}

#[derive(Debug, Clone)]
struct Entry {
    act: &'static str,
    /// On what.
    on: String,
    outcome: Result<String, String>,
}

impl Notes {
    /// Nothing more belongs to this request.
    fn close(&self) -> Option<Entry> {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *note, Note::Closed) {
            Note::Some(entry) => Some(entry),
            Note::None | Note::Closed => None,
        }
    }
}

/// The record, in the database.
#[derive(Debug)]
pub(crate) struct Audit {
    store: gen_durable::Audit,
}

impl Audit {
    pub(crate) fn new(client: &Client) -> Audit {
        Audit {
            store: client.audit(),
        }
    }

    /// Somebody did something, or tried to. It becomes the words of the request's record; what is said by nobody's request, or
    /// after its end, is written by itself.
    pub(crate) fn note(
        &self,
        by: &Caller,
        act: &'static str,
        on: String,
        outcome: Result<String, String>,
    ) {
        let (went_well, said) = match &outcome {
            Ok(said) => (true, said),
            Err(said) => (false, said),
        };
        let place = by.place.as_deref().unwrap_or_default();
        tracing::info!(target: "gen_durable_dash::audit", by = %by.name, from = %place, act, on = %on, went_well, outcome = %said, "{act}");
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
            let deed = deed(&by, entry.act, &entry.on);
            let written = match store.begin(&deed).await {
                Ok(id) => store
                    .end(id, &deed, as_text(&entry.outcome))
                    .await
                    .map(drop),
                Err(error) => Err(error),
            };
            report(written);
        });
    }

    /// Let a request through that may change something: recorded before, and after. It goes on when the caller is gone.
    pub(crate) async fn through(
        shared: Shared,
        mut by: Caller,
        mut request: Request,
        next: Next,
    ) -> Response {
        let path = request.uri().path().to_owned();
        let begun = deed(&by, request.method().as_str(), &path);
        let record = match shared.audit.store.begin(&begun).await {
            Ok(record) => record,
            Err(error) => {
                return Problem::from(error)
                    .because("nothing was done, since it could not be recorded");
            }
        };
        let notes = Arc::new(Notes::default());
        by.notes = Some(notes.clone());
        request.extensions_mut().insert(by.clone());
        let act = tokio::spawn(async move {
            let answer = AssertUnwindSafe(next.run(request))
                .catch_unwind()
                .await
                .unwrap_or_else(|_| broke_off());
            let (deed, outcome) = match notes.close() {
                Some(entry) => (deed(&by, entry.act, &entry.on), entry.outcome),
                None => (begun, judged(&answer)),
            };
            report(
                shared
                    .audit
                    .store
                    .end(record, &deed, as_text(&outcome))
                    .await
                    .map(drop),
            );
            answer
        });
        act.await.unwrap_or_else(|_| broke_off())
    }
}

fn deed(by: &Caller, act: &str, on: &str) -> Deed {
    Deed {
        who: by.name.clone(),
        place: by.place.clone(),
        via: VIA.to_owned(),
        act: act.to_owned(),
        subject: on.to_owned(),
    }
}

fn as_text(outcome: &Result<String, String>) -> Result<&str, &str> {
    outcome.as_deref().map_err(String::as_str)
}

/// Of an act whose handler said nothing: it was refused before, most likely.
fn judged(answer: &Response) -> Result<String, String> {
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

fn broke_off() -> Response {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "failed",
        "it broke off: what was done is done",
    )
    .into_response()
}

/// The act itself went as it went: a record without an end says so.
fn report(written: Result<(), gen_durable::Error>) {
    if let Err(error) = written {
        tracing::warn!(target: "gen_durable_dash::audit", %error, "an act could not be recorded to its end");
    }
}

/// The address that a request came from, if whoever serves it says so. What a header says of it is hearsay.
pub(crate) fn place(request: &Request) -> Option<String> {
    let from = request.extensions().get::<ConnectInfo<SocketAddr>>();
    from.map(|ConnectInfo(address)| address.ip().to_canonical().to_string())
}
