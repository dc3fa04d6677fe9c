//! Limits the number of open event streams: in all, and of each caller. An event stream has no end,
//! so a caller without a limit could occupy every connection of the server.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::access::Caller;

/// Maximum number of event streams of one dashboard. It is lower than the number of connections
/// that `durable serve` accepts, so that streams never occupy all of them.
const STREAMS_MAX: usize = 384;
/// Maximum number of event streams of one browser session, or of one token and address.
const STREAMS_PER_CALLER_MAX: usize = 128;

/// The open event streams of a dashboard, by caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    /// A stream locks this mutex briefly, never across an await.
    open: Arc<Mutex<HashMap<String, usize>>>,
}

/// One open event stream. The drop of this value closes it.
#[derive(Debug)]
pub(crate) struct OpenStream {
    streams: Streams,
    caller: String,
}

impl Streams {
    /// Opens an event stream, unless there are too many.
    pub(crate) fn open(&self, caller: &Caller) -> Option<OpenStream> {
        let key = match &caller.session {
            Some(session) => format!("{session:?}"),
            None => format!(
                "{} {}",
                caller.name,
                caller.place.as_deref().unwrap_or_default()
            ),
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(&key).copied().unwrap_or_default();
        if all >= STREAMS_MAX || own >= STREAMS_PER_CALLER_MAX {
            return None;
        }
        open.insert(key.clone(), own + 1);
        Some(OpenStream {
            streams: self.clone(),
            caller: key,
        })
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut open = self
            .streams
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&self.caller) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.caller)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_streams_are_limited_for_each_caller_and_in_all() {
        let streams = Streams::default();
        let from = |address: &str| Caller::reader("reader token").with_address(address);
        let open = |address: &str, count: usize| -> Vec<OpenStream> {
            (0..count)
                .filter_map(|_| streams.open(&from(address)))
                .collect()
        };
        let first = open("10.0.0.1", 1_000);
        assert_eq!(first.len(), STREAMS_PER_CALLER_MAX);
        let second = open("10.0.0.2", 1_000);
        assert_eq!(second.len(), STREAMS_PER_CALLER_MAX);
        let third = open("10.0.0.3", 1_000);
        assert_eq!(first.len() + second.len() + third.len(), STREAMS_MAX);
        assert!(streams.open(&from("10.0.0.4")).is_none());
        drop(first);
        assert!(streams.open(&from("10.0.0.4")).is_some());
        drop((second, third));
        assert!(
            streams
                .open
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_empty()
        );
    }
}
