//! The result of a step, as the committer writes it.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::{event::NewEvent, history::HistoryRecord, signal::SignalRow};
use crate::{id::Status, limit::TakenLimits, new_instance::New};

/// Identifies one claim of one step. Every write of the claiming worker compares these three
/// numbers with the instance's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Claim {
    pub(crate) id: i64,
    pub(crate) epoch: i64,
    pub(crate) seq: i64,
}

/// The `attempt_change` of a step result with which the instance enters a step.
pub(crate) const ENTERS: i32 = -1;

/// The result of a step: the values that the instance's row gets, and the effects that commit
/// together with them. Serialized as `gen_durable._write_step_results_with_effects` expects it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StepResult {
    #[serde(flatten)]
    pub(crate) claim: Claim,
    pub(crate) status: Status,
    /// The new machine version of the instance. The commit writes it together with an upgraded
    /// state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u16>,
    /// The step of the instance to write. `None`: the step has not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "json_text")]
    pub(crate) data: Option<String>,
    /// The state of the instance to write. `None`: the state has not changed.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "json_text")]
    pub(crate) state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "json_text")]
    pub(crate) result: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// By how much the number of attempts of the step rises. [`ENTERS`]: the instance enters a
    /// step, and the attempts begin at zero.
    pub(crate) attempt_change: i32,
    #[serde(rename = "delay")]
    pub(crate) delay_seconds: f64,
    /// True if the instance is in a lane or has a partition key: when the instance settles or
    /// waits, the commit promotes its successor in the lane or partition.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) keyed: bool,
    /// True if this worker may run the successor of the instance at once, because the commit of
    /// this step result promotes the successor too.
    #[serde(skip)]
    pub(crate) takes: bool,
    /// The limits that the claim of this step result counts in.
    #[serde(skip)]
    pub(crate) limit_group: Option<Arc<str>>,
    /// The effects that commit together with the step result.
    #[serde(flatten)]
    pub(crate) effects: Option<Box<Effects>>,
    /// The history entry that commits together with the step result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history: Option<Box<HistoryRecord>>,
}

impl StepResult {
    /// Creates a step result that changes only the status of the instance.
    pub(crate) fn new(claim: Claim, status: Status) -> StepResult {
        StepResult {
            claim,
            status,
            version: None,
            step: None,
            data: None,
            state: None,
            result: None,
            error: None,
            attempt_change: 0,
            delay_seconds: 0.0,
            keyed: false,
            takes: false,
            limit_group: None,
            effects: None,
            history: None,
        }
    }

    /// Returns whether no other step may take the place of this step while it runs: the instance
    /// has a lane, a partition key or limits. A cancelled instance keeps them until its step has
    /// ended.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.keyed || self.limit_group.is_some()
    }

    /// Sets the effects. A child that settles always notifies its parent, whether it is done,
    /// failed or cancelled.
    pub(crate) fn set_effects(&mut self, mut effects: Effects, parent: Option<i64>) {
        effects.parent = parent.filter(|_| self.status.is_settled());
        self.effects = (!effects.is_nothing()).then(|| Box::new(effects));
    }

    /// Returns the approximate number of bytes that the step result adds to a statement.
    pub(crate) fn bytes(&self) -> usize {
        let own: usize = [&self.data, &self.state, &self.result, &self.error]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum();
        own + self.effects.as_deref().map_or(0, Effects::bytes)
    }
}

/// Serializes a text that is JSON as that JSON.
fn json_text<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let json = text.as_deref().map(serde_json::from_str::<&RawValue>);
    json.transpose()
        .map_err(serde::ser::Error::custom)?
        .serialize(serializer)
}

/// The effects of a step result: wait, spawn, consume signals, write the outbox. Serialized as
/// `gen_durable._write_step_results_with_effects` expects them.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Effects {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) awaits: Option<Vec<&'static str>>,
    /// Ids of signals that the step has already received. These signals do not end the new wait of
    /// the instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) seen: Vec<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) consumed: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<DeadlineEffect>,
    /// The time at which the sleep of the instance ends, if the step sleeps until a given time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    /// The repeating timers of the wait that the step begins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) repeats: Vec<Repeat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spawn: Option<SpawnEffect>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) new_instances: Vec<New>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) signals: Vec<SignalRow>,
    /// Events that the step records. The commit appends them to the log after all other effects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<NewEvent>,
    /// The parent of the instance, if the instance settles. The commit then updates the parent's
    /// row too.
    #[serde(rename = "child", skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<i64>,
    /// The limits of the step that the instance enters, if that step or the ended step takes any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limits: Option<TakenLimits>,
}

impl Effects {
    fn bytes(&self) -> usize {
        let inserted = self
            .spawn
            .iter()
            .flat_map(|spawn| &spawn.children)
            .chain(&self.new_instances);
        let inserted: usize = inserted.map(|new| new.state.get().len()).sum();
        let repeated: usize = self
            .repeats
            .iter()
            .map(|repeat| repeat.new_instance.state.get().len())
            .sum();
        let recorded: usize = self
            .events
            .iter()
            .map(|event| event.payload.get().len())
            .sum();
        let sent: usize = self
            .signals
            .iter()
            .map(|signal| signal.payload.get().len())
            .sum();
        inserted + repeated + recorded + sent
    }

    /// Returns whether the step result has no effects.
    pub(crate) fn is_nothing(&self) -> bool {
        self.awaits.is_none()
            && self.at.is_none()
            && self.spawn.is_none()
            && self.consumed.is_empty()
            && self.new_instances.is_empty()
            && self.signals.is_empty()
            && self.events.is_empty()
            && self.parent.is_none()
            && self.limits.is_none()
    }
}

/// When a wait of an instance ends without a signal, and the step that the instance then enters.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DeadlineEffect {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    pub(crate) step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<RawValue>>,
}

/// A repeating timer of a wait, and the instance that the timer enqueues. Serialized as
/// `gen_durable._insert_repeating_timers` expects it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Repeat {
    pub(crate) due: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining: Option<u32>,
    pub(crate) anchor: Timestamp,
    pub(crate) cycle: String,
    pub(crate) missed: &'static str,
    pub(crate) new_instance: New,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct SpawnEffect {
    pub(crate) any: bool,
    pub(crate) taken: &'static str,
    pub(crate) children: Vec<New>,
}
