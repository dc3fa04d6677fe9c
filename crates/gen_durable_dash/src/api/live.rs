//! What goes on: the overview, live, as charts, and for Prometheus.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response, sse},
};
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::json as shown;
use crate::{
    metrics,
    problem::{Answer, At, Problem, Query},
    pulse::Snapshot,
    series::{KEPT_SECONDS, Shown},
    shared::Shared,
};

/// So many may follow at once.
const FOLLOWERS_MAX: usize = 1_000;
static FOLLOWERS: AtomicUsize = AtomicUsize::new(0);

/// Somebody follows, until this is dropped.
struct Following;

impl Following {
    fn begin() -> Option<Following> {
        let begun = FOLLOWERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            (n < FOLLOWERS_MAX).then_some(n + 1)
        });
        begun.ok().map(|_| Following)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        FOLLOWERS.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) async fn overview(State(shared): State<Shared>) -> Response {
    let snapshot = shared.pulse.now().await;
    (
        [(header::CONTENT_TYPE, "application/json")],
        snapshot.text.to_string(),
    )
        .into_response()
}

/// Every look as an event. A slow reader misses looks; it never holds up others.
pub(crate) async fn live(State(shared): State<Shared>) -> Answer<Response> {
    let Some(following) = Following::begin() else {
        let why = "too many follow already: ask for /api/v1/overview now and then";
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many",
            why,
        ));
    };
    let events = looks(shared.pulse.follow(), following);
    Ok(sse::Sse::new(events)
        .keep_alive(sse::KeepAlive::new().interval(Duration::from_secs(10)))
        .into_response())
}

fn looks(
    receiver: watch::Receiver<Arc<Snapshot>>,
    following: Following,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let first = !receiver.borrow().text.is_empty();
    stream::unfold(
        (receiver, following, first),
        |(mut receiver, following, first)| async move {
            if !first {
                receiver.changed().await.ok()?;
            }
            let text = receiver.borrow_and_update().text.clone();
            Some((
                Ok(sse::Event::default().data(&*text)),
                (receiver, following, false),
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
) -> Answer<Json<Shown>> {
    let seconds = window.seconds.unwrap_or(300);
    let step = window.step.unwrap_or(1);
    if !(1..=KEPT_SECONDS).contains(&seconds) || !(1..=seconds).contains(&step) {
        let why = format!("seconds is 1 to {KEPT_SECONDS}, and step 1 to as many");
        return Err(Problem::invalid(why));
    }
    let snapshot = shared.pulse.now().await;
    let Some(now) = snapshot.now else {
        return Err(away(&snapshot));
    };
    Ok(Json(shared.pulse.chart(now.as_second(), seconds, step)))
}

fn away(snapshot: &Snapshot) -> Problem {
    let why = snapshot
        .trouble
        .clone()
        .unwrap_or_else(|| "the database has not answered yet".to_owned());
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "database_away", why)
}

pub(crate) async fn machines(State(shared): State<Shared>) -> Json<Value> {
    let snapshot = shared.pulse.now().await;
    Json(json!({"machines": shown::machines(&snapshot)}))
}

pub(crate) async fn machine(
    State(shared): State<Shared>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let snapshot = shared.pulse.now().await;
    let wanted = |machine: &Value| machine.get("name").and_then(Value::as_str) == Some(&name);
    let found = shown::machines(&snapshot).into_iter().find(wanted);
    found
        .map(Json)
        .ok_or_else(|| Problem::not_found(format!("nothing is known of a machine {name:?}")))
}

pub(crate) async fn failures(State(shared): State<Shared>) -> Json<Value> {
    let snapshot = shared.pulse.now().await;
    Json(json!({"failures": shown::failures(&snapshot.troubles, &shared.options.redaction)}))
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
