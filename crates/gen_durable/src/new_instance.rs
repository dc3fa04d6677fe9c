//! A new instance before it is inserted: a caller enqueues it, a step spawns it as a child, or a
//! step's transition adds it to the outbox.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    calendar::to_micros,
    codec,
    error::{StepError, fatal},
    id::{NAME_BYTES_MAX, Queue},
    lane::Lane,
    machine::{Machine, variant_names},
    signal::KeyScope,
};

/// The longest key of an instance or a lane, partition key or dedup key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 512;

/// A new instance with its options: `NewInstance::new(SendReceipt { order
/// }).priority(1).after(HOUR)`.
#[must_use = "a new instance does nothing until it is spawned or enqueued"]
pub struct NewInstance {
    /// The row to insert. The constructor encodes it, so that an instance that cannot be stored
    /// fails the caller or step that created it.
    pub(crate) new: Result<New, StepError>,
}

/// The row to insert, in the JSON form that `gen_durable.enqueue_all` reads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct New {
    pub(crate) machine: &'static str,
    #[serde(rename = "version")]
    pub(crate) machine_version: i32,
    pub(crate) step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<RawValue>>,
    pub(crate) state: Box<RawValue>,
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    #[serde(rename = "delay")]
    pub(crate) delay_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Former names of the machine. If the current holder of the key has one of these names, it
    /// counts as an instance of the same machine.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) former_names: &'static [&'static str],
    pub(crate) scope: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lane: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) lane_blocks: bool,
}

impl New {
    /// Returns whether the instance has a key, a partition key or a lane, so that a plain `INSERT`
    /// is not enough.
    pub(crate) fn is_keyed(&self) -> bool {
        self.key.is_some() || self.partition.is_some() || self.lane.is_some()
    }

    /// Checks the size of the payloads. The limit is known only to the pool that writes the row.
    pub(crate) fn check(&self, bytes_max: usize) -> Result<(), StepError> {
        if let Some(data) = &self.data {
            codec::check_json("the step's data", data.get(), bytes_max)?;
        }
        codec::check_json("its state", self.state.get(), bytes_max)
    }
}

pub(crate) fn encode<M: Machine>(machine: M, step: Option<M::Step>) -> Result<New, StepError> {
    let named = |what: &str, text: &str, bytes_min, bytes_max| {
        codec::check_name(what, text, bytes_min, bytes_max).map_err(fatal)
    };
    named("a machine's name", M::NAME, 1, NAME_BYTES_MAX)?;
    let (step, data) = codec::encode_step(&step.unwrap_or_default())?;
    named("a step's name", &step, 1, NAME_BYTES_MAX)?;
    // serde writes an internally tagged enum as a map, like a variant with data. Without this check
    // the row would store the name of the tag as the name of the step.
    if !variant_names::<M::Step>().contains(&step.as_str()) {
        return Err(fatal(format!(
            "the steps of {} must be an enum with serde's derived form",
            M::NAME
        )));
    }
    let key = machine.key();
    if let Some(key) = &key {
        named("a key", key, 1, KEY_BYTES_MAX)?;
    }
    let (partition, lane) = (machine.partition(), machine.lane());
    if let Some(partition) = &partition {
        named("a partition key", partition, 1, KEY_BYTES_MAX)?;
    }
    if let Some(lane) = &lane {
        named("a lane's key", lane.key(), 1, KEY_BYTES_MAX)?;
    }
    if let Some(data) = &data {
        codec::check_nulls("the step's data", data, || {
            codec::decode_step::<M::Step>(&step, Some(data)).map(drop)
        })?;
    }
    // This function checks no size limit: only the pool that writes the row knows the limit.
    let state =
        RawValue::from_string(codec::encode("its state", &machine, usize::MAX)?).map_err(fatal)?;
    Ok(New {
        machine: M::NAME,
        machine_version: M::VERSION.into(),
        step,
        data: data.map(RawValue::from_string).transpose().map_err(fatal)?,
        state,
        queue: M::QUEUE.name().to_owned(),
        priority: 0,
        tenant: String::new(),
        at: None,
        delay_seconds: 0.0,
        traceparent: None,
        key,
        former_names: M::FORMER_NAMES,
        scope: M::KEY_SCOPE.name(),
        partition,
        lane_blocks: lane.as_ref().is_some_and(Lane::blocks),
        lane: lane.map(|lane| lane.key().to_owned()),
    })
}

impl NewInstance {
    /// Creates an instance that begins at the default step of its machine.
    pub fn new<M: Machine>(machine: M) -> NewInstance {
        NewInstance {
            new: encode::<M>(machine, None),
        }
    }
    /// Creates an instance that begins at `step`.
    pub fn starting_at<M: Machine>(machine: M, step: M::Step) -> NewInstance {
        NewInstance {
            new: encode::<M>(machine, Some(step)),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut New)) -> Self {
        if let Ok(new) = &mut self.new {
            change(new);
        }
        self
    }

    /// Sets the queue of the instance, instead of the queue of its machine.
    pub fn queue(self, queue: Queue) -> Self {
        self.with(|new| new.queue = queue.name().to_owned())
    }
    /// Sets the priority of the instance: lower values run first; the default is 0.
    pub fn priority(self, priority: i16) -> Self {
        self.with(|new| new.priority = priority)
    }
    /// Delays the first step of the instance by this duration.
    pub fn after(self, delay: Duration) -> Self {
        self.with(|new| new.delay_seconds = codec::delay_seconds(delay))
    }
    /// Delays the first step until this time. A time in the past means at once.
    pub fn at(self, at: Timestamp) -> Self {
        self.with(|new| new.at = Some(to_micros(at)))
    }
    /// Sets the key of the instance, instead of the key that [`Machine::key`](crate::Machine::key)
    /// returns.
    pub fn key(self, key: impl fmt::Display, scope: KeyScope) -> Self {
        let key = key.to_string();
        match codec::check_name("a key", &key, 1, KEY_BYTES_MAX) {
            Ok(()) => self.with(|new| (new.key, new.scope) = (Some(key), scope.name())),
            Err(error) => NewInstance {
                new: self.new.and(Err(fatal(error))),
            },
        }
    }
}

impl fmt::Debug for NewInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewInstance")
            .field("machine", &self.new.as_ref().map(|new| new.machine).ok())
            .finish_non_exhaustive()
    }
}

/// A value that converts into a new instance: a machine, or a machine with options.
pub trait IntoNewInstance {
    /// Converts `self` into a new instance.
    fn into_new_instance(self) -> NewInstance;
}
impl<M: Machine> IntoNewInstance for M {
    fn into_new_instance(self) -> NewInstance {
        NewInstance::new(self)
    }
}
impl IntoNewInstance for NewInstance {
    fn into_new_instance(self) -> NewInstance {
        self
    }
}
