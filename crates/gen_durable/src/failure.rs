//! A failed run of a step: its counts, its message, and the error value that the step returned.

use std::{error::Error as StdError, fmt, sync::Arc};

use crate::error::{StepError, causes, storable};

/// A failed run of a step, as [`Machine::handle`](crate::Machine::handle) receives it, and the
/// failure with which an instance settled.
///
/// [`downcast_ref`](Failure::downcast_ref) returns the error that the step returned, if it has this
/// type:
///
/// ```
/// # #[derive(Debug)] enum BankError { Closed, Refused }
/// # impl std::fmt::Display for BankError {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { Ok(()) }
/// # }
/// # impl std::error::Error for BankError {}
/// # fn demo(failure: &gen_durable::machine::Failure) -> bool {
/// matches!(failure.downcast_ref(), Some(BankError::Closed))
/// # }
/// ```
///
/// The message contains the causes of the error, so `Failure` itself has no
/// [`source`](StdError::source).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// How the run failed.
    pub kind: FailureKind,
    /// The number of earlier runs of this step that did not complete it: they failed, asked for a
    /// retry, or their worker crashed.
    pub attempt: u32,
    /// The number of earlier runs that failed; this run is not counted. With a policy of `n`
    /// attempts, the last failure has `failures + 1 == n`.
    pub failures: u32,
    /// The message of the error that the step returned, with its causes.
    pub message: String,
    /// Whether the failure is final: the step marked its error as fatal, or the same run would fail
    /// again. The default `handle` does not retry such a step.
    pub fatal: bool,
    /// The error that the step returned. The engine keeps it until the handler has returned.
    error: Option<Arc<dyn StdError + Send + Sync>>,
}

/// How a run of a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The step returned an error, or a transition that a row cannot store.
    Error,
    /// The step panicked.
    Panic,
    /// The step ran longer than its timeout.
    Timeout,
    /// The database refused the result of the step, for example by a constraint.
    Refused,
    /// The step met an outage of the database several times in a row, while its worker could reach
    /// the database.
    Outage,
    /// The failure was read from the row of a settled instance. The row stores the message only.
    Settled,
}

impl Failure {
    pub(crate) fn new(
        kind: FailureKind,
        (attempt, failures): (u32, u32),
        message: String,
        fatal: bool,
    ) -> Failure {
        Failure {
            kind,
            attempt,
            failures,
            message,
            fatal,
            error: None,
        }
    }

    /// Creates the failure of a step that returned an error, and keeps the error.
    pub(crate) fn of_error(counts: (u32, u32), error: StepError) -> Failure {
        let (message, fatal) = (storable(&error.to_string()), error.is_fatal());
        Failure {
            error: Some(Arc::from(error.into_source())),
            ..Failure::new(FailureKind::Error, counts, message, fatal)
        }
    }

    /// Returns the error that the step returned. `None` for every other
    /// [`kind`](Failure::kind): the step panicked or exceeded its timeout, or the failure was read
    /// from a row.
    pub fn error(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.error.as_deref()
    }

    /// Returns the error that the step returned and the chain of its causes, the outermost first.
    /// The iterator is empty if [`error`](Failure::error) is `None`.
    pub fn chain(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        self.error
            .as_deref()
            .map(|error| -> &(dyn StdError + 'static) { error })
            .into_iter()
            .flat_map(causes)
    }

    /// Returns the first error of the [`chain`](Failure::chain) that has the type `E`.
    ///
    /// An error with the context of `anyhow` is found among the causes. `anyhow` hides the type of
    /// an error without a context: return such an error as it is, or add a context.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        self.chain().find_map(|error| error.downcast_ref())
    }
}

/// Compares everything but the error value, of which the message is the text.
impl PartialEq for Failure {
    fn eq(&self, other: &Failure) -> bool {
        let parts = |f: &Failure| (f.kind, f.attempt, f.failures, f.fatal);
        parts(self) == parts(other) && self.message == other.message
    }
}
impl Eq for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl StdError for Failure {}
