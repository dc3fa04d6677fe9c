//! The audit log of acts by people: a tool inserts an entry before an act begins, and completes the
//! entry when the act has ended.

use crate::{
    error::{Error, storable},
    inspect::Inspect,
    model::{
        audit::{AuditEntry, AuditRecord},
        page_size,
    },
    pool::Pool,
    store::audit,
};

/// The largest number of audit records that one call returns.
const PAGE_MAX: usize = 200;
/// The largest name and the largest text of an entry, in bytes.
const NAME_BYTES_MAX: usize = 200;
const TEXT_BYTES_MAX: usize = 1_000;

/// Returns an entry with its texts truncated, so that a row can store them.
fn kept(entry: &AuditEntry) -> AuditEntry {
    AuditEntry {
        actor: cut(&entry.actor, NAME_BYTES_MAX),
        source: entry
            .source
            .as_deref()
            .map(|source| cut(source, NAME_BYTES_MAX)),
        channel: cut(&entry.channel, NAME_BYTES_MAX),
        action: cut(&entry.action, NAME_BYTES_MAX),
        subject: cut(&entry.subject, TEXT_BYTES_MAX),
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
        let entry = kept(entry);
        let made = self
            .pool
            .connections
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
        let (entry, outcome) = (kept(entry), cut(outcome, TEXT_BYTES_MAX));
        self.pool
            .connections
            .apart(move |connection| async move {
                audit::end(&connection, record, &entry, succeeded, &outcome).await
            })
            .await?
            .map_err(|fault| fault.into_error("complete an audit entry"))
    }
}

impl Inspect {
    /// Returns records of the audit log with an id below `before`, the newest first: at most
    /// `limit` records, up to 200; 0 means 50.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn audit(
        &self,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditRecord>, Error> {
        let limit = page_size(limit, PAGE_MAX);
        self.read("read the audit log", move |connection| async move {
            audit::list(&connection, before.unwrap_or(i64::MAX), limit).await
        })
        .await
    }
}
