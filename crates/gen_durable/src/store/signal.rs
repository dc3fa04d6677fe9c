//! Acts on other instances: deliver a letter, cancel.

use jiff::Timestamp;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{Fields, column},
    sql,
    target::Target,
    tx::{Transaction, ride},
};
use crate::{birth::New, letter::Sent};

sql!(prepared SIGNAL, "signal.sql", [INT8, TEXT, TEXT, TEXT_ARRAY, TEXT, TEXT, TEXT, INT4]);
sql!(prepared SIGNAL_ALL, "signal_all.sql", [TEXT, INT4]);
sql!(prepared SIGNAL_OR_START, "signal_or_start.sql", [TEXT, TEXT, TEXT, TEXT, TEXT_ARRAY, INT4]);
sql!(CANCEL, "cancel.sql", [INT8, TEXT, TEXT, TEXT_ARRAY, TEXT, BOOL]);

/// The most letters that an instance may have waiting.
pub(crate) const INBOX_MAX: i32 = 1_000;
/// The most bytes of payload that an instance may have waiting: `inbox_bytes_max()` of the schema.
pub(crate) const INBOX_BYTES_MAX: i64 = 8 * 1024 * 1024;

/// What came of an act on an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Duplicate,
    TooLate,
    NoTarget,
    InboxFull,
}

pub(super) fn answer(rows: &[impl Fields]) -> Result<Answer, Fault> {
    word(&match rows.first() {
        Some(row) => column(row, 0)?,
        None => String::new(),
    })
}

fn word(word: &str) -> Result<Answer, Fault> {
    Ok(match word {
        "delivered" | "cancelled" => Answer::Done,
        "duplicate" => Answer::Duplicate,
        "too_late" => Answer::TooLate,
        "no_target" => Answer::NoTarget,
        "inbox_full" => Answer::InboxFull,
        other => return Err(Fault::Refused { code: None, message: format!("an unexpected answer: {other:?}") }),
    })
}

/// Deliver a letter: one statement.
pub(crate) async fn deliver(connection: &Connection, sent: &Sent) -> Result<Answer, Fault> {
    let payload = sent.payload.get();
    let params: &[Param<'_>] =
        &[&sent.id, &sent.tenant, &sent.key, &sent.machines, &sent.name, &payload, &sent.dedup, &INBOX_MAX];
    answer(&connection.act(&SIGNAL, params).await?)
}

/// The same in the caller's transaction: it is delivered if and only if that commits.
pub(crate) async fn deliver_within<T: Transaction>(tx: &mut T, target: &Target, sent: &Sent) -> Result<Answer, Fault> {
    let payload = sent.payload.get();
    let params: &[Param<'_>] =
        &[&sent.id, &sent.tenant, &sent.key, &sent.machines, &sent.name, &payload, &sent.dedup, &INBOX_MAX];
    answer(&ride(tx, target, &SIGNAL, params).await?)
}

/// Deliver letters: one statement. Answers what became of each, in their order.
pub(crate) async fn deliver_all(connection: &Connection, letters: &[Sent]) -> Result<Vec<Answer>, Fault> {
    answers(&connection.act(&SIGNAL_ALL, &[&document(letters), &INBOX_MAX]).await?)
}

/// The same in the caller's transaction.
pub(crate) async fn deliver_all_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    letters: &[Sent],
) -> Result<Vec<Answer>, Fault> {
    answers(&ride(tx, target, &SIGNAL_ALL, &[&document(letters), &INBOX_MAX]).await?)
}

fn document(letters: &[Sent]) -> String {
    serde_json::to_string(letters).unwrap_or_default()
}

fn answers(rows: &[impl Fields]) -> Result<Vec<Answer>, Fault> {
    rows.iter().map(|row| word(column(row, 1)?)).collect()
}

/// What became of a letter that may start its target, and who has it.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) answer: Answer,
    pub(crate) id: i64,
    pub(crate) started: bool,
    pub(crate) eligible_at: Timestamp,
}

/// Tell whoever holds the key, or start this instance with the letter in its inbox: one statement.
pub(crate) async fn signal_or_start(connection: &Connection, start: &New, sent: &Sent) -> Result<Holder, Fault> {
    let (start, payload) = (serde_json::to_string(start).unwrap_or_default(), sent.payload.get());
    let params: &[Param<'_>] = &[&start, &sent.name, &payload, &sent.dedup, &sent.machines, &INBOX_MAX];
    holder(&connection.act(&SIGNAL_OR_START, params).await?)
}

/// The same in the caller's transaction.
pub(crate) async fn signal_or_start_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    start: &New,
    sent: &Sent,
) -> Result<Holder, Fault> {
    let (start, payload) = (serde_json::to_string(start).unwrap_or_default(), sent.payload.get());
    let params: &[Param<'_>] = &[&start, &sent.name, &payload, &sent.dedup, &sent.machines, &INBOX_MAX];
    holder(&ride(tx, target, &SIGNAL_OR_START, params).await?)
}

fn holder(rows: &[impl Fields]) -> Result<Holder, Fault> {
    let Some(row) = rows.first() else {
        return Err(Fault::Refused { code: None, message: "a signal was answered with nothing".into() });
    };
    let (id, started, eligible_at) = (column(row, 1)?, column(row, 2)?, column(row, 3)?);
    Ok(Holder { answer: word(column(row, 0)?)?, id, started, eligible_at })
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
    // A subtree may be large: its caller has a connection to itself.
    let cancelled =
        if subtree { connection.act_alone(&CANCEL, params).await } else { connection.act(&CANCEL, params).await };
    answer(&cancelled?)
}
