//! Delivers signals to instances and cancels instances.

use jiff::Timestamp;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{Fields, named, only, unexpected},
    sql,
    target::Target,
    tx::{Session, query_in},
};
use crate::{model::signal::SignalRow, new_instance::New};

sql!(prepared SIGNAL_WITHIN, "signal_within.sql", [INT8, TEXT, TEXT, TEXT_ARRAY, TEXT, TEXT, TEXT, INT4]);
sql!(bounded SIGNAL, "signal.sql", [INT8, TEXT, TEXT, TEXT_ARRAY, TEXT, TEXT, TEXT, INT4, TEXT]);
sql!(prepared SIGNAL_ALL, "signal_all.sql", [TEXT, INT4]);
sql!(prepared SIGNAL_OR_START, "signal_or_start.sql", [TEXT, TEXT, TEXT, TEXT, TEXT_ARRAY, INT4]);
sql!(CANCEL, "cancel.sql", [INT8, TEXT, TEXT, TEXT_ARRAY, TEXT]);
sql!(
    CANCEL_BELOW,
    "cancel_below.sql",
    [INT8_ARRAY, INT4, INT8, INT4, TEXT, TEXT]
);
sql!(HOLDER, "holder.sql", [TEXT, TEXT]);

/// While a caller cancels a subtree of instances, one statement reads at most this many children,
/// and cancels those children that have not settled.
const TREE_PAGE: i32 = 1_000;
/// While a caller cancels a subtree of instances, one statement reads the children of at most this
/// many parents.
const TREE_PARENTS_MAX: usize = 1_000;
/// The longest time that the statement which cancels one page of a subtree waits for the row of a
/// child that another transaction has locked.
const TREE_LOCK_TIMEOUT: &str = "1s";
/// How often `cancel_below` tries one page of a subtree again before the call fails.
const TREE_TRIES_MAX: u32 = 4;

/// The largest number of unconsumed signals of an instance.
pub(crate) const INBOX_MAX: i32 = 1_000;
/// The largest number of payload bytes of an instance's unconsumed signals: `_inbox_bytes_max()` of
/// the schema.
pub(crate) const INBOX_BYTES_MAX: i64 = 8 * 1024 * 1024;

/// The outcome of a signal to an instance or of a cancel of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Duplicate,
    TooLate,
    NoTarget,
    InboxFull,
}

pub(super) fn answer(rows: &[impl Fields]) -> Result<Answer, Fault> {
    parse_answer(rows.first().map_or(Ok(""), only)?)
}

fn parse_answer(text: &str) -> Result<Answer, Fault> {
    Ok(match text {
        "delivered" | "cancelled" => Answer::Done,
        "duplicate" => Answer::Duplicate,
        "too_late" => Answer::TooLate,
        "no_target" => Answer::NoTarget,
        "inbox_full" => Answer::InboxFull,
        other => return Err(unexpected(other)),
    })
}

/// Returns the parameters of the statements that deliver one signal.
fn signal_params<'a>(sent: &'a SignalRow, payload: &'a &'a str) -> [Param<'a>; 8] {
    [
        &sent.id,
        &sent.tenant,
        &sent.key,
        &sent.machines,
        &sent.name,
        payload,
        &sent.dedup,
        &INBOX_MAX,
    ]
}

/// Delivers a signal to one instance in one statement.
pub(crate) async fn deliver(connection: &Connection, sent: &SignalRow) -> Result<Answer, Fault> {
    let payload = sent.payload.get();
    let params = signal_params(sent, &payload);
    answer(&connection.act(&SIGNAL, &params).await?)
}

/// Delivers a signal in the caller's transaction: the target receives the signal if and only if
/// that transaction commits.
pub(crate) async fn deliver_within<T: Session>(
    tx: &mut T,
    target: &Target,
    sent: &SignalRow,
) -> Result<Answer, Fault> {
    let payload = sent.payload.get();
    let params = signal_params(sent, &payload);
    answer(&query_in(tx, target, &SIGNAL_WITHIN, &params).await?)
}

/// Delivers signals to instances in one statement. Returns the outcome of each signal, in the order
/// of the signals.
pub(crate) async fn deliver_all(
    connection: &Connection,
    signals: &[SignalRow],
) -> Result<Vec<Answer>, Fault> {
    answers(
        &connection
            .act(&SIGNAL_ALL, &[&document(signals), &INBOX_MAX])
            .await?,
    )
}

/// Delivers signals to instances in the caller's transaction.
pub(crate) async fn deliver_all_within<T: Session>(
    tx: &mut T,
    target: &Target,
    signals: &[SignalRow],
) -> Result<Vec<Answer>, Fault> {
    answers(&query_in(tx, target, &SIGNAL_ALL, &[&document(signals), &INBOX_MAX]).await?)
}

fn document(signals: &[SignalRow]) -> String {
    serde_json::to_string(signals).unwrap_or_default()
}

fn answers(rows: &[impl Fields]) -> Result<Vec<Answer>, Fault> {
    rows.iter()
        .map(|row| parse_answer(named(row, "answer")?))
        .collect()
}

/// The outcome of a signal that may start its target, and the id of the instance that received the
/// signal.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) answer: Answer,
    pub(crate) id: i64,
    pub(crate) started: bool,
    pub(crate) eligible_at: Timestamp,
}

/// Returns the parameters of the statement that delivers a signal or starts an instance.
fn start_params<'a>(
    start: &'a String,
    sent: &'a SignalRow,
    payload: &'a &'a str,
) -> [Param<'a>; 6] {
    [
        start,
        &sent.name,
        payload,
        &sent.dedup,
        &sent.machines,
        &INBOX_MAX,
    ]
}

