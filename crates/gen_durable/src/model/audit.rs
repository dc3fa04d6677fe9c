//! Entries and records of the audit log.

use jiff::Timestamp;
use serde::Serialize;

use super::json::id_text;

/// An act of a person, for the audit log. The client truncates texts that are too long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditEntry {
    /// The authenticated user that performs the action.
    pub actor: String,
    /// The network address from which the request for the action came, if known.
    pub source: Option<String>,
    /// The channel of the request: `dashboard`, `command`, or the name of your own tool.
    pub channel: String,
    /// The name of the action, for example `cancel`.
    pub action: String,
    /// The object of the action, for example `instance 42`.
    pub subject: String,
}

/// A record of the audit log: one action of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditRecord {
    /// The id of the audit record. A later record has a larger id.
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
    /// When the operator's action began.
    pub at: Timestamp,
    /// The authenticated user that performed the operator's action.
    pub actor: String,
    /// The network address from which the operator acted, if the tool knows it.
    pub source: Option<String>,
    /// The tool with which the operator performed the action: `dashboard`, `command`, or the name
    /// of another tool.
    pub channel: String,
    /// The name of the operator's action.
    pub action: String,
    /// The object of the operator's action, for example an instance or a queue.
    pub subject: String,
    /// Whether the operator's action succeeded. `None`: the tool never recorded the outcome, so it
    /// is unknown whether the action happened.
    pub succeeded: Option<bool>,
    /// The outcome of the operator's action, in words.
    pub outcome: Option<String>,
    /// When the operator's action ended.
    pub ended_at: Option<Timestamp>,
}
