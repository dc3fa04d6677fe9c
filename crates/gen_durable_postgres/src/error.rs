//! The only error type of this crate: a message that says what happened and what to do.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a private Postgres could not be found, started or stopped.
///
/// The type is opaque on purpose: a program can only show the message, which names the cause and
/// the remedy. It is `Clone` because every caller of [`shared`](crate::shared) gets the same error.
#[derive(Debug, Clone)]
pub struct Error {
    message: String,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }

    /// Returns the error for a failed file system operation. `what` completes the sentence "cannot
    /// ...", for example "create the directory".
    pub(crate) fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "; free some space, or choose another directory (TMPDIR for temporary clusters)"
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "; choose a directory this user may write to (TMPDIR for temporary clusters)"
            }
            _ => "",
        };
        Self::new(format!("cannot {what} {}: {error}{remedy}", path.display()))
    }

    /// Returns the error for a program that failed, with the end of the log of the program.
    pub(crate) fn with_log(what: &str, log: &str) -> Self {
        // Names a full disk at the beginning of the error message, because the user can fix this
        // cause and may overlook it in the log.
        let full = log.contains("No space left on device");
        let remedy = if full {
            ": the disk is full; free some space, or choose another directory"
        } else {
            ""
        };
        Self::new(format!("{what}{remedy}. Its log ends:\n{log}"))
    }

    /// Returns the error for a program that could not be started.
    pub(crate) fn spawn(program: &Path, error: &io::Error) -> Self {
        Self::new(format!("cannot run {}: {error}", program.display()))
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
