//! The one error of this crate: a message that says what happened and what to do.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;

/// What a call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a private Postgres could not be found, started or stopped.
///
/// It is opaque on purpose: there is nothing a program can do about it but show the message, which
/// names the cause and the remedy. It is `Clone`, since every caller of [`shared`](crate::shared)
/// gets the same one.
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

    /// An operation of the file system: `what` reads on from "cannot", as in "create the
    /// directory".
    pub(crate) fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "; free some space, or choose another place (TMPDIR for temporary clusters)"
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "; choose a directory this user may write to (TMPDIR for temporary clusters)"
            }
            _ => "",
        };
        Self::new(format!("cannot {what} {}: {error}{remedy}", path.display()))
    }

    /// A program that failed, with the end of what it said.
    pub(crate) fn with_log(what: &str, log: &str) -> Self {
        // It is in the log too, but nobody should have to find it there.
        let full = log.contains("No space left on device");
        let remedy = if full {
            ": the disk is full; free some space, or choose another place"
        } else {
            ""
        };
        Self::new(format!("{what}{remedy}. Its log ends:\n{log}"))
    }

    /// A program that could not even be started.
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
