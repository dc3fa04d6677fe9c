//! A cache of list responses. The dashboard reads each list from the database at most once a
//! second, regardless of the number of open dashboards.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::Value;

use crate::problem::Answer;

/// The time for which the dashboard responds with a cached list before it reads the list again.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum number of list responses in the cache of the dashboard.
const KEPT: usize = 64;

/// One cached list response and the time of its read. The request that reads the list holds this
/// mutex during the read, so that concurrent requests wait for the response and do not read the
/// same list.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Written)>>>;

/// The body of a list response, serialized once and shared by all requests for the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written(Arc<str>);

impl IntoResponse for Written {
    fn into_response(self) -> Response {
        (
            [(header::CONTENT_TYPE, "application/json")],
            self.0.to_string(),
        )
            .into_response()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The cached list responses by request. A request locks this mutex briefly, never across an
    /// await.
    slots: Mutex<HashMap<String, Slot>>,
}

impl Recent {
    /// Returns the cached response of this request if it is younger than `FRESH`. Otherwise awaits
    /// `read`, caches its response and returns it.
    pub(crate) async fn get(
        &self,
        request: String,
        read: impl Future<Output = Answer<Value>>,
    ) -> Answer<Written> {
        let slot = self.slot(request);
        let mut kept = slot.lock().await;
        if let Some((read_at, answer)) = kept.as_ref()
            && read_at.elapsed() < FRESH
        {
            return Ok(answer.clone());
        }
        let began = Instant::now();
        let answer = Written(read.await?.to_string().into());
        *kept = Some((began, answer.clone()));
        Ok(answer)
    }

    /// Clears the cache of list responses after an operator action, so that later lists show the
    /// change.
    pub(crate) fn forget(&self) {
        self.slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn slot(&self, request: String) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= KEPT && !slots.contains_key(&request) {
            // Clears the whole cache when it is full. A request that is reading a list keeps its
            // slot by an `Arc`, and later requests read the other lists from the database again.
            slots.clear();
        }
        slots.entry(request).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn requests_for_the_same_answer_share_one_read_until_the_cache_is_cleared() {
        let (recent, reads) = (Recent::default(), AtomicUsize::new(0));
        let ask = async |what: &str| {
            let read = async { Ok(json!(reads.fetch_add(1, Ordering::Relaxed))) };
            recent
                .get(what.to_owned(), read)
                .await
                .map(|answer| answer.0.to_string())
                .unwrap_or_default()
        };
        let answers = futures_util::future::join_all((0..50).map(|_| ask("lanes"))).await;
        assert!(answers.iter().all(|answer| answer == "0"), "{answers:?}");
        assert_eq!(ask("timers").await, "1");
        recent.forget();
        assert_eq!(ask("lanes").await, "2");
        for n in 0..1_000 {
            ask(&n.to_string()).await;
        }
        assert!(
            recent
                .slots
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .len()
                <= KEPT
        );
    }
}
