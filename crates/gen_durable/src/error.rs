//! The errors: an opaque error for calls, with a kind, and an error for steps. A step that returns
//! an error by `?` is retried.

use std::{error::Error as StdError, fmt, time::Duration};

pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// The longest error text that a row stores, in bytes.
pub(crate) const ERROR_TEXT_BYTES_MAX: usize = 8 * 1024;

/// The error of a call. [`kind`](Error::kind) returns its kind, by what a caller can do about it;
/// each [`ErrorKind`] has a predicate.
///
/// `{error}` prints the message of the error alone; [`source`](StdError::source) returns its cause.
/// `{error:#}` prints the message and all causes in one line:
///
/// ```
/// use gen_durable::{Client, client::ErrorKind};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let error = Client::connect("postgres://user@host:port/shop").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert!(format!("{error}").starts_with("the connection string is invalid"));
/// assert!(format!("{error:#}").ends_with("invalid value for option `port`"));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

/// The kind of an [`Error`], by what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input or the configuration of the caller is invalid. The same call will fail every time.
    Invalid,
    /// The database is unreachable or overloaded. The call changed no row; the same call may
    /// succeed later.
    Transient,
    /// The connection broke after the client had sent the statement. The database may have
    /// committed the call or not.
    Unknown,
    /// The schema is missing, or too old or too new for this build. Run `durable migrate up`, or
    /// deploy a newer build.
    Schema,
    /// The instance, projection, run, timer or schedule does not exist.
    NotFound,
    /// The target of a signal does not exist or has settled, or the target of a cancel does not
    /// exist.
    NoTarget,
    /// The inbox of the target of a signal is full: 1,000 signals, or 8 MiB.
    InboxFull,
    /// Another instance holds the key. An enqueue or a signal that starts its target fails if that
    /// instance is of another machine, and the cause of the error names it; an operator's retry
    /// fails for any instance.
    KeyTaken,
    /// Another run of this projection and tenant is in progress. Only one run of a scope may be in
    /// progress at a time.
    RunInProgress,
    /// The database refused the statement for a reason that no other kind names: most often a
    /// constraint or a trigger of the user's own. Or a projection for which a caller waits has
    /// halted. The same call will fail every time.
    Refused,
    /// An internal error: a bug of this library, or the thread of the pool has ended.
    Internal,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }
    /// Creates an error with a cause. `message` does not contain the text of the cause.
    pub(crate) fn because(
        kind: ErrorKind,
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
        Error::new(ErrorKind::Invalid, message)
    }
    pub(crate) fn broken(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Internal, message)
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    /// Returns whether the input or the configuration of the caller is invalid. The same call will
    /// fail every time.
    pub fn is_invalid(&self) -> bool {
        self.kind == ErrorKind::Invalid
    }
    /// Returns whether the database is unreachable or overloaded. The call changed no row; the same
    /// call may succeed later.
    pub fn is_transient(&self) -> bool {
        self.kind == ErrorKind::Transient
    }
    /// Returns whether the outcome is unknown: the connection broke around the commit, and the
    /// database may have committed the call or not.
    pub fn is_unknown(&self) -> bool {
        self.kind == ErrorKind::Unknown
    }
    /// Returns whether the schema does not match this build. Run `durable migrate up`, or deploy a
    /// newer build.
    pub fn is_schema(&self) -> bool {
        self.kind == ErrorKind::Schema
    }
    /// Returns whether the instance, projection, run, timer or schedule does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
    /// Returns whether the target of a signal does not exist or has settled, or the target of a
    /// cancel does not exist.
    pub fn is_no_target(&self) -> bool {
        self.kind == ErrorKind::NoTarget
    }
    /// Returns whether the inbox of the target is full: 1,000 signals, or 8 MiB.
    pub fn is_inbox_full(&self) -> bool {
        self.kind == ErrorKind::InboxFull
    }
    /// Returns whether another instance holds the key. For an enqueue, only an instance of another
    /// machine is an error, and the cause names it; otherwise the call returns the holder.
    pub fn is_key_taken(&self) -> bool {
        self.kind == ErrorKind::KeyTaken
    }
    /// Returns whether another run of the projection and tenant is in progress.
    pub fn is_run_in_progress(&self) -> bool {
        self.kind == ErrorKind::RunInProgress
    }
    /// Returns whether the database refused the statement for a reason that no other kind names.
    pub fn is_refused(&self) -> bool {
        self.kind == ErrorKind::Refused
    }
    /// Returns whether the error is internal to this library.
    pub fn is_internal(&self) -> bool {
        self.kind == ErrorKind::Internal
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.write_str(&chain(self));
        }
        f.write_str(&self.message)
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
/// `{error}` prints the error and all its causes in one line, as the row of a failed instance
/// stores them. `StepError` does not implement `Error`, because its blanket `From` would then
/// conflict with the one of the standard library.
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
        causes(self.source.as_ref())
    }

    /// Returns the error from which this `StepError` was converted.
    pub(crate) fn into_source(self) -> Source {
        self.source
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

/// Returns an iterator over an error and the chain of its causes.
pub(crate) fn causes<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// Formats an error and its causes in one line: the form in which rows, logs and tools show an
/// error.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1) {
        let message = cause.to_string();
        // Skips a cause if the text already contains it: many errors include the text of their
        // cause.
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
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
