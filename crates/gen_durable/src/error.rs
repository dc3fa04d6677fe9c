//! One opaque error for calls, with predicates; one for steps, in which `?` means "try again".

use std::{error::Error as StdError, fmt, time::Duration};

type Source = Box<dyn StdError + Send + Sync>;

/// The longest error text that is kept in a row, in bytes.
pub(crate) const ERROR_TEXT_BYTES_MAX: usize = 8 * 1024;

/// What can go wrong with a call. Ask it what you can act on; its kinds are private, so that they may grow.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Source>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The caller's input, wiring or configuration.
    Invalid,
    /// The database could not be reached, or said "not now".
    Away,
    /// The call was sent, and the answer never came.
    Unknown,
    /// The schema is missing, too old or too new.
    Schema,
    /// What was asked for is not there.
    NotFound,
    /// Nobody is there to be told.
    NoTarget,
    /// Too many letters wait there already.
    InboxFull,
    /// An instance of another machine holds the key.
    KeyTaken,
    /// Another is under way.
    Taken,
    /// Something that cannot happen did.
    Broken,
    /// The database refused a statement.
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

    /// The input or the wiring is at fault: the same call will fail again.
    pub fn is_invalid(&self) -> bool {
        self.kind == Kind::Invalid
    }
    /// The database is away or overloaded: the same call may succeed later. Nothing was done.
    pub fn is_transient(&self) -> bool {
        self.kind == Kind::Away
    }
    /// The connection died around the commit: it may have been done, or not.
    pub fn is_unknown(&self) -> bool {
        self.kind == Kind::Unknown
    }
    /// The database refused the statement, for a reason that no other predicate names: most often a constraint or a trigger of
    /// the user's own. The same call will be refused again.
    pub fn is_refused(&self) -> bool {
        self.kind == Kind::Refused
    }
    /// Something happened that cannot happen: a bug of this library, or a pool whose thread has ended.
    pub fn is_internal(&self) -> bool {
        self.kind == Kind::Broken
    }
    /// The schema is not the one that this build needs: run `durable migrate up`, or deploy a newer build.
    pub fn is_schema(&self) -> bool {
        self.kind == Kind::Schema
    }
    /// Nobody is there to be told or cancelled: no such instance, or it has settled.
    pub fn is_no_target(&self) -> bool {
        self.kind == Kind::NoTarget
    }
    /// The target has as many letters waiting as it may: 1,000, or 8 MiB.
    pub fn is_inbox_full(&self) -> bool {
        self.kind == Kind::InboxFull
    }
    /// An instance of another machine holds the key; the message names it. A key that an instance of the same machine holds is no
    /// error: the call returns the holder.
    pub fn is_key_taken(&self) -> bool {
        self.kind == Kind::KeyTaken
    }
    /// Another run of this scope is under way: one at a time.
    pub fn is_taken(&self) -> bool {
        self.kind == Kind::Taken
    }
    /// There is no such instance, projection or run.
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

/// Why a step failed. Any error becomes one by `?`, and means "try again"; giving up is said aloud, by [`fatal`] or
/// [`or_fatal`](OrFatal::or_fatal).
///
/// It does not implement `Error` itself: that is what makes the blanket `From` possible.
pub struct StepError {
    source: Source,
    fatal: bool,
    postponed_by: Option<Duration>,
}

impl StepError {
    /// Whether it was said that trying again is of no use.
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// Returns after how long the step wants to run again, if it postponed itself.
    pub(crate) fn postponed_by(&self) -> Option<Duration> {
        self.postponed_by
    }

    /// What it was made from, and the causes of that.
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

/// An error after which the step is not tried again.
pub fn fatal(error: impl Into<Source>) -> StepError {
    StepError {
        source: error.into(),
        fatal: true,
        postponed_by: None,
    }
}

/// Ends a run that cannot do its work yet, and runs the step again after `delay`: `return Err(postpone(5 * MINUTE))`.
///
/// It is no failure: [`Policy::attempts`](crate::Policy::attempts) does not count it, `handle` is not called, and nothing is recorded
/// as an error. The same as [`retry_after`](crate::retry_after), for a [`Job`](crate::Job), which has no transitions.
pub fn postpone(delay: Duration) -> StepError {
    StepError {
        source: "postponed".into(),
        fatal: false,
        postponed_by: Some(delay),
    }
}

/// Giving up, as a word at the end of the line: `text.parse().or_fatal()?`.
pub trait OrFatal<T> {
    /// The error, if there is one, is not worth another try.
    fn or_fatal(self) -> Result<T, StepError>;
}
impl<T, E: Into<Source>> OrFatal<T> for Result<T, E> {
    fn or_fatal(self) -> Result<T, StepError> {
        self.map_err(fatal)
    }
}

/// A failed run of a step, as [`Machine::handle`](crate::Machine::handle) sees it and as the row keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// How many runs of this step led nowhere before this one: they failed, asked for a retry, or died with their worker.
    pub attempt: u32,
    /// How many of them failed, this one not counted.
    pub failures: u32,
    /// What went wrong, with its causes.
    pub message: String,
    /// Whether the step said that trying again is of no use.
    pub fatal: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl StdError for Failure {}

/// An error and its causes in one line.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Many errors repeat their cause in their own text.
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Error text as a row can keep it: no NUL (Postgres refuses it, and a failure must be recordable), bounded.
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
