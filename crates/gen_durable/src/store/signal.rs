//! Acts on other instances: deliver a letter, cancel.

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::column,
    sql,
    target::Target,
    tx::{Transaction, ride},
};
use crate::transition::Sent;

sql!(prepared SIGNAL, "signal.sql", [INT8, TEXT, TEXT, TEXT_ARRAY, TEXT, TEXT, TEXT, INT4]);
sql!(CANCEL, "cancel.sql", [INT8, TEXT, TEXT, TEXT_ARRAY, TEXT, BOOL]);

/// The most letters that an instance may have waiting.
pub(crate) const INBOX_MAX: i32 = 1_000;

/// What came of an act on an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Duplicate,
    TooLate,
    NoTarget,
    InboxFull,
}

pub(super) fn answer(rows: &[tokio_postgres::Row]) -> Result<Answer, Fault> {
    let word: String = match rows.first() {
        Some(row) => column(row, 0)?,
        None => String::new(),
    };
    Ok(match word.as_str() {
        "delivered" | "cancelled" => Answer::Done,
        "duplicate" => Answer::Duplicate,
        "too_late" => Answer::TooLate,
        "no_target" => Answer::NoTarget,
        "inbox_full" => Answer::InboxFull,
        other => return Err(Fault::Refused { code: None, message: format!("an unexpected answer: {other:?}") }),
    })
}

/// Deliver a letter: one statement.
pub(crate) async fn deliver(connection: &Connection, sent: &Sent, dedup: Option<&str>) -> Result<Answer, Fault> {
    let payload = sent.payload.get();
    let params: &[Param<'_>] =
        &[&sent.id, &sent.tenant, &sent.key, &sent.machines, &sent.name, &payload, &dedup, &INBOX_MAX];
    answer(&connection.query(&SIGNAL, params).await?)
}

/// The same in the caller's transaction: it is delivered if and only if that commits.
pub(crate) async fn deliver_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    sent: &Sent,
    dedup: Option<&str>,
) -> Result<Answer, Fault> {
    let payload = sent.payload.get();
    let params: &[Param<'_>] =
        &[&sent.id, &sent.tenant, &sent.key, &sent.machines, &sent.name, &payload, &dedup, &INBOX_MAX];
    answer(&ride(tx, target, &SIGNAL, params).await?)
}

/// Whom to cancel.
#[derive(Debug, Clone)]
pub(crate) struct Whom {
    pub(crate) id: Option<i64>,
    pub(crate) tenant: String,
    pub(crate) key: Option<String>,
    pub(crate) machines: Option<Vec<&'static str>>,
}

/// End an instance, and with `subtree` all that lives below it.
pub(crate) async fn cancel(connection: &Connection, whom: &Whom, reason: &str, subtree: bool) -> Result<Answer, Fault> {
    let params: &[Param<'_>] = &[&whom.id, &whom.tenant, &whom.key, &whom.machines, &reason, &subtree];
    answer(&connection.query(&CANCEL, params).await?)
}
