//! The errors: an opaque error for calls, with predicates, and an error for steps. A step that
//! returns an error by `?` is retried.

use std::{error::Error as StdError, fmt, time::Duration};

type Source = Box<dyn StdError + Send + Sync>;

/// The longest error text that a row stores, in bytes.
pub(crate) const ERROR_TEXT_BYTES_MAX: usize = 8 * 1024;

/// The error of a call. Its predicates report the causes that a caller can act on. The kinds of
/// errors are private, so that a later version can add kinds.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Source>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The caller's input or configuration is invalid.
    Invalid,
    /// The database could not be reached, or is overloaded.
    Away,
    /// The client sent the statement and received no response.
    Unknown,
    /// The schema of gen_durable is missing, or too old or too new for this build.
    Schema,
    /// The instance, projection, run, timer or schedule of the call does not exist.
    NotFound,
    /// The target of a signal or a cancel does not exist or has settled.
    NoTarget,
    /// The inbox of the target of a signal is full.
    InboxFull,
    /// An instance of another machine holds the key.
    KeyTaken,
    /// Another run of the same scope is in progress.
    Taken,
    /// An internal error: a state that should be impossible.
    Broken,
    /// The database refused a statement for a reason that no other kind names.
    Refused,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }
    pub(crate) fn because(
        kind: Kind,
        message: impl Into<String>,
        source: impl Into<Source>,
    ) -> Error {
        Error {
            kind,
            message: message.into(),
            source: Some(source.into()),
        }
    }
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(Kind::Invalid, message)
    }
    pub(crate) fn broken(message: impl Into<String>) -> Error {
        Error::new(Kind::Broken, message)
    }

    /// Returns whether the input or the configuration of the caller is invalid. The same call will
    /// fail every time.
    pub fn is_invalid(&self) -> bool {
        self.kind == Kind::Invalid
    }
    /// Returns whether the database is unreachable or overloaded. The call changed no row; the same
    /// call may succeed later.
    pub fn is_transient(&self) -> bool {
        self.kind == Kind::Away
    }
    /// Returns whether the outcome is unknown: the connection broke around the commit, and the
    /// database may have committed the call or not.
    pub fn is_unknown(&self) -> bool {
        self.kind == Kind::Unknown
    }
    /// Returns whether the database refused the statement for a reason that no other predicate
    /// names: most often a constraint or a trigger of the user's own. The database will refuse the
    /// same call every time.
    pub fn is_refused(&self) -> bool {
        self.kind == Kind::Refused
    }
    /// Returns whether this is an internal error: a bug of this library, or the thread of the pool
    /// has ended.
    pub fn is_internal(&self) -> bool {
        self.kind == Kind::Broken
    }
    /// Returns whether the schema does not match this build. Run `durable migrate up`, or deploy a
    /// newer build.
    pub fn is_schema(&self) -> bool {
        self.kind == Kind::Schema
    }
    /// Returns whether the target of a signal or a cancel does not exist or has settled.
    pub fn is_no_target(&self) -> bool {
        self.kind == Kind::NoTarget
    }
    /// Returns whether the inbox of the target is full: 1,000 signals, or 8 MiB.
    pub fn is_inbox_full(&self) -> bool {
        self.kind == Kind::InboxFull
    }
    /// Returns whether an instance of another machine holds the key; the message names it. A key
    /// that an instance of the same machine holds is not an error: the call returns the holder.
    pub fn is_key_taken(&self) -> bool {
        self.kind == Kind::KeyTaken
    }
    /// Returns whether another run of this projection and tenant is in progress. Only one run of a
    /// scope may be in progress at a time.
    pub fn is_taken(&self) -> bool {
        self.kind == Kind::Taken
    }
    /// Returns whether the instance, projection or run does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == Kind::NotFound
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(source) = &self.source {
            write!(f, ": {}", chain(source.as_ref()))?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_ref()
            .map(|source| -> &(dyn StdError + 'static) { source.as_ref() })
    }
}

/// The error of a step. Any error converts to it by `?`, and means "try again". To fail without
/// another attempt, use [`fatal`] or [`or_fatal`](OrFatal::or_fatal).
///
/// `StepError` does not implement `Error`, because its blanket `From` would then conflict with the
/// one of the standard library.
pub struct StepError {
    source: Source,
    fatal: bool,
    postponed_by: Option<Duration>,
}

impl StepError {
    /// Returns whether the step marked the error as fatal, so that the engine does not retry the
    /// step.
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// Returns the delay until the next run, if the step returned [`postpone`].
    pub(crate) fn postponed_by(&self) -> Option<Duration> {
        self.postponed_by
    }

    /// Returns the error from which this `StepError` was converted, and the chain of its causes.
    pub(crate) fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let first: &(dyn StdError + 'static) = self.source.as_ref();
        std::iter::successors(Some(first), |error| (*error).source())
    }
}

impl fmt::Debug for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepError")
            .field("fatal", &self.fatal)
            .field("source", &self.source)
            .finish()
    }
}
impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self.source.as_ref()))
    }
}

