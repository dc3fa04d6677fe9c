//! What an error of the database means for whoever called: an outage is not a failure of a step.

use tokio_postgres::error::SqlState;

use crate::error::{Error, Kind};

/// What the driver says of a value that it cannot put into a message…
const UNSENDABLE: [&str; 2] = ["error serializing parameter", "error encoding message"];
/// …and of an answer that is not one: of a broken proxy, say. What the server did is not known.
const UNREADABLE: [&str; 2] = [
    "unexpected message from server",
    "error parsing response from server",
];

/// What `gen_durable.conclude` raises if a signal of an outbox meets a full inbox.
const INBOX_FULL: &str = "P0D01";

/// A statement that did not succeed.
#[derive(Debug)]
pub enum Fault {
    /// The database could not be reached, or refused before it did anything: nothing happened.
    Away(String),
    /// The connection broke while the statement was under way: it happened, or it did not.
    Lost(String),
    /// Somebody else holds a lock (or we were the victim of a deadlock): nothing happened, try again.
    Busy(String),
    /// The server cancelled the statement (a `statement_timeout` of its own, or an operator): nothing happened. A smaller one may
    /// succeed.
    TimedOut(String),
    /// The database looked at it and said no: the same again would be refused again.
    Refused {
        code: Option<SqlState>,
        message: String,
    },
}

impl Fault {
    pub(crate) fn of(error: &tokio_postgres::Error) -> Fault {
        let message = describe(error);
        let Some(code) = error.code() else {
            let said = error.to_string();
            let is_io = || {
                std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
            };
            return if UNSENDABLE.iter().any(|words| said.starts_with(words)) {
                Fault::unsendable(message)
            } else if error.is_closed() || UNREADABLE.contains(&said.as_str()) || is_io() {
                Fault::Lost(message)
            } else {
                Fault::Refused {
                    code: None,
                    message,
                }
            };
        };
        Fault::by_code(code.code(), message)
    }

    /// A value that cannot be sent: it never left this process.
    pub(crate) fn unsendable(message: String) -> Fault {
        Fault::Refused {
            code: Some(SqlState::DATA_EXCEPTION),
            message,
        }
    }

    /// Of a statement that comes before anything is written: what was lost then has not happened.
    pub(crate) fn before_any_write(self) -> Fault {
        match self {
            Fault::Lost(message) => Fault::Away(message),
            fault => fault,
        }
    }

    /// By what the server said.
    pub(crate) fn by_code(code: &str, message: String) -> Fault {
        match code {
            "55P03" | "40P01" | "40001" => Fault::Busy(message),
            // The server goes down, or our session was ended: it may have been at any point of its work.
            code if code.starts_with("57P") => Fault::Lost(message),
            "57014" => Fault::TimedOut(message),
            // Read-only, out of memory, of disk, of connections, still starting,
            // an I/O error, a transaction that was left idle for too long: not the statement's fault.
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

    /// Whether waiting and trying again is the right answer.
    pub(crate) fn is_infrastructure(&self) -> bool {
        matches!(self, Fault::Away(_) | Fault::Lost(_) | Fault::TimedOut(_))
    }

    /// Whether it is the data that was refused: a value, a constraint, a limit, a trigger's exception. Anything else that a
    /// server says no to (rights that are not granted yet, a schema between two migrations) is nobody's outcome's fault, and so is
    /// what comes without a SQLSTATE: an answer that cannot be read.
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

    /// Whether a signal of an outbox met a full inbox: the same outcome may be accepted later.
    pub(crate) fn is_full_inbox(&self) -> bool {
        matches!(self, Fault::Refused { code: Some(code), .. } if code.code() == INBOX_FULL)
    }

    /// Whether a key is taken.
    pub(crate) fn is_taken_key(&self) -> bool {
        matches!(self, Fault::Refused { code: Some(code), .. } if *code == SqlState::UNIQUE_VIOLATION)
    }

    /// The same news for another who waited for it.
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

    /// As the answer to a caller. `doing` reads after "could not": "enqueue 3 instances".
    pub(crate) fn into_error(self, doing: &str) -> Error {
        match self {
            Fault::Away(message) | Fault::Busy(message) | Fault::TimedOut(message) => Error::new(
                Kind::Away,
                format!("could not {doing}, nothing was done: {message}"),
            ),
            Fault::Lost(message) => Error::new(
                Kind::Unknown,
                format!(
                    "lost the connection while trying to {doing}; it may have been done: {message}"
                ),
            ),
            Fault::Refused { code, message } => match code.as_ref().map(SqlState::code) {
                Some("3F000" | "42P01" | "42883") => Error::new(
                    Kind::Schema,
                    format!(
                        "could not {doing}: the schema is missing or incomplete; run `durable migrate up` ({message})"
                    ),
                ),
                Some("42501") => Error::new(
                    Kind::Invalid,
                    format!(
                        "could not {doing}: this database user lacks the rights; grant it the runtime role ({message})"
                    ),
                ),
                Some("23505") => {
                    Error::new(Kind::KeyTaken, format!("could not {doing}: {message}"))
                }
                _ => Error::new(Kind::Refused, format!("could not {doing}: {message}")),
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
