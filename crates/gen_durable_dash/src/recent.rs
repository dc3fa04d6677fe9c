//! Answers that many ask for at once: read once a second at most, however many look.

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

/// An answer is given again for so long.
const FRESH: Duration = Duration::from_secs(1);
/// So many different ones are kept.
const KEPT: usize = 64;

/// Where one answer is kept, with when it was read. Held while it is read, so that others wait for it and do not read as well.
type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Written)>>>;

/// An answer, written out once for all who asked.
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
    /// By what was asked for. Guarded for a moment, never over an await.
    slots: Mutex<HashMap<String, Slot>>,
}

impl Recent {
    /// The answer to this question: a fresh one, or what `read` answers now.
    pub(crate) async fn get(
        &self,
        asked: String,
        read: impl Future<Output = Answer<Value>>,
    ) -> Answer<Written> {
        let slot = self.slot(asked);
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

    /// Something was done: whoever asks from now on sees what came of it.
    pub(crate) fn forget(&self) {
        self.slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn slot(&self, asked: String) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= KEPT && !slots.contains_key(&asked) {
            // What is being read right now is kept by who reads it; the rest can be read again.
            slots.clear();
        }
        slots.entry(asked).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn many_who_ask_at_once_cost_one_read_until_something_is_done() {
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
