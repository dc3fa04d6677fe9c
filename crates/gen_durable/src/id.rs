//! Names and ids. Signatures of the API take no bare string or integer for them: the type of an id
//! contains the machine, and a queue is a constant.

use std::{fmt, hash, marker::PhantomData, num::ParseIntError, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::names::names;

/// The longest name of a queue, in bytes.
pub(crate) const QUEUE_NAME_BYTES_MAX: usize = 63;
/// The longest name of a machine, step or tenant, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 200;

/// A queue: a share of the instances, with its own limits, that a worker serves or does not serve.
/// Declare it as a constant, so that an invalid name does not compile.
///
/// ```
/// use gen_durable::Queue;
/// pub const MAIL: Queue = Queue::new("mail");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Queue(&'static str);

impl Queue {
    /// The queue of instances that name no other queue.
    pub const DEFAULT: Queue = Queue::new("default");

    /// Creates a queue with this name: 1 to 63 bytes, no NUL.
    ///
    /// # Panics
    /// The name is empty, too long, or contains NUL. In a constant this is a compile error.
    pub const fn new(name: &'static str) -> Queue {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty(), "the name of a queue must not be empty");
        assert!(
            bytes.len() <= QUEUE_NAME_BYTES_MAX,
            "the name of a queue must be at most 63 bytes"
        );
        let mut rest = bytes;
        while let [byte, tail @ ..] = rest {
            assert!(*byte != 0, "the name of a queue must not contain NUL");
            rest = tail;
        }
        Queue(name)
    }

    /// Returns the name of the queue, as rows of `instances` store it.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The id of an instance of `M`. The id of another machine is another type.
pub struct Id<M: ?Sized>(i64, PhantomData<fn() -> M>);

impl<M: ?Sized> Id<M> {
    /// Creates an id from a number that comes from outside (a URL, a command line). The call does
    /// not check that the instance is an `M`.
    pub const fn from_raw(id: i64) -> Id<M> {
        Id(id, PhantomData)
    }

    /// Returns the id as a number, as the row of the instance stores it.
    pub const fn raw(self) -> i64 {
        self.0
    }
}

impl<M: ?Sized> Clone for Id<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: ?Sized> Copy for Id<M> {}
impl<M: ?Sized> PartialEq for Id<M> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<M: ?Sized> Eq for Id<M> {}
impl<M: ?Sized> hash::Hash for Id<M> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<M: ?Sized> fmt::Debug for Id<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({})", self.0)
    }
}
impl<M: ?Sized> fmt::Display for Id<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
/// Parses the id of an instance, for example from a URL or a command line. It does not check that
/// the instance is an `M`.
impl<M: ?Sized> FromStr for Id<M> {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Id::from_raw)
    }
}
/// Serializes the id as a number, so that a machine can store the id of another instance in its
/// state.
impl<M: ?Sized> Serialize for Id<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}
impl<'de, M: ?Sized> Deserialize<'de> for Id<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Id::from_raw)
    }
}

/// The status of an instance. The variants of unsettled instances come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Status {
    /// The instance is ready to run, or will be ready at its due time.
    Runnable,
    /// A worker has claimed the instance.
    Executing,
    /// The instance waits for a signal.
    AwaitingSignal,
    /// The instance waits for its children to settle.
    AwaitingChildren,
    /// The instance is due and waits until the limits of its step have room.
    AwaitingLimit,
    /// The instance waits in a lane, for its position or behind the head.
    Queued,
    /// The instance is set aside for an operator: a build could not decode the instance, or too
    /// many workers crashed while they ran it.
    Stuck,
    /// The instance has settled with a result.
    Done,
    /// The instance has settled as failed.
    Failed,
    /// The instance has settled as cancelled.
    Cancelled,
}

impl Status {
    /// Returns whether the instance has settled: no further step of it runs.
    pub const fn is_settled(self) -> bool {
        matches!(self, Status::Done | Status::Failed | Status::Cancelled)
    }
}

names!(Status, "status", {
    Runnable => "runnable",
    Executing => "executing",
    AwaitingSignal => "awaiting_signal",
    AwaitingChildren => "awaiting_children",
    AwaitingLimit => "awaiting_limit",
    Queued => "queued",
    Stuck => "stuck",
    Done => "done",
    Failed => "failed",
    Cancelled => "cancelled",
});
