//! What was done through here, and by whom: an event for every act, and the last of them to look at.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use gen_durable::Timestamp;
use serde::Serialize;

use crate::access::Caller;

/// So many are kept to look at.
const KEPT: usize = 500;

/// An act.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    pub(crate) at: String,
    pub(crate) by: String,
    pub(crate) act: &'static str,
    /// On what.
    pub(crate) on: String,
    /// How it went.
    pub(crate) outcome: String,
}

/// The acts of this process.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// The newest last. Guarded for a moment, never over an await.
    entries: Mutex<VecDeque<Entry>>,
}

impl Audit {
    /// Somebody did something, or tried to.
    pub(crate) fn note(&self, by: &Caller, act: &'static str, on: String, outcome: Result<String, String>) {
        let (went_well, outcome) = match outcome {
            Ok(outcome) => (true, outcome),
            Err(outcome) => (false, outcome),
        };
        tracing::info!(target: "gen_durable_dash::audit", by = %by.name, act, on = %on, went_well, outcome = %outcome, "{act}");
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= KEPT {
            entries.pop_front();
        }
        entries.push_back(Entry { at: Timestamp::now().to_string(), by: by.name.clone(), act, on, outcome });
    }

    /// The newest first.
    pub(crate) fn newest(&self) -> Vec<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}
