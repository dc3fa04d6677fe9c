//! Classifies database errors by their meaning for the caller. An outage of the database does not
//! count as a failure of a step.

use tokio_postgres::error::SqlState;

use crate::error::{Error, ErrorKind};

/// The beginnings of the driver's error texts for a parameter that it cannot encode.
const UNSENDABLE: [&str; 2] = ["error serializing parameter", "error encoding message"];
/// The driver's error texts for a reply that it cannot decode, for example from a broken proxy.
/// After such an error it is unknown whether the server executed the statement.
const UNREADABLE: [&str; 2] = [
    "unexpected message from server",
    "error parsing response from server",
];

/// The SQLSTATE that the commit of a step raises (in `gen_durable._send_effects`) if the outbox of
/// the step contains a signal to an instance with a full inbox.
const INBOX_FULL: &str = "P0D01";

/// Why an SQL statement did not succeed.
#[derive(Debug)]
pub enum Fault {
    /// The process could not reach the database, or the database refused the statement before it
    /// did anything. The statement changed nothing.
    Away(String),
    /// The connection broke while the statement was running. It is unknown whether the server
    /// executed the statement.
    Lost(String),
    /// Another transaction holds a lock that the statement needs, or Postgres chose this
    /// transaction as the victim of a deadlock. The statement changed nothing, and the caller may
    /// try again.
    Busy(String),
    /// The server cancelled the statement, because it exceeded the server's `statement_timeout` or
    /// because an operator cancelled it. The statement changed nothing. A smaller statement may
    /// succeed.
    TimedOut(String),
    /// The database rejected the statement. It would reject the same statement again.
    Refused {
        code: Option<SqlState>,
        message: String,
    },
}

impl Fault {
    pub(crate) fn of(error: &tokio_postgres::Error) -> Fault {
        let message = describe(error);
        let Some(code) = error.code() else {
            let text = error.to_string();
            let is_io = || {
                std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
            };
            return if UNSENDABLE.iter().any(|words| text.starts_with(words)) {
                Fault::unsendable(message)
            } else if error.is_closed() || UNREADABLE.contains(&text.as_str()) || is_io() {
                Fault::Lost(message)
            } else {
                Fault::unexpected(message)
            };
        };
        Fault::by_code(code.code(), message)
    }

    /// Creates the fault of a parameter that the driver cannot encode. The driver did not send the
    /// statement.
    pub(crate) fn unsendable(message: String) -> Fault {
        Fault::Refused {
            code: Some(SqlState::DATA_EXCEPTION),
            message,
        }
    }

    /// Creates the fault of a reply that this build does not expect.
    pub(crate) fn unexpected(message: impl Into<String>) -> Fault {
        Fault::Refused {
            code: None,
            message: message.into(),
        }
    }

    /// Creates the fault of a reply without rows, to a statement that always returns a row.
    pub(crate) fn no_row() -> Fault {
        Fault::unexpected("the database returned no row")
    }

    /// Converts the fault of a statement that runs before the first write of its transaction. If
    /// the reply to such a statement was lost, the transaction has written nothing, so `Lost`
    /// becomes `Away`.
    pub(crate) fn before_any_write(self) -> Fault {
        match self {
            Fault::Lost(message) => Fault::Away(message),
            fault => fault,
        }
    }

    /// Classifies a database error by its SQLSTATE.
    pub(crate) fn by_code(code: &str, message: String) -> Fault {
        match code {
            "55P03" | "40P01" | "40001" => Fault::Busy(message),
            // The server shuts down, or an administrator terminated the session. Either can happen
            // at any point of the statement.
            code if code.starts_with("57P") => Fault::Lost(message),
            "57014" => Fault::TimedOut(message),
            // The server is read-only, still starting, out of memory, disk space or connections, or
            // has an I/O error; or the server ended a transaction that was idle for too long. The
            // statement causes none of these errors.
            "25006" | "25P03" => Fault::Away(message),
            code if ["08", "53", "58", "F0", "XX"]
                .iter()
                .any(|class| code.starts_with(class)) =>
            {
                Fault::Away(message)
            }
            _ => Fault::Refused {
                code: Some(SqlState::from_code(code)),
                message,
            },
        }
    }

