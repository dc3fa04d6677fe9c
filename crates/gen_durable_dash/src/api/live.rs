//! The HTTP handlers of the current numbers of the engine: the overview, its event stream, charts,
//! and Prometheus metrics.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response, sse},
};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::json as shown;
use crate::{
    access::Caller,
    metrics,
    problem::{Answer, At, Problem, Query},
    pulse::Snapshot,
    series::{Chart, KEPT_SECONDS},
    shared::Shared,
    streams::OpenStream,
};

pub(crate) async fn overview(State(shared): State<Shared>) -> Response {
    let snapshot = shared.pulse.now().await;
    (
        [(header::CONTENT_TYPE, "application/json")],
        snapshot.text.to_string(),
    )
        .into_response()
}

/// Sends every new snapshot of the overview to a browser as a server-sent event. A slow browser
/// misses snapshots and does not delay other browsers.
///
/// The stream of a browser session ends with the session.
pub(crate) async fn live(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Answer<Response> {
    let Some(open) = shared.streams.open(&caller) else {
        let why = "too many event streams are open: poll /api/v1/overview instead";
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many",
            why,
        ));
    };
    let end = {
        let (shared, session) = (shared.clone(), caller.session);
        async move {
            match session {
                Some(session) => shared.doors.session_ended(session).await,
                None => std::future::pending().await,
            }
        }
    };
    let events = events(shared.pulse.follow(), open).take_until(Box::pin(end));
    Ok(sse::Sse::new(events)
        .keep_alive(sse::KeepAlive::new().interval(Duration::from_secs(10)))
        .into_response())
}

fn events(
    receiver: watch::Receiver<Arc<Snapshot>>,
    open: OpenStream,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let first = !receiver.borrow().text.is_empty();
    stream::unfold(
        (receiver, open, first),
        |(mut receiver, open, first)| async move {
            if !first {
                receiver.changed().await.ok()?;
            }
            let text = receiver.borrow_and_update().text.clone();
            Some((
                Ok(sse::Event::default().data(&*text)),
                (receiver, open, false),
            ))
        },
    )
}

#[derive(Debug, Deserialize)]
pub(crate) struct Window {
    seconds: Option<i64>,
    step: Option<i64>,
}

pub(crate) async fn series(
    State(shared): State<Shared>,
    Query(window): Query<Window>,
) -> Answer<Json<Chart>> {
    let seconds = window.seconds.unwrap_or(300);
    let step = window.step.unwrap_or(1);
    if !(1..=KEPT_SECONDS).contains(&seconds) || !(1..=seconds).contains(&step) {
        let why = format!("seconds must be 1 to {KEPT_SECONDS}, and step 1 to seconds");
        return Err(Problem::invalid(why));
    }
    let snapshot = shared.pulse.now().await;
    let Some(now) = snapshot.now else {
        return Err(database_away(&snapshot));
    };
    Ok(Json(shared.pulse.chart(now.as_second(), seconds, step)))
}

fn database_away(snapshot: &Snapshot) -> Problem {
    let why = snapshot
        .trouble
        .clone()
        .unwrap_or_else(|| "the database has not answered yet".to_owned());
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "database_away", why)
}

/// Returns the newest snapshot, or an error if the dashboard has read none yet.
async fn snapshot(shared: &Shared) -> Answer<Arc<Snapshot>> {
    let snapshot = shared.pulse.now().await;
    match snapshot.now {
        Some(_) => Ok(snapshot),
        None => Err(database_away(&snapshot)),
    }
}

pub(crate) async fn machines(State(shared): State<Shared>) -> Answer<Json<Value>> {
    let snapshot = snapshot(&shared).await?;
    let (_, capped) = shown::totals(&snapshot);
    Ok(Json(
        json!({"machines": shown::machines(&snapshot), "capped": capped, "at": shown::time(snapshot.now), "trouble": snapshot.trouble}),
    ))
}

pub(crate) async fn machine(
    State(shared): State<Shared>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let snapshot = snapshot(&shared).await?;
    let wanted = |machine: &Value| machine.get("name").and_then(Value::as_str) == Some(&name);
    let found = shown::machines(&snapshot).into_iter().find(wanted);
    found
        .map(Json)
        .ok_or_else(|| Problem::not_found(format!("machine {name:?} is unknown")))
}

pub(crate) async fn failures(State(shared): State<Shared>) -> Answer<Json<Value>> {
    let snapshot = snapshot(&shared).await?;
    let failures = shown::failures(&snapshot.troubles, &shared.options.redaction);
    let capped = shown::are_failures_capped(&snapshot.troubles);
    Ok(Json(
        json!({"failures": failures, "failures_capped": capped, "at": shown::time(snapshot.now), "trouble": snapshot.trouble}),
    ))
}

pub(crate) async fn prometheus(State(shared): State<Shared>) -> Response {
    let snapshot = shared.pulse.now().await;
    let text = metrics::text(&snapshot, shared.pulse.statements());
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response()
}
