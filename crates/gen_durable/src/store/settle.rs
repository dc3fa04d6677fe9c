//! Write what steps decided: a batch of endings, guarded by their claims.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::{
    Sql,
    connection::{Connection, Param},
    fault::Fault,
    pick::claimed,
    row::{Claim, Claimed, Fields, column, unless_all},
    sql,
    target::Target,
    tx::{Transaction, ride},
};
use crate::{birth::New, event::Fact, id::Status, letter::Sent, story::Tale};

sql!(prepared SETTLE, "settle.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT
]);
sql!(prepared SETTLE_KEYED, "settle_keyed.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT, INT8_ARRAY, INT8_ARRAY, TEXT, FLOAT8, TEXT_ARRAY
]);
sql!(prepared SETTLE_TOLD, "settle_told.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT,
    TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, FLOAT4_ARRAY, TEXT_ARRAY, TEXT
]);
sql!(prepared SETTLE_KEYED_TOLD, "settle_keyed_told.sql", [
    INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
    TEXT_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT,
    TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, FLOAT4_ARRAY, TEXT_ARRAY, TEXT, INT8_ARRAY, INT8_ARRAY, TEXT, FLOAT8,
    TEXT_ARRAY
]);
sql!(prepared CONCLUDE, "conclude.sql", [TEXT, TEXT]);
sql!(
    SETTLE_WITHIN,
    "settle_within.sql",
    [
        INT8_ARRAY,
        INT8_ARRAY,
        INT8_ARRAY,
        TEXT_ARRAY,
        INT4_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        TEXT_ARRAY,
        INT4_ARRAY,
        FLOAT8_ARRAY,
        TEXT,
        TEXT
    ]
);
sql!(CONCLUDE_WITHIN, "conclude_within.sql", [TEXT, TEXT]);
sql!(LOCK, "lock.sql", [INT8_ARRAY]);
sql!(WARM, "warm.sql", []);

/// A batch never waits longer than this for a lock that somebody else's transaction holds: well below Postgres's
/// deadlock_timeout (1 s), and about as long as a few commits.
pub(crate) const BATCH_LOCK_TIMEOUT: &str = "20ms";
/// A part of a batch in which something is known to be locked waits no longer than this.
pub(crate) const HALVED_LOCK_TIMEOUT: &str = "2ms";

/// The rise of an ending that enters a step.
pub(crate) const ENTERS: i32 = -1;

/// How a step ended, as the row will say it.
#[derive(Debug, Clone)]
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
    /// It stands in a lane or under a partition key: its end lets somebody else go on.
    pub(crate) keyed: bool,
    /// Who is next there may follow with the same commit.
    pub(crate) takes: bool,
    /// It stood in a lane that its worker leads.
    pub(crate) led: bool,
    /// What it does besides ending.
    pub(crate) more: Option<Box<More>>,
    /// What is told of it.
    pub(crate) tale: Option<Box<Tale>>,
}

/// What an ending may do besides: wait, spawn, consume letters, carry riders. In the words of `gen_durable.conclude`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct More {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) awaits: Option<Vec<&'static str>>,
    /// Letters that the step has already seen: they do not wake it again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) seen: Vec<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) consumed: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<Deadline>,
    /// A sleep until a date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    /// Timers that are armed beside the wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) repeats: Vec<Repeat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spawn: Option<Spawn>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) births: Vec<New>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) letters: Vec<Sent>,
    /// Facts for the log, recorded last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<Fact>,
    /// Its parent, whose row the end of a child touches.
    #[serde(rename = "child", skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<i64>,
}

impl More {
    fn bytes(&self) -> usize {
        let born = self
            .spawn
            .iter()
            .flat_map(|spawn| &spawn.children)
            .chain(&self.births);
        let born: usize = born.map(|new| new.state.get().len()).sum();
        let repeated: usize = self
            .repeats
            .iter()
            .map(|repeat| repeat.birth.state.get().len())
            .sum();
        let recorded: usize = self
            .events
            .iter()
            .map(|event| event.payload.get().len())
            .sum();
        let told: usize = self
            .letters
            .iter()
            .map(|letter| letter.payload.get().len())
            .sum();
        born + repeated + recorded + told
    }

    /// Whether there is anything besides the ending.
    pub(crate) fn is_nothing(&self) -> bool {
        self.awaits.is_none()
            && self.at.is_none()
            && self.spawn.is_none()
            && self.consumed.is_empty()
            && self.births.is_empty()
            && self.letters.is_empty()
            && self.events.is_empty()
            && self.parent.is_none()
    }
}

/// When a wait gives up, and where it goes then.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Deadline {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    pub(crate) step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<RawValue>>,
}

/// What is enqueued again and again beside a wait. In the words of `gen_durable.arm`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Repeat {
    pub(crate) due: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining: Option<u32>,
    pub(crate) anchor: Timestamp,
    pub(crate) cycle: String,
    pub(crate) missed: &'static str,
    pub(crate) birth: New,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Spawn {
    pub(crate) any: bool,
    pub(crate) taken: &'static str,
    pub(crate) children: Vec<New>,
}