/// Delivers a signal to the instance that holds the key. If no instance holds the key, inserts the
/// given instance with the signal in its inbox. One statement does both.
pub(crate) async fn signal_or_start(
    connection: &Connection,
    start: &New,
    sent: &SignalRow,
) -> Result<Holder, Fault> {
    let (start, payload) = (
        serde_json::to_string(start).unwrap_or_default(),
        sent.payload.get(),
    );
    let params = start_params(&start, sent, &payload);
    holder(&connection.act(&SIGNAL_OR_START, &params).await?)
}

/// Delivers the signal or inserts the instance as [`signal_or_start`] does, in the caller's
/// transaction.
pub(crate) async fn signal_or_start_within<T: Session>(
    tx: &mut T,
    target: &Target,
    start: &New,
    sent: &SignalRow,
) -> Result<Holder, Fault> {
    let (start, payload) = (
        serde_json::to_string(start).unwrap_or_default(),
        sent.payload.get(),
    );
    let params = start_params(&start, sent, &payload);
    holder(&query_in(tx, target, &SIGNAL_OR_START, &params).await?)
}

fn holder(rows: &[impl Fields]) -> Result<Holder, Fault> {
    let row = rows.first().ok_or_else(Fault::no_row)?;
    Ok(Holder {
        answer: parse_answer(named(row, "answer")?)?,
        id: named(row, "id")?,
        started: named(row, "is_new")?,
        eligible_at: named(row, "eligible_at")?,
    })
}

/// The id, or the tenant and key, of the instance that a caller cancels or sends a signal to.
#[derive(Debug, Clone)]
pub(crate) struct SignalTarget {
    pub(crate) id: Option<i64>,
    pub(crate) tenant: String,
    pub(crate) key: Option<String>,
    pub(crate) machines: Option<Vec<&'static str>>,
}

/// Cancels an instance, and with `subtree` all its descendants that have not settled.
///
/// The function cancels a tree from the top, page by page, and each page is a transaction. A
/// settled parent spawns no more children, so the function ends. If the caller is interrupted, the
/// instances that it has cancelled stay cancelled, and another call with the same arguments cancels
/// the rest.
pub(crate) async fn cancel(
    connection: &Connection,
    whom: &SignalTarget,
    reason: &str,
    subtree: bool,
) -> Result<Answer, Fault> {
    if !subtree {
        let params: &[Param<'_>] = &[&whom.id, &whom.tenant, &whom.key, &whom.machines, &reason];
        return answer(&connection.act(&CANCEL, params).await?);
    }
    // This code addresses the tree by the id of its root and not by the key, because a settled
    // instance may have lost its key.
    let id = match (whom.id, &whom.key) {
        (Some(id), _) => id,
        (None, key) => match connection
            .query(&HOLDER, &[&whom.tenant, key])
            .await?
            .first()
        {
            Some(row) => only(row)?,
            None => return Ok(Answer::NoTarget),
        },
    };
    let params: &[Param<'_>] = &[
        &Some(id),
        &whom.tenant,
        &None::<&str>,
        &whom.machines,
        &reason,
    ];
    let answer = answer(&connection.act(&CANCEL, params).await?)?;
    if answer != Answer::NoTarget {
        cancel_below(connection, id, reason).await?;
    }
    Ok(answer)
}

/// A position in the list of a parent's children: the number of the spawn, and the id of the child.
/// `None`: the position is among the children that no spawn counts.
type ChildCursor = (Option<i32>, i64);
const FIRST_CHILD: ChildCursor = (Some(0), 0);

/// Cancels every descendant of a settled instance that has not settled itself.
async fn cancel_below(connection: &Connection, root: i64, reason: &str) -> Result<(), Fault> {
    // The parents of which `cancel_below` still has to read the children. It reads the parents that
    // it added last first, so that the list holds only a few pages for each level of the tree.
    let mut parents: Vec<(i64, ChildCursor)> = vec![(root, FIRST_CHILD)];
    let mut tries = 0;
    while let Some((first, cursor)) = parents.pop() {
        let mut asked = vec![first];
        while asked.len() < TREE_PARENTS_MAX
            && let Some((parent, _)) = parents.pop_if(|(_, cursor)| *cursor == FIRST_CHILD)
        {
            asked.push(parent);
        }
        let params: &[Param<'_>] = &[
            &asked,
            &cursor.0,
            &cursor.1,
            &TREE_PAGE,
            &reason,
            &TREE_LOCK_TIMEOUT,
        ];
        let (read, cursor, children) = match connection.query(&CANCEL_BELOW, params).await {
            Ok(rows) => {
                tries = 0;
                let Some(row) = rows.first() else {
                    return Ok(());
                };
                let read = usize::try_from(named::<i32>(row, "parents_read")?).unwrap_or_default();
                (
                    read,
                    (named(row, "next_generation")?, named(row, "next_after")?),
                    named::<Vec<i64>>(row, "children")?,
                )
            }
            // Another transaction has locked a row of this page of children, so this code tries the
            // page again.
            Err(Fault::Busy(_)) if tries < TREE_TRIES_MAX => {
                tries += 1;
                (0, cursor, Vec::new())
            }
            Err(fault) => return Err(fault),
        };
        let left: Vec<i64> = asked.into_iter().skip(read).collect();
        parents.extend(
            left.iter()
                .skip(1)
                .rev()
                .map(|parent| (*parent, FIRST_CHILD)),
        );
        parents.extend(left.first().map(|parent| (*parent, cursor)));
        parents.extend(children.into_iter().map(|child| (child, FIRST_CHILD)));
    }
    Ok(())
}