impl<E: Into<Source>> From<E> for StepError {
    fn from(error: E) -> Self {
        StepError {
            source: error.into(),
            fatal: false,
            postponed_by: None,
        }
    }
}

/// Creates an error after which the engine does not retry the step.
pub fn fatal(error: impl Into<Source>) -> StepError {
    StepError {
        source: error.into(),
        fatal: true,
        postponed_by: None,
    }
}

/// Ends a run that cannot do its work yet, and runs the step again after `delay`: `return
/// Err(postpone(5 * MINUTE))`.
///
/// A postponed run is not a failure: [`Policy::attempts`](crate::Policy::attempts) does not count
/// it, and the engine neither calls `handle` nor records an error. `postpone` does the same as
/// [`retry_after`](crate::retry_after), for a [`Job`](crate::Job), which has no transitions.
pub fn postpone(delay: Duration) -> StepError {
    StepError {
        source: "postponed".into(),
        fatal: false,
        postponed_by: Some(delay),
    }
}

/// Marks an error as fatal with a method call: `text.parse().or_fatal()?`.
pub trait OrFatal<T> {
    /// Converts an error into an error after which the engine does not retry the step.
    ///
    /// # Errors
    /// Returns the error of `self`, marked as fatal.
    fn or_fatal(self) -> Result<T, StepError>;
}
impl<T, E: Into<Source>> OrFatal<T> for Result<T, E> {
    fn or_fatal(self) -> Result<T, StepError> {
        self.map_err(fatal)
    }
}

/// A failed run of a step, as [`Machine::handle`](crate::Machine::handle) receives it and as the
/// row stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The number of earlier runs of this step that did not complete it: they failed, asked for a
    /// retry, or their worker crashed.
    pub attempt: u32,
    /// The number of earlier runs that failed; this run is not counted.
    pub failures: u32,
    /// The message of the error that the step returned, with its causes.
    pub message: String,
    /// Whether the step marked the error as fatal.
    pub fatal: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl StdError for Failure {}

/// Formats an error and its causes in one line.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // Skips a cause if the text already contains it: many errors include the text of their
        // cause.
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

/// Returns the error text in a form that a row can store: without NUL (Postgres refuses it, and
/// recording a failure must not fail), and with a bounded length.
pub(crate) fn storable(text: &str) -> String {
    let mut kept: String = text
        .chars()
        .map(|c| if c == '\0' { '\u{fffd}' } else { c })
        .collect();
    if kept.len() > ERROR_TEXT_BYTES_MAX {
        let cut = kept.floor_char_boundary(ERROR_TEXT_BYTES_MAX - '…'.len_utf8());
        kept.truncate(cut);
        kept.push('…');
    }
    kept
}