    /// Returns whether the fault is an outage of the database, after which the caller should wait
    /// and send the statement again.
    pub(crate) fn is_infrastructure(&self) -> bool {
        matches!(self, Fault::Away(_) | Fault::Lost(_) | Fault::TimedOut(_))
    }

    /// Returns whether the database refused the data of a step result: a value, a constraint, a
    /// limit, an exception of a trigger. Other refusals, such as missing privileges or a schema
    /// between two migrations, do not come from the data. Neither does a fault without a SQLSTATE,
    /// which is a reply that the driver cannot read.
    pub(crate) fn blames_the_data(&self) -> bool {
        match self {
            Fault::Refused {
                code: Some(code), ..
            } => ["21", "22", "23", "44", "54", "P0"]
                .iter()
                .any(|class| code.code().starts_with(class)),
            _ => false,
        }
    }

    /// Returns whether the database refused a step result because its outbox has a signal to an
    /// instance with a full inbox. The database may accept the same step result later.
    pub(crate) fn is_full_inbox(&self) -> bool {
        matches!(self, Fault::Refused { code: Some(code), .. } if code.code() == INBOX_FULL)
    }

    /// Returns whether the database refused a statement because another row holds the same unique
    /// key.
    pub(crate) fn is_taken_key(&self) -> bool {
        matches!(self, Fault::Refused { code: Some(code), .. } if *code == SqlState::UNIQUE_VIOLATION)
    }

    /// Copies the fault for another caller that waited for the same statement.
    pub(crate) fn again(&self) -> Fault {
        match self {
            Fault::Away(message) => Fault::Away(message.clone()),
            Fault::Lost(message) => Fault::Lost(message.clone()),
            Fault::Busy(message) => Fault::Busy(message.clone()),
            Fault::TimedOut(message) => Fault::TimedOut(message.clone()),
            Fault::Refused { code, message } => Fault::Refused {
                code: code.clone(),
                message: message.clone(),
            },
        }
    }

    pub(crate) fn message(&self) -> &str {
        match self {
            Fault::Away(message)
            | Fault::Lost(message)
            | Fault::Busy(message)
            | Fault::TimedOut(message) => message,
            Fault::Refused { message, .. } => message,
        }
    }

    /// Converts the fault into the error that a caller receives. `doing` completes the sentence
    /// "could not …": "enqueue 3 instances". The message of the database is the cause of the error.
    pub(crate) fn into_error(self, doing: &str) -> Error {
        match self {
            Fault::Away(message) | Fault::Busy(message) | Fault::TimedOut(message) => {
                Error::because(
                    ErrorKind::Transient,
                    format!("could not {doing}, nothing was done"),
                    message,
                )
            }
            Fault::Lost(message) => Error::because(
                ErrorKind::Unknown,
                format!("lost the connection while trying to {doing}; it may have been done"),
                message,
            ),
            Fault::Refused { code, message } => match code.as_ref().map(SqlState::code) {
                Some("3F000" | "42P01" | "42883") => Error::because(
                    ErrorKind::Schema,
                    format!(
                        "could not {doing}: the schema is missing or incomplete; run `durable migrate up`"
                    ),
                    message,
                ),
                Some("42501") => Error::because(
                    ErrorKind::Invalid,
                    format!(
                        "could not {doing}: this database user lacks the rights; grant it the runtime role"
                    ),
                    message,
                ),
                Some("23505") => {
                    Error::because(ErrorKind::KeyTaken, format!("could not {doing}"), message)
                }
                _ => Error::because(ErrorKind::Refused, format!("could not {doing}"), message),
            },
        }
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Fault {
        Fault::of(&error)
    }
}

fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => {
            let detail = db
                .detail()
                .map(|detail| format!(" ({detail})"))
                .unwrap_or_default();
            format!("{} [{}]{detail}", db.message(), db.code().code())
        }
        None => crate::error::chain(error),
    }
}
