//! Events of the log: as rows, and before they are recorded.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::json::{id_text, json_text};

/// An event as a row, for tools and for readers without its Rust type. Payload and headers are JSON
/// texts, and serialize as that JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields have the names of the columns.
pub struct EventRow {
    /// The log position; `None` if no worker has assigned a position yet.
    pub position: Option<i64>,
    pub arrival_no: i64,
    pub tenant: String,
    pub name: String,
    pub version: i32,
    #[serde(serialize_with = "json_text::required")]
    pub payload: String,
    #[serde(serialize_with = "json_text::optional")]
    pub headers: Option<String>,
    pub at: Timestamp,
    #[serde(serialize_with = "id_text::optional")]
    pub instance_id: Option<i64>,
    pub step: Option<String>,
}

/// An event to record, in the JSON form that `gen_durable._record_result_events` reads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct NewEvent {
    pub(crate) tenant: String,
    pub(crate) name: &'static str,
    pub(crate) version: i32,
    pub(crate) payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<String>,
}
