//! The audit log of acts by people: a tool inserts an entry before an act begins, and completes the
//! entry when the act has ended.

use crate::{
    error::{Error, storable},
    store::{audit, pool::Pool},
};

/// The number of entries that the audit log keeps.
pub(crate) const KEPT_MAX: i64 = 100_000;
/// The number of days for which the audit log keeps an entry.
pub(crate) const KEPT_DAYS: i32 = 400;
/// The largest name and the largest text of an entry, in bytes.
const NAME_BYTES_MAX: usize = 200;
const TEXT_BYTES_MAX: usize = 1_000;

/// An act of a person, for the audit log. The client truncates texts that are too long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditEntry {
    /// The authenticated user that performs the action.
    pub actor: String,
    /// The network address from which the request for the action came, if known.
    pub source: Option<String>,
    /// The channel of the request: `dashboard`, `command`, or the name of your own tool.
    pub channel: String,
    /// The name of the action, for example `cancel`.
    pub action: String,
    /// The object of the action, for example `instance 42`.
    pub subject: String,
}

impl AuditEntry {
    /// Returns the entry with its texts truncated, so that a row can store them.
    fn kept(&self) -> AuditEntry {
        AuditEntry {
            actor: cut(&self.actor, NAME_BYTES_MAX),
            source: self
                .source
                .as_deref()
                .map(|source| cut(source, NAME_BYTES_MAX)),
            channel: cut(&self.channel, NAME_BYTES_MAX),
            action: cut(&self.action, NAME_BYTES_MAX),
            subject: cut(&self.subject, TEXT_BYTES_MAX),
        }
    }
}

fn cut(text: &str, bytes_max: usize) -> String {
    let mut kept = storable(text);
    if kept.len() > bytes_max {
        kept.truncate(kept.floor_char_boundary(bytes_max - '…'.len_utf8()));
        kept.push('…');
    }
    kept
}

/// The audit log: `client.audit()`. It is for tools that let people act; `Inspect::audit` reads it.
///
/// The audit log keeps the newest 100,000 entries, and no entry for longer than 400 days: the
/// insert of a new entry deletes some of the oldest entries.
#[derive(Debug, Clone)]
pub struct Audit {
    pool: Pool,
}

impl Audit {
    pub(crate) fn new(pool: Pool) -> Audit {
        Audit { pool }
    }

    /// Records that a person is about to act. Act only after this call has succeeded: then no act
    /// is without an entry, even if a process crashes in between. Returns the number of the entry.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn begin(&self, entry: &AuditEntry) -> Result<i64, Error> {
        let entry = entry.kept();
        let made = self
            .pool
            .apart(move |connection| async move { audit::begin(&connection, &entry).await })
            .await?;
        made.map_err(|fault| fault.into_error("write an audit entry"))?
            .ok_or_else(|| Error::broken("the audit entry returned no row"))
    }

    /// Completes an entry after the act: with the final action and subject, and with the outcome.
    /// Returns whether the entry was still open.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn end(
        &self,
        record: i64,
        entry: &AuditEntry,
        outcome: Result<&str, &str>,
    ) -> Result<bool, Error> {
        let (succeeded, outcome) = match outcome {
            Ok(outcome) => (true, outcome),
            Err(why) => (false, why),
        };
        let (entry, outcome) = (entry.kept(), cut(outcome, TEXT_BYTES_MAX));
        self.pool
            .apart(move |connection| async move {
                audit::end(&connection, record, &entry, succeeded, &outcome).await
            })
            .await?
            .map_err(|fault| fault.into_error("complete an audit entry"))
    }
}
