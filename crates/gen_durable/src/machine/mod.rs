//! The types around a machine and its steps: the options of a machine, what a step receives, and
//! the parts of the transition that a step returns.
//!
//! A machine implements [`Machine`] or [`Job`](crate::Job). A step returns
//! [`next`](crate::next), [`done`](crate::done), [`fail`](crate::fail), [`sleep`](crate::sleep),
//! [`wait_for`](crate::wait_for), [`spawn`](crate::spawn) or [`retry_after`](crate::retry_after).
//! The types of this module are the values that these functions take and return; programs rarely
//! name them.

pub(crate) mod definition;

pub(crate) use definition::Machine;
pub use definition::{Data, Stored, shape, variant_names};

pub use crate::{
    children::{Child, ChildrenCounts, ChildrenPage},
    client::outgoing_signal::OutgoingSignal,
    failure::{Failure, FailureKind},
    history::HistoryPolicy,
    job::Run,
    lane::LaneKey,
    limit::{Limit, Limits},
    new_instance::IntoNewInstance,
    signal::{ReceivedSignal, Signals},
    transaction::StepTx,
    transition::{Sleep, Spawn, WaitFor, Waiting},
};