/// What an instance that runs ahead finds: its letters and its children, as JSON.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    pub(crate) inbox: Option<String>,
    pub(crate) children: Option<String>,
}

/// What a commit came to.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The endings that were written, by id.
    pub(crate) found: HashMap<i64, Found>,
    /// Who follows in the stead of one of them: with its id.
    pub(crate) handed: Vec<(i64, Claimed)>,
}

/// Where the next in a lane or under a partition key goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taker<'a> {
    pub(crate) worker: &'a str,
    pub(crate) lease_seconds: f64,
    pub(crate) steps: &'a [String],
}

impl Taker<'_> {
    /// Nobody takes; who is next is left to the pickers.
    const NOBODY: Taker<'static> = Taker {
        worker: "00000000-0000-0000-0000-000000000000",
        lease_seconds: 0.0,
        steps: &[],
    };
}

/// An ending and all that it does, as JSON for `gen_durable.conclude`.
#[derive(Serialize)]
struct Conclusion<'a> {
    id: i64,
    epoch: i64,
    seq: i64,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    rise: i32,
    delay: f64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    keyed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    story: Option<&'a Tale>,
    #[serde(flatten)]
    more: Option<&'a More>,
}

/// The batch as one document. JSON that is not JSON is the fault of the ending that brought it.
fn document<'a>(endings: impl IntoIterator<Item = &'a Ending>) -> Result<String, Fault> {
    let raw = |text: &'a Option<String>| -> Result<Option<&'a RawValue>, serde_json::Error> {
        text.as_deref()
            .map(serde_json::from_str::<&'a RawValue>)
            .transpose()
    };
    let mut sorted: Vec<&Ending> = endings.into_iter().collect();
    sorted.sort_unstable_by_key(|ending| ending.claim.id);
    let conclusions = sorted.into_iter().map(|e| {
        Ok(Conclusion {
            id: e.claim.id,
            epoch: e.claim.epoch,
            seq: e.claim.seq,
            status: e.status.name(),
            version: e.version,
            step: e.step.as_deref(),
            data: raw(&e.data)?,
            state: raw(&e.state)?,
            result: raw(&e.result)?,
            error: e.error.as_deref(),
            rise: e.rise,
            delay: e.delay_seconds,
            keyed: e.keyed,
            story: e.tale.as_deref(),
            more: e.more.as_deref(),
        })
    });
    conclusions
        .collect::<Result<Vec<_>, serde_json::Error>>()
        .and_then(|conclusions| serde_json::to_string(&conclusions))
        .map_err(|error| Fault::unsendable(format!("an ending cannot be written: {error}")))
}

impl Ending {
    /// About how much it weighs in a statement.
    pub(crate) fn bytes(&self) -> usize {
        let own: usize = [&self.data, &self.state, &self.result, &self.error]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum();
        own + self.more.as_deref().map_or(0, More::bytes)
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
    fn of(
        endings: impl IntoIterator<Item = &'a Ending>,
        lock_timeout: Option<&'static str>,
    ) -> Columns<'a> {
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

/// What is told of a batch, in the same order. A batch of which nothing is told does without: it costs what it always did.
struct Told<'a> {
    froms: Vec<Option<&'a str>>,
    outcomes: Vec<Option<&'a str>>,
    attempts: Vec<i32>,
    took: Vec<f32>,
    failures: Vec<Option<&'a str>>,
    worker: &'a str,
}

impl<'a> Told<'a> {
    fn of(endings: &[&'a Ending]) -> Option<Told<'a>> {
        let worker = &endings
            .iter()
            .find_map(|ending| ending.tale.as_deref())?
            .worker;
        let mut sorted = endings.to_vec();
        sorted.sort_unstable_by_key(|ending| ending.claim.id);
        let tales = || sorted.iter().map(|ending| ending.tale.as_deref());
        Some(Told {
            froms: tales().map(|tale| tale?.from.as_deref()).collect(),
            outcomes: tales().map(|tale| Some(tale?.outcome)).collect(),
            attempts: unless_all(
                0,
                tales().map(|tale| {
                    tale.map_or(0, |tale| i32::try_from(tale.attempt).unwrap_or(i32::MAX))
                }),
            ),
            took: tales()
                .map(|tale| tale.map_or(0.0, |tale| tale.took))
                .collect(),
            failures: unless_all(None, tales().map(|tale| tale?.failure.as_deref())),
            worker,
        })
    }

    fn params<'b>(&'b self, columns: &'b Columns<'_>) -> Vec<Param<'b>> {
        let told: [Param<'b>; 6] = [
            &self.froms,
            &self.outcomes,
            &self.attempts,
            &self.took,
            &self.failures,
            &self.worker,
        ];
        columns.params().into_iter().chain(told).collect()
    }
}

/// Which of a batch let their own worker go on with who is next, and who that is.
struct Takes<'a> {
    taking: Vec<i64>,
    /// Those of them whose lane it does not lead yet.
    begins: Vec<i64>,
    taker: Taker<'a>,
}

impl Takes<'_> {
    fn statement<'b>(
        &'b self,
        columns: &'b Columns<'_>,
        told: Option<&'b Told<'_>>,
    ) -> (&'static Sql, Vec<Param<'b>>) {
        let Takes {
            taking,
            begins,
            taker,
        } = self;
        let more: [Param<'b>; 5] = [
            taking,
            begins,
            &taker.worker,
            &taker.lease_seconds,
            &taker.steps,
        ];
        match told {
            None => (
                &SETTLE_KEYED,
                columns.params().into_iter().chain(more).collect(),
            ),
            Some(told) => (
                &SETTLE_KEYED_TOLD,
                told.params(columns).into_iter().chain(more).collect(),
            ),
        }
    }
}

