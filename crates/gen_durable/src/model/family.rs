//! The signals and the children of an instance.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::json::{id_text, json_text};
use crate::id::Status;

/// A signal in an instance's inbox that no step has consumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct InboxSignal {
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
    pub name: String,
    /// The payload of the signal, as JSON.
    #[serde(serialize_with = "json_text::required")]
    pub payload: String,
    pub dedup_key: Option<String>,
    pub inserted_at: Timestamp,
}

/// A child that an instance spawned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct ChildInfo {
    #[serde(serialize_with = "id_text::required")]
    pub id: i64,
    pub machine: String,
    pub step: String,
    pub status: Status,
    /// The number of the parent's spawn that counts this child. `None`: the child had settled and
    /// was counted at the parent's join, and an operator has retried the child since.
    pub generation: Option<i32>,
    pub last_error: Option<String>,
    pub inserted_at: Timestamp,
    pub settled_at: Option<Timestamp>,
    /// Whether the child has spawned children of its own.
    pub is_parent: bool,
}

/// The children of an instance: their numbers by status, and a list of the newest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Children {
    /// The numbers of the instance's children by status, counted up to 10,001 in all.
    pub counts: BTreeMap<Status, i64>,
    /// The newest 200 children of the instance. Children of the instance's last spawn are listed
    /// first.
    pub children: Vec<ChildInfo>,
}
