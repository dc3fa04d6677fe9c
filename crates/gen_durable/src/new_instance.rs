//! A new instance before it is inserted: a caller enqueues it, a step spawns it as a child, or a
//! step's transition adds it to the outbox.

use std::{fmt, marker::PhantomData};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    calendar::{Due, Moment, Period},
    codec,
    error::{StepError, fatal},
    id::NAME_BYTES_MAX,
    lane::Lane,
    limit::Limits,
    machine::{Machine, variant_names},
    signal::KeyScope,
};

/// The longest key of an instance or a lane, partition key or dedup key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 512;

/// Implements the options of a new instance for a type with a method `change`, which passes the row
/// to insert to a closure. So a request of the client has the same options as [`NewInstance`].
macro_rules! instance_options {
    ($machine:ty) => {
        /// Sets the step at which the instance begins, instead of the default step.
        pub fn starting_at(self, step: <$machine as $crate::Machine>::Step) -> Self
        where
            $machine: $crate::Machine,
        {
            self.change(|new| $crate::new_instance::set_step::<$machine>(new, &step))
        }
        /// Sets the queue of the instance, instead of the queue of its machine.
        pub fn queue(self, queue: $crate::Queue) -> Self {
            self.change(|new| {
                new.queue = queue.name().to_owned();
                Ok(())
            })
        }
        /// Sets the priority of the instance: lower values run first; the default is 0.
        pub fn priority(self, priority: i16) -> Self {
            self.change(|new| {
                new.priority = priority;
                Ok(())
            })
        }
        /// Delays the first step of the instance by a duration, by a
        /// [`Period`](crate::schedule::Period) on a calendar, or until a date. A date in the past
        /// means at once. A period costs a client one more round trip, for the time of the
        /// database; in a step it counts from the time at which the step began.
        pub fn after(self, due: impl Into<$crate::schedule::Due>) -> Self {
            let due = due.into();
            self.change(|new| new.set_after(due))
        }
        /// Delays the first step until this time. A time in the past means at once.
        pub fn at(self, at: jiff::Timestamp) -> Self {
            self.after(at)
        }
        /// Sets the key of the instance, instead of the key that
        /// [`Machine::key`](crate::Machine::key) returns.
        pub fn key(self, key: impl std::fmt::Display, scope: $crate::KeyScope) -> Self {
            self.change(|new| new.set_key(key.to_string(), scope))
        }
        /// Sets the lane of the instance, instead of the lane that
        /// [`Machine::lane`](crate::Machine::lane) returns.
        pub fn lane(self, lane: $crate::Lane) -> Self {
            self.change(|new| new.set_lane(&lane))
        }
        /// Sets the partition key of the instance, instead of the key that
        /// [`Machine::partition`](crate::Machine::partition) returns.
        pub fn partition(self, key: impl std::fmt::Display) -> Self {
            self.change(|new| new.set_partition(key.to_string()))
        }
        /// Sets the tenant of the instance. By default an instance that a step creates has the
        /// tenant of the instance that creates it, and every other instance has none.
        pub fn tenant(self, tenant: impl std::fmt::Display) -> Self {
            self.change(|new| new.set_tenant(tenant.to_string()))
        }
        /// Sets the W3C trace context that every step of the instance can read.
        pub fn traceparent(self, traceparent: impl Into<String>) -> Self {
            self.change(|new| {
                new.traceparent = Some(traceparent.into());
                Ok(())
            })
        }
    };
}
pub(crate) use instance_options;

