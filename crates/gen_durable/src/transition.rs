//! How a step ends.

use std::{fmt, time::Duration};

use crate::{error::StepError, machine::Machine, store::tx::Tx};

/// What a step returns: how it ends, or an error. `?` on any error means "try again".
pub type Outcome<M> = Result<Transition<M>, StepError>;

/// A decided end of a step. It does nothing until the step returns it and the engine has committed it.
#[must_use = "a transition does nothing until the step returns it"]
pub struct Transition<M: Machine> {
    pub(crate) ending: Ending<M>,
    /// The step's own transaction, in which the ending is to be written.
    pub(crate) within: Option<Tx>,
}

pub(crate) enum Ending<M: Machine> {
    Next(M::Step),
    Sleep(Duration, M::Step),
    Retry(Duration),
    Done(M::Output),
    Stop(String),
}

impl<M: Machine> Transition<M> {
    fn of(ending: Ending<M>) -> Self {
        Transition { ending, within: None }
    }

    /// Commit this transition inside the step's own transaction (from [`Context::begin`](crate::Context::begin)): what the
    /// step wrote through it and what it decided are one commit. For that database: exactly once.
    ///
    /// If the claim was lost meanwhile, the transaction is rolled back.
    pub fn within(mut self, tx: Tx) -> Self {
        self.within = Some(tx);
        self
    }
}

impl<M: Machine> fmt::Debug for Transition<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.ending {
            Ending::Next(_) => "next",
            Ending::Sleep(..) => "sleep",
            Ending::Retry(_) => "retry_after",
            Ending::Done(_) => "done",
            Ending::Stop(_) => "stop",
        })
    }
}

/// Go to `step` now.
pub fn next<M: Machine>(step: M::Step) -> Transition<M> {
    Transition::of(Ending::Next(step))
}

/// The same step again, later; the attempt counter rises.
pub fn retry_after<M: Machine>(delay: Duration) -> Transition<M> {
    Transition::of(Ending::Retry(delay))
}

/// Settled, with a result.
pub fn done<M: Machine>(output: M::Output) -> Transition<M> {
    Transition::of(Ending::Done(output))
}

/// Settled, as failed.
pub fn stop<M: Machine>(reason: impl Into<String>) -> Transition<M> {
    Transition::of(Ending::Stop(reason.into()))
}

/// A timer that no process holds: `sleep(3 * DAY).then(Step::Remind)`.
pub fn sleep(delay: Duration) -> Sleep {
    Sleep(delay)
}

/// A sleep that has not yet said where it leads.
#[must_use = "say what comes after: `.then(step)`"]
#[derive(Debug, Clone, Copy)]
pub struct Sleep(Duration);

impl Sleep {
    /// Go to `step` when the time has passed.
    pub fn then<M: Machine>(self, step: M::Step) -> Transition<M> {
        Transition::of(Ending::Sleep(self.0, step))
    }
}
