//! An instance that is to be: enqueued by a caller, spawned by a step, or riding along with its commit.

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
    signal::Scope,
};

/// The longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 512;

/// An instance that is to be, with its options: `birth(SendReceipt { order }).priority(1).after(HOUR)`.
#[must_use = "a birth does nothing until it is spawned or enqueued"]
pub struct Birth {
    /// Encoded at once: an instance that cannot be kept in a row is the error of whoever made it.
    pub(crate) new: Result<New, StepError>,
}

/// A row that is to be, in the words of `gen_durable.enqueue_all`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct New {
    pub(crate) fsm: &'static str,
    #[serde(rename = "version")]
    pub(crate) fsm_version: i32,
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
    /// Former names of the machine: a holder of the key that has one of them is of the same machine.
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
    /// Whether it has a key of any kind: then it is more than an insert.
    pub(crate) fn is_keyed(&self) -> bool {
        self.key.is_some() || self.partition.is_some() || self.lane.is_some()
    }

    /// What only whoever writes it knows: the limit of a payload.
    pub(crate) fn check(&self, bytes_max: usize) -> Result<(), StepError> {
        if let Some(data) = &self.data {
            codec::check_json("the step's data", data.get(), bytes_max)?;
        }
        codec::check_json("its state", self.state.get(), bytes_max)
    }
}

/// Give an instance options before it is spawned or rides along.
pub fn birth<M: Machine>(machine: M) -> Birth {
    Birth {
        new: encode::<M>(machine, None),
    }
}

/// The same, beginning at another step than the default one.
pub fn birth_at<M: Machine>(machine: M, step: M::Step) -> Birth {
    Birth {
        new: encode::<M>(machine, Some(step)),
    }
}

pub(crate) fn encode<M: Machine>(machine: M, step: Option<M::Step>) -> Result<New, StepError> {
    let named = |what: &str, text: &str, bytes_min, bytes_max| {
        codec::check_name(what, text, bytes_min, bytes_max).map_err(fatal)
    };
    named("a machine's name", M::NAME, 1, NAME_BYTES_MAX)?;
    let (step, data) = codec::encode_step(&step.unwrap_or_default())?;
    named("a step's name", &step, 1, NAME_BYTES_MAX)?;
    // An enum with a tag of its own is written as a map too, and its tag would be taken for the step.
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
    // The limit of a payload is known to whoever writes it.
    let state =
        RawValue::from_string(codec::encode("its state", &machine, usize::MAX)?).map_err(fatal)?;
    Ok(New {
        fsm: M::NAME,
        fsm_version: M::VERSION.into(),
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

impl Birth {
    fn with(mut self, change: impl FnOnce(&mut New)) -> Self {
        if let Ok(new) = &mut self.new {
            change(new);
        }
        self
    }

    /// Into this queue, not the machine's own.
    pub fn queue(self, queue: Queue) -> Self {
        self.with(|new| new.queue = queue.name().to_owned())
    }
    /// Lower goes first; 0 unless said.
    pub fn priority(self, priority: i16) -> Self {
        self.with(|new| new.priority = priority)
    }
    /// Not before this much time has passed.
    pub fn after(self, delay: Duration) -> Self {
        self.with(|new| new.delay_seconds = codec::delay_seconds(delay))
    }
    /// Not before then. A time in the past is now.
    pub fn at(self, at: Timestamp) -> Self {
        self.with(|new| new.at = Some(to_micros(at)))
    }
    /// Another key than the machine's own.
    pub fn key(self, key: impl fmt::Display, scope: Scope) -> Self {
        let key = key.to_string();
        match codec::check_name("a key", &key, 1, KEY_BYTES_MAX) {
            Ok(()) => self.with(|new| (new.key, new.scope) = (Some(key), scope.name())),
            Err(error) => Birth {
                new: self.new.and(Err(fatal(error))),
            },
        }
    }
}

impl fmt::Debug for Birth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Birth")
            .field("fsm", &self.new.as_ref().map(|new| new.fsm).ok())
            .finish_non_exhaustive()
    }
}

/// A machine as it is, or with options.
pub trait IntoBirth {
    /// What is to be born.
    fn into_birth(self) -> Birth;
}
impl<M: Machine> IntoBirth for M {
    fn into_birth(self) -> Birth {
        birth(self)
    }
}
impl IntoBirth for Birth {
    fn into_birth(self) -> Birth {
        self
    }
}