/// A new instance with its options:
/// `NewInstance::new(SendReceipt { order }).priority(1).after(HOUR)`.
///
/// [`Client::enqueue`](crate::Client::enqueue),
/// [`Client::enqueue_all`](crate::Client::enqueue_all),
/// [`Client::signal_or_start`](crate::Client::signal_or_start), [`spawn`](crate::spawn),
/// [`and_enqueue`](crate::Transition::and_enqueue) and
/// [`schedule`](crate::engine::EngineBuilder::schedule) take a `NewInstance`, or a machine if no
/// option is needed. A list with instances of several machines holds `NewInstance<()>`; see
/// [`untyped`](NewInstance::untyped).
#[must_use = "a new instance does nothing until it is spawned or enqueued"]
pub struct NewInstance<M: ?Sized = ()> {
    /// The row to insert. The constructor encodes it, so that an instance that cannot be stored
    /// fails the caller or step that created it.
    pub(crate) new: Result<New, StepError>,
    /// The name of the machine.
    pub(crate) name: &'static str,
    machine: PhantomData<fn() -> M>,
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
    /// A period on a calendar until the first step. [`New::resolve`] replaces it by a date.
    #[serde(skip)]
    pub(crate) period: Option<Period>,
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
    /// The limits that the first step takes ([`crate::limit::TakenLimits`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_weight: Option<i64>,
}

impl New {
    /// Replaces the period by the date that it reaches from `now`, the time of the database.
    pub(crate) fn resolve(&mut self, now: Timestamp) -> Result<(), StepError> {
        if let Some(period) = self.period.take() {
            let due = Due::from(period).moment(now).map_err(fatal)?;
            self.set_due(due);
        }
        Ok(())
    }

    fn set_due(&mut self, due: Moment) {
        match due {
            Moment::After(delay) => self.delay_seconds = codec::delay_seconds(delay),
            Moment::At(at) => self.at = Some(at),
        }
    }

    /// Checks the size of the payloads. The limit is known only to the pool that writes the row.
    pub(crate) fn check(&self, bytes_max: usize) -> Result<(), StepError> {
        if let Some(data) = &self.data {
            codec::check_json("the step's data", data.get(), bytes_max)?;
        }
        codec::check_json("its state", self.state.get(), bytes_max)
    }
}

/// Checks a name or key before it is written.
fn named(what: &str, text: &str, bytes_min: usize, bytes_max: usize) -> Result<(), StepError> {
    codec::check_name(what, text, bytes_min, bytes_max).map_err(fatal)
}

/// Encodes the step at which an instance begins: its name and its data.
fn encode_first_step<M: Machine>(
    step: &M::Step,
) -> Result<(String, Option<Box<RawValue>>), StepError> {
    let (step, data) = codec::encode_step(step)?;
    named("a step's name", &step, 1, NAME_BYTES_MAX)?;
    // serde writes an internally tagged enum as a map, like a variant with data. Without this check
    // the row would store the name of the tag as the name of the step.
    if !variant_names::<M::Step>().contains(&step.as_str()) {
        return Err(fatal(format!(
            "the steps of {} must be an enum with serde's derived form",
            M::NAME
        )));
    }
    if let Some(data) = &data {
        codec::check_nulls("the step's data", data, || {
            codec::decode_step::<M::Step>(&step, Some(data)).map(drop)
        })?;
    }
    let data = data.map(RawValue::from_string).transpose().map_err(fatal)?;
    Ok((step, data))
}

fn encode<M: Machine>(machine: &M) -> Result<New, StepError> {
    named("a machine's name", M::NAME, 1, NAME_BYTES_MAX)?;
    let first = M::Step::default();
    let (step, data) = encode_first_step::<M>(&first)?;
    // This function checks no size limit: only the pool that writes the row knows the limit.
    let state =
        RawValue::from_string(codec::encode("its state", machine, usize::MAX)?).map_err(fatal)?;
    let mut new = New {
        machine: M::NAME,
        machine_version: M::VERSION.into(),
        step,
        data,
        state,
        queue: M::QUEUE.name().to_owned(),
        priority: 0,
        tenant: String::new(),
        at: None,
        period: None,
        delay_seconds: 0.0,
        traceparent: None,
        key: None,
        former_names: M::FORMER_NAMES,
        scope: M::KEY_SCOPE.name(),
        partition: None,
        lane_blocks: false,
        lane: None,
        limit_group: None,
        limit_weight: None,
    };
    new.set_limits(machine.limits(&first))?;
    if let Some(key) = machine.key() {
        new.set_key(key, M::KEY_SCOPE)?;
    }
    if let Some(partition) = machine.partition() {
        new.set_partition(partition)?;
    }
    if let Some(lane) = machine.lane() {
        new.set_lane(&lane)?;
    }
    Ok(new)
}

