//! Write what steps decided: a batch of endings, guarded by their claims.

use std::collections::{HashMap, HashSet};

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{Claim, column, unless_all},
    sql,
    target::Target,
    tx::{Tx, ride},
};
use crate::id::Status;

sql!(prepared SETTLE, "settle.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT
]);
sql!(LOCK, "lock.sql", [INT8_ARRAY]);
sql!(RESOLVE, "resolve.sql", [INT8_ARRAY]);

/// A batch never waits longer than this for a lock that somebody else's transaction holds: well below Postgres's
/// deadlock_timeout (1 s), and about as long as a few commits.
const BATCH_LOCK_TIMEOUT: &str = "20ms";

/// The rise of an ending that enters a step.
pub(crate) const ENTERS: i32 = -1;

/// How a step ended, as the row will say it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ending {
    pub(crate) claim: Claim,
    pub(crate) status: Status,
    /// Written together with an upgraded state.
    pub(crate) version: Option<i32>,
    /// The step to write, if it changes.
    pub(crate) step: Option<String>,
    pub(crate) data: Option<String>,
    /// `None`: unchanged.
    pub(crate) state: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    /// What the attempts rise by; [`ENTERS`]: a step is entered, and they begin anew.
    pub(crate) rise: i32,
    pub(crate) delay_seconds: f64,
}

impl Ending {
    /// About how much it weighs in a statement.
    pub(crate) fn bytes(&self) -> usize {
        [&self.data, &self.state, &self.result, &self.error].into_iter().flatten().map(String::len).sum()
    }
}

/// The arrays of a batch, in the order of ids: the order in which it takes its locks.
struct Columns<'a> {
    ids: Vec<i64>,
    epochs: Vec<i64>,
    seqs: Vec<i64>,
    statuses: Vec<&'static str>,
    versions: Vec<Option<i32>>,
    steps: Vec<Option<&'a str>>,
    data: Vec<Option<&'a str>>,
    states: Vec<Option<&'a str>>,
    results: Vec<Option<&'a str>>,
    errors: Vec<Option<&'a str>>,
    rises: Vec<i32>,
    delays: Vec<f64>,
    lock_timeout: Option<&'static str>,
}

impl<'a> Columns<'a> {
    fn of(endings: impl IntoIterator<Item = &'a Ending>, lock_timeout: Option<&'static str>) -> Columns<'a> {
        let mut sorted: Vec<&Ending> = endings.into_iter().collect();
        sorted.sort_unstable_by_key(|ending| ending.claim.id);
        Columns {
            ids: sorted.iter().map(|e| e.claim.id).collect(),
            epochs: sorted.iter().map(|e| e.claim.epoch).collect(),
            seqs: sorted.iter().map(|e| e.claim.seq).collect(),
            statuses: sorted.iter().map(|e| e.status.name()).collect(),
            versions: unless_all(None, sorted.iter().map(|e| e.version)),
            steps: unless_all(None, sorted.iter().map(|e| e.step.as_deref())),
            data: unless_all(None, sorted.iter().map(|e| e.data.as_deref())),
            states: unless_all(None, sorted.iter().map(|e| e.state.as_deref())),
            results: unless_all(None, sorted.iter().map(|e| e.result.as_deref())),
            errors: unless_all(None, sorted.iter().map(|e| e.error.as_deref())),
            rises: unless_all(0, sorted.iter().map(|e| e.rise)),
            delays: unless_all(0.0, sorted.iter().map(|e| e.delay_seconds)),
            lock_timeout,
        }
    }

    fn params(&self) -> [Param<'_>; 13] {
        [
            &self.ids,
            &self.epochs,
            &self.seqs,
            &self.statuses,
            &self.versions,
            &self.steps,
            &self.data,
            &self.states,
            &self.results,
            &self.errors,
            &self.rises,
            &self.delays,
            &self.lock_timeout,
        ]
    }
}

/// The whole batch in one statement, which is one transaction. It waits a moment for locks, then gives up as `Busy`.
/// Answers the ids that were written; the others had another owner.
pub(crate) async fn settle<'a>(
    connection: &Connection,
    endings: impl IntoIterator<Item = &'a Ending>,
) -> Result<HashSet<i64>, Fault> {
    let columns = Columns::of(endings, Some(BATCH_LOCK_TIMEOUT));
    written(&connection.query(&SETTLE, &columns.params()).await?)
}

/// Which of these rows nobody else has locked. Locked by us until the open transaction ends.
pub(crate) async fn lock_free(connection: &Connection, ids: &[i64]) -> Result<HashSet<i64>, Fault> {
    written(&connection.query(&LOCK, &[&ids]).await?)
}

/// One ending inside the step's own transaction. `false`: the claim was lost, and the transaction must not commit.
pub(crate) async fn settle_within(tx: &mut Tx, target: &Target, ending: &Ending) -> Result<bool, Fault> {
    let columns = Columns::of([ending], None);
    Ok(!ride(tx, target, &SETTLE, &columns.params()).await?.is_empty())
}

/// What became of a claim whose commit was sent and never answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// It was committed.
    Committed,
    /// It was not, and the claim is still ours: send it again.
    Ours,
    /// It was not, and the row has another owner (or is gone).
    Stale,
    /// Somebody holds the row, perhaps the very backend that we lost: ask again.
    Held,
}

/// Ask what became of commits whose answer was lost. It waits for nobody: a row that is locked is answered as `Held`.
pub(crate) async fn resolve(connection: &Connection, claims: &[Claim]) -> Result<Vec<Resolved>, Fault> {
    let ids: Vec<i64> = claims.iter().map(|claim| claim.id).collect();
    let rows = connection.query(&RESOLVE, &[&ids]).await?;
    let found = rows
        .iter()
        .map(|row| Ok((column(row, 0)?, (column(row, 1)?, column(row, 2)?))))
        .collect::<Result<HashMap<i64, (Option<i64>, Option<i64>)>, Fault>>()?;
    Ok(claims
        .iter()
        .map(|claim| match found.get(&claim.id) {
            None => Resolved::Stale,
            Some((Some(epoch), Some(seq))) if (*epoch, *seq) == (claim.epoch, claim.seq) => Resolved::Ours,
            // Only the owner of the claim can have raised step_seq at this epoch, or left it with the next one.
            Some((Some(epoch), Some(seq))) if *seq == claim.seq + 1 && *epoch - claim.epoch <= 1 => Resolved::Committed,
            Some((Some(_), Some(_))) => Resolved::Stale,
            Some(_) => Resolved::Held,
        })
        .collect())
}

fn written(rows: &[Row]) -> Result<HashSet<i64>, Fault> {
    rows.iter().map(|row| column(row, 0)).collect()
}
