//! The requests and results of a [`Client`]: enqueue, signal, record an event, and
//! wait for an instance to settle.
//!
//! A request does nothing until it is awaited. A request to enqueue, to signal or to record also
//! has a method `within`, which sends it in the caller's own [`Transaction`].

mod enqueue;
pub(crate) mod handle;
pub(crate) mod outgoing_signal;
pub(crate) mod send_signal;

pub use enqueue::{Enqueue, EnqueueAll, Enqueued};
pub(crate) use handle::Client;
pub use handle::Settled;
pub use send_signal::{Delivery, SendSignal, SignalAll, SignalOrStart, SignalOrStarted};

pub use crate::{
    error::ErrorKind,
    event::{Record, RecordAll, Recorded},
    limit::{LimitHandle, TakeOutcome},
    operate::CancelRequest,
    transaction::{Transaction, Tx},
};