impl New {
    pub(crate) fn set_key(&mut self, key: String, scope: KeyScope) -> Result<(), StepError> {
        named("a key", &key, 1, KEY_BYTES_MAX)?;
        (self.key, self.scope) = (Some(key), scope.name());
        Ok(())
    }

    pub(crate) fn set_partition(&mut self, key: String) -> Result<(), StepError> {
        named("a partition key", &key, 1, KEY_BYTES_MAX)?;
        self.partition = Some(key);
        Ok(())
    }

    pub(crate) fn set_lane(&mut self, lane: &Lane) -> Result<(), StepError> {
        named("a lane's key", lane.key(), 1, KEY_BYTES_MAX)?;
        (self.lane, self.lane_blocks) = (Some(lane.key().to_owned()), lane.blocks());
        Ok(())
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) -> Result<(), StepError> {
        let taken = limits.encode()?;
        (self.limit_group, self.limit_weight) = (taken.group, taken.weight);
        Ok(())
    }

    pub(crate) fn set_tenant(&mut self, tenant: String) -> Result<(), StepError> {
        named("a tenant's name", &tenant, 0, NAME_BYTES_MAX)?;
        self.tenant = tenant;
        Ok(())
    }

    pub(crate) fn set_after(&mut self, due: Due) -> Result<(), StepError> {
        (self.at, self.period, self.delay_seconds) = (None, None, 0.0);
        match due.into_period() {
            Ok(period) => self.period = Some(period),
            Err(moment) => self.set_due(moment),
        }
        Ok(())
    }
}

/// Sets the step at which an instance begins.
pub(crate) fn set_step<M: Machine>(new: &mut New, step: &M::Step) -> Result<(), StepError> {
    (new.step, new.data) = encode_first_step::<M>(step)?;
    let machine: M = serde_json::from_str(new.state.get()).map_err(fatal)?;
    new.set_limits(machine.limits(step))
}

impl<M: Machine> NewInstance<M> {
    /// Creates an instance of a machine with the defaults of the machine: its default step, its
    /// queue, key, lane and partition key; due at once.
    pub fn new(machine: M) -> NewInstance<M> {
        NewInstance {
            new: encode(&machine),
            name: M::NAME,
            machine: PhantomData,
        }
    }
}

impl<M: ?Sized> NewInstance<M> {
    /// Changes the row to insert, unless an earlier option was invalid.
    pub(crate) fn change(
        mut self,
        change: impl FnOnce(&mut New) -> Result<(), StepError>,
    ) -> NewInstance<M> {
        if let Ok(new) = &mut self.new
            && let Err(error) = change(new)
        {
            self.new = Err(error);
        }
        self
    }

    /// Removes the type of the machine, so that a list can hold instances of several machines.
    pub fn untyped(self) -> NewInstance {
        NewInstance {
            new: self.new,
            name: self.name,
            machine: PhantomData,
        }
    }

    instance_options!(M);
}

impl<M: ?Sized> fmt::Debug for NewInstance<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewInstance")
            .field("machine", &self.name)
            .finish_non_exhaustive()
    }
}

/// A value that converts into a new instance: a machine, or a machine with options.
pub trait IntoNewInstance {
    /// The machine of the instance; `()` for an [untyped](NewInstance::untyped) instance.
    type Machine: ?Sized;

    /// Converts `self` into a new instance.
    fn into_new_instance(self) -> NewInstance<Self::Machine>;
}
impl<M: Machine> IntoNewInstance for M {
    type Machine = M;

    fn into_new_instance(self) -> NewInstance<M> {
        NewInstance::new(self)
    }
}
impl<M: ?Sized> IntoNewInstance for NewInstance<M> {
    type Machine = M;

    fn into_new_instance(self) -> NewInstance<M> {
        self
    }
}
