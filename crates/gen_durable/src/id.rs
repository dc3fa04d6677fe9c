//! Names and ids. No bare string or integer crosses a signature: an id is typed by its machine, a queue is a constant.

use std::{fmt, hash, marker::PhantomData};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest name of a queue, in bytes.
pub(crate) const QUEUE_NAME_BYTES_MAX: usize = 63;
/// The longest name of a machine, step or tenant, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 200;

/// A queue: work that is worked apart from other work. Declared as a constant, so a bad name does not compile.
///
/// ```
/// use gen_durable::Queue;
/// pub const MAIL: Queue = Queue::new("mail");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Queue(&'static str);

impl Queue {
    /// Where work goes that names no other queue.
    pub const DEFAULT: Queue = Queue::new("default");

    /// A queue of this name: 1 to 63 bytes, no NUL.
    pub const fn new(name: &'static str) -> Queue {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty(), "a queue needs a name");
        assert!(
            bytes.len() <= QUEUE_NAME_BYTES_MAX,
            "a queue's name is at most 63 bytes"
        );
        let mut rest = bytes;
        while let [byte, tail @ ..] = rest {
            assert!(*byte != 0, "a queue's name holds no NUL");
            rest = tail;
        }
        Queue(name)
    }

    /// The name, as it stands in the row.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The id of an instance of `M`. An id of another machine is another type.
pub struct Id<M: ?Sized>(i64, PhantomData<fn() -> M>);

impl<M: ?Sized> Id<M> {
    /// An id that came from outside (a URL, a command line). It is not checked that it names an `M`.
    pub const fn from_raw(id: i64) -> Id<M> {
        Id(id, PhantomData)
    }

    /// The number in the row.
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
/// As a number, so that an id can be kept in another machine's state.
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

/// Where an instance stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Status {
    /// Ready, or ready at its due time.
    Runnable,
    /// A worker holds it.
    Executing,
    /// Parked until a signal arrives.
    AwaitingSignal,
    /// Parked until its children have settled.
    AwaitingChildren,
    /// In a lane, behind its head; or just become the head, and begun in the worker where the one before it ended.
    Queued,
    /// Set aside: the build that claimed it could not decode it.
    Stuck,
    /// Settled, with a result.
    Done,
    /// Settled, as failed.
    Failed,
    /// Settled, as cancelled.
    Cancelled,
}

impl Status {
    /// Whether nothing more will happen to it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Status::Done | Status::Failed | Status::Cancelled)
    }

    /// The word in the row.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Runnable => "runnable",
            Status::Executing => "executing",
            Status::AwaitingSignal => "awaiting_signal",
            Status::AwaitingChildren => "awaiting_children",
            Status::Queued => "queued",
            Status::Stuck => "stuck",
            Status::Done => "done",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
        }
    }

    /// All of them, in the order of an instance's life.
    pub const ALL: [Status; 9] = [
        Status::Runnable,
        Status::Executing,
        Status::AwaitingSignal,
        Status::AwaitingChildren,
        Status::Queued,
        Status::Stuck,
        Status::Done,
        Status::Failed,
        Status::Cancelled,
    ];

    /// The status of this name.
    pub fn named(name: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.name() == name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
