//! Delivers signals to instances and cancels instances.

use jiff::Timestamp;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{Fields, column},
    sql,
    target::Target,
    tx::{Transaction, query_in},
};
use crate::{new_instance::New, send_signal::SignalRow};

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

/// While a subtree is cancelled, one statement reads at most this many children, and cancels the
/// live ones among them.
const TREE_PAGE: i32 = 1_000;
/// While a subtree is cancelled, one statement reads the children of at most this many parents.
const TREE_PARENTS_MAX: usize = 1_000;
/// The longest time that one page of a cancelled subtree waits for a row that another transaction
/// has locked.
const TREE_LOCK_TIMEOUT: &str = "1s";
/// How often a page of a cancelled subtree is tried again before the call fails.
const TREE_TRIES_MAX: u32 = 4;

/// The largest number of unconsumed signals of an instance.
pub(crate) const INBOX_MAX: i32 = 1_000;
/// The largest number of payload bytes of an instance's unconsumed signals: `_inbox_bytes_max()` of
/// the schema.
pub(crate) const INBOX_BYTES_MAX: i64 = 8 * 1024 * 1024;

/// The result of an operation on an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Duplicate,
    TooLate,
    NoTarget,
    InboxFull,
}

pub(super) fn answer(rows: &[impl Fields]) -> Result<Answer, Fault> {
    parse_answer(&match rows.first() {
        Some(row) => column(row, 0)?,
        None => String::new(),
    })
}

fn parse_answer(text: &str) -> Result<Answer, Fault> {
    Ok(match text {
        "delivered" | "cancelled" => Answer::Done,
        "duplicate" => Answer::Duplicate,
        "too_late" => Answer::TooLate,
        "no_target" => Answer::NoTarget,
        "inbox_full" => Answer::InboxFull,
        other => {
            return Err(Fault::Refused {
                code: None,
                message: format!("unexpected result from the database: {other:?}"),
            });
        }
    })
}

/// Delivers a signal in one statement.
pub(crate) async fn deliver(connection: &Connection, sent: &SignalRow) -> Result<Answer, Fault> {
    let payload = sent.payload.get();
    let params: &[Param<'_>] = &[
        &sent.id,
        &sent.tenant,
        &sent.key,
        &sent.machines,
        &sent.name,
        &payload,
        &sent.dedup,
        &INBOX_MAX,
    ];
    answer(&connection.act(&SIGNAL, params).await?)
}

/// Delivers a signal in the caller's transaction: the signal is delivered if and only if that
/// transaction commits.
pub(crate) async fn deliver_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    sent: &SignalRow,
) -> Result<Answer, Fault> {
    let payload = sent.payload.get();
    let params: &[Param<'_>] = &[
        &sent.id,
        &sent.tenant,
        &sent.key,
        &sent.machines,
        &sent.name,
        &payload,
        &sent.dedup,
        &INBOX_MAX,
    ];
    answer(&query_in(tx, target, &SIGNAL_WITHIN, params).await?)
}

/// Delivers signals in one statement. Returns the result of each, in their order.
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

/// Delivers signals in the caller's transaction.
pub(crate) async fn deliver_all_within<T: Transaction>(
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
        .map(|row| parse_answer(column(row, 1)?))
        .collect()
}

/// The result of a signal that may start its target, and the instance that received it.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) answer: Answer,
    pub(crate) id: i64,
    pub(crate) started: bool,
    pub(crate) eligible_at: Timestamp,
}

/// Delivers a signal to the instance that holds the key. If no instance holds it, inserts the given
/// instance with the signal in its inbox. One statement does both.
pub(crate) async fn signal_or_start(
    connection: &Connection,
    start: &New,
    sent: &SignalRow,
) -> Result<Holder, Fault> {
    let (start, payload) = (
        serde_json::to_string(start).unwrap_or_default(),
        sent.payload.get(),
    );
    let params: &[Param<'_>] = &[
        &start,
        &sent.name,
        &payload,
        &sent.dedup,
        &sent.machines,
        &INBOX_MAX,
    ];
    holder(&connection.act(&SIGNAL_OR_START, params).await?)
}

/// Delivers the signal or inserts the instance as [`signal_or_start`] does, in the caller's
/// transaction.
pub(crate) async fn signal_or_start_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    start: &New,
    sent: &SignalRow,
) -> Result<Holder, Fault> {
    let (start, payload) = (
        serde_json::to_string(start).unwrap_or_default(),
        sent.payload.get(),
    );
    let params: &[Param<'_>] = &[
        &start,
        &sent.name,
        &payload,
        &sent.dedup,
        &sent.machines,
        &INBOX_MAX,
    ];
    holder(&query_in(tx, target, &SIGNAL_OR_START, params).await?)
}

fn holder(rows: &[impl Fields]) -> Result<Holder, Fault> {
    let Some(row) = rows.first() else {
        return Err(Fault::Refused {
            code: None,
            message: "the database returned no row for a signal".into(),
        });
    };
    let (id, started, eligible_at) = (column(row, 1)?, column(row, 2)?, column(row, 3)?);
    Ok(Holder {
        answer: parse_answer(column(row, 0)?)?,
        id,
        started,
        eligible_at,
    })
}

/// The address of an instance to cancel.
#[derive(Debug, Clone)]
pub(crate) struct SignalTarget {
    pub(crate) id: Option<i64>,
    pub(crate) tenant: String,
    pub(crate) key: Option<String>,
    pub(crate) machines: Option<Vec<&'static str>>,
}

/// Cancels an instance, and with `subtree` also all its live descendants.
///
/// The function cancels a tree from the top, page by page, and each page is a transaction. A
/// settled parent spawns no more children, so the function ends. If it is interrupted, the
/// instances that are cancelled already stay cancelled, and another call with the same arguments
/// cancels the rest.
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
    // The tree is addressed by the id of its root and not by the key, because a settled instance
    // may have lost its key.
    let id = match (whom.id, &whom.key) {
        (Some(id), _) => id,
        (None, key) => match connection
            .query(&HOLDER, &[&whom.tenant, key])
            .await?
            .first()
        {
            Some(row) => column(row, 0)?,
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
/// `None`: the position is among the children that are not counted for a spawn.
type Cursor = (Option<i32>, i64);
const FIRST_CHILD: Cursor = (Some(0), 0);

/// Cancels every live descendant of an instance that has settled.
async fn cancel_below(connection: &Connection, root: i64, reason: &str) -> Result<(), Fault> {
    // The parents for which the children are still to be read. The parents that were added last are
    // read first, so that the list holds only a few pages for each level of the tree.
    let mut parents: Vec<(i64, Cursor)> = vec![(root, FIRST_CHILD)];
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
                let read = usize::try_from(column::<i32>(row, 1)?).unwrap_or_default();
                (
                    read,
                    (column(row, 2)?, column(row, 3)?),
                    column::<Vec<i64>>(row, 0)?,
                )
            }
            // Another transaction has locked a row of this page of children, so the page is tried
            // again.
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
