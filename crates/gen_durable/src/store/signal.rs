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

/// So many children are read, and at most cancelled, in one statement of a tree's cancel…
const TREE_PAGE: i32 = 1_000;
/// …of at most so many parents.
const TREE_PARENTS_MAX: usize = 1_000;
/// A page waits for a row that another transaction holds for at most this long…
const TREE_LOCK_TIMEOUT: &str = "1s";
/// …and is tried again so often before the call gives up.
const TREE_TRIES_MAX: u32 = 4;

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
        other => {
            return Err(Fault::Refused {
                code: None,
                message: format!("an unexpected answer: {other:?}"),
            });
        }
    })
}

/// Deliver a letter: one statement.
pub(crate) async fn deliver(connection: &Connection, sent: &Sent) -> Result<Answer, Fault> {
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

/// The same in the caller's transaction: it is delivered if and only if that commits.
pub(crate) async fn deliver_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    sent: &Sent,
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
    answer(&ride(tx, target, &SIGNAL_WITHIN, params).await?)
}

/// Deliver letters: one statement. Answers what became of each, in their order.
pub(crate) async fn deliver_all(
    connection: &Connection,
    letters: &[Sent],
) -> Result<Vec<Answer>, Fault> {
    answers(
        &connection
            .act(&SIGNAL_ALL, &[&document(letters), &INBOX_MAX])
            .await?,
    )
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
pub(crate) async fn signal_or_start(
    connection: &Connection,
    start: &New,
    sent: &Sent,
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

/// The same in the caller's transaction.
pub(crate) async fn signal_or_start_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    start: &New,
    sent: &Sent,
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
    holder(&ride(tx, target, &SIGNAL_OR_START, params).await?)
}

fn holder(rows: &[impl Fields]) -> Result<Holder, Fault> {
    let Some(row) = rows.first() else {
        return Err(Fault::Refused {
            code: None,
            message: "a signal was answered with nothing".into(),
        });
    };
    let (id, started, eligible_at) = (column(row, 1)?, column(row, 2)?, column(row, 3)?);
    Ok(Holder {
        answer: word(column(row, 0)?)?,
        id,
        started,
        eligible_at,
    })
}

/// Whom to cancel.
#[derive(Debug, Clone)]
pub(crate) struct Whom {
    pub(crate) id: Option<i64>,
    pub(crate) tenant: String,
    pub(crate) key: Option<String>,
    pub(crate) machines: Option<Vec<&'static str>>,
}

/// Cancels an instance, and with `subtree` every live instance below it.
///
/// A tree is cancelled from above, page by page, each page a transaction: a settled parent spawns nothing more, so the walk ends. If it
/// is interrupted, what was cancelled stays cancelled, and the same call goes on with the rest.
pub(crate) async fn cancel(
    connection: &Connection,
    whom: &Whom,
    reason: &str,
    subtree: bool,
) -> Result<Answer, Fault> {
    if !subtree {
        let params: &[Param<'_>] = &[&whom.id, &whom.tenant, &whom.key, &whom.machines, &reason];
        return answer(&connection.act(&CANCEL, params).await?);
    }
    // By its id: a settled instance may have lost its key.
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

/// Where the reading of a parent's children goes on: generation and id. `None`: among those without a generation.
type Cursor = (Option<i32>, i64);
const FIRST_CHILD: Cursor = (Some(0), 0);

/// Cancels every live instance below one that has settled.
async fn cancel_below(connection: &Connection, root: i64, reason: &str) -> Result<(), Fault> {
    // Instances whose children are still to be read. The last ones first, so that it holds a few pages for each level of the tree.
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
            // Another transaction holds a row of this page: the page is redone.
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