/// The whole batch in one statement, which is one transaction: all of them plain, or all of them with more to do. It waits a
/// moment for locks (`lock_timeout`), then gives up as `Busy`. Answers what was written; the others had another owner.
///
/// Where an ending frees a lane or a partition key, who is next goes on at the taker, if there is one.
pub(crate) async fn settle<'a>(
    connection: &Connection,
    endings: impl IntoIterator<Item = &'a Ending>,
    taker: Option<Taker<'_>>,
    lock_timeout: &'static str,
) -> Result<Written, Fault> {
    let endings: Vec<&Ending> = endings.into_iter().collect();
    if endings.iter().any(|ending| ending.more.is_some()) {
        let document = document(endings.iter().copied())?;
        return written(
            &connection
                .query(&CONCLUDE, &[&document, &Some(lock_timeout)])
                .await?,
        );
    }
    let columns = Columns::of(endings.iter().copied(), Some(lock_timeout));
    let told = Told::of(&endings);
    if endings.iter().any(|ending| ending.keyed) {
        let taking = endings
            .iter()
            .filter(|ending| ending.takes && taker.is_some());
        let takes = Takes {
            taking: taking.clone().map(|ending| ending.claim.id).collect(),
            begins: taking
                .filter(|ending| !ending.led)
                .map(|ending| ending.claim.id)
                .collect(),
            taker: taker.unwrap_or(Taker::NOBODY),
        };
        let (statement, params) = takes.statement(&columns, told.as_ref());
        return written_keyed(&connection.query(statement, &params).await?);
    }
    match &told {
        None => written(&connection.query(&SETTLE, &columns.params()).await?),
        Some(told) => written(
            &connection
                .query(&SETTLE_TOLD, &told.params(&columns))
                .await?,
        ),
    }
}

/// Make a connection ready to commit.
pub(crate) async fn warm(connection: &Connection) -> Result<(), Fault> {
    connection.query(&WARM, &[]).await.map(drop)
}

/// Locks those of these rows that are free, until the open transaction ends. Returns those that another transaction has locked.
pub(crate) async fn lock(connection: &Connection, ids: &[i64]) -> Result<HashSet<i64>, Fault> {
    connection
        .query(&LOCK, &[&ids])
        .await?
        .iter()
        .map(|row| column(row, 0))
        .collect()
}

/// One ending inside the step's own transaction. `None`: the claim was lost, and the transaction must not commit.
pub(crate) async fn settle_within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    ending: &Ending,
) -> Result<Option<Found>, Fault> {
    let commit_within = format!("{}ms", target.statement_timeout().as_millis());
    // What is told, and what frees a lane, is for `conclude` too: one statement more for each would be one too many.
    let rows = if ending.more.is_some() || ending.keyed || ending.tale.is_some() {
        let document = document([ending])?;
        ride(tx, target, &CONCLUDE_WITHIN, &[&document, &commit_within]).await?
    } else {
        let columns = Columns::of([ending], None);
        let mut params = columns.params().to_vec();
        params.push(&commit_within);
        ride(tx, target, &SETTLE_WITHIN, &params).await?
    };
    Ok(written(&rows)?.found.into_values().next())
}

fn written(rows: &[impl Fields]) -> Result<Written, Fault> {
    let found = |row| {
        Ok((
            column(row, 0)?,
            Found {
                inbox: column(row, 1)?,
                children: column(row, 2)?,
            },
        ))
    };
    Ok(Written {
        found: rows.iter().map(found).collect::<Result<_, Fault>>()?,
        handed: Vec::new(),
    })
}

/// The first row says which endings were written. The others: what one that runs ahead finds; or who follows, and in whose stead.
fn written_keyed(rows: &[Row]) -> Result<Written, Fault> {
    let mut written = Written::default();
    let Some((first, rows)) = rows.split_first() else {
        return Ok(written);
    };
    let now: Timestamp = column(first, 12)?;
    written.found = column::<Vec<i64>>(first, 24)?
        .into_iter()
        .map(|id| (id, Found::default()))
        .collect();
    for row in rows {
        match column::<Option<i64>>(row, 23)? {
            None => {
                let found = Found {
                    inbox: column(row, 20)?,
                    children: column(row, 21)?,
                };
                written.found.insert(column(row, 0)?, found);
            }
            Some(freed_by) => {
                let led = column(row, 27)?;
                written.handed.push((
                    freed_by,
                    Claimed {
                        led,
                        ..claimed(row, now)?
                    },
                ));
            }
        }
    }
    Ok(written)
}
