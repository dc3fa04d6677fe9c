//! Signals before they are sent.

use serde::Serialize;
use serde_json::value::RawValue;

/// A signal in the JSON form that `gen_durable.signal_all` reads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SignalRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    pub(crate) tenant: String,
    pub(crate) machines: Vec<&'static str>,
    pub(crate) name: &'static str,
    pub(crate) payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dedup: Option<String>,
}
