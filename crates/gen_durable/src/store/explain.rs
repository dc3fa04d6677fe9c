//! Why an instance does not run: the picker's own conditions, in the order in which the picker meets them.

use jiff::Timestamp;

use super::{
    connection::Connection,
    fault::Fault,
    inspect::{self, Inspect, Instance},
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(EXPLAIN, "explain.sql", [INT8]);
sql!(RELATIONS, "relations.sql", [INT8]);
sql!(PENDING_CHILDREN, "pending_children.sql", [INT8, INT4, INT4]);

/// So many of the children that a join waits for are named.
const CHILDREN_NAMED_MAX: i32 = 10;

/// From so many deaths on a row is a suspect, as the predicate of `instances_suspects` says.
const SUSPECT_DEATHS: i16 = 2;

/// What hangs on an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Relations {
    /// Letters that no step has consumed, by the signal's name. Those of a settled instance are undelivered.
    pub letters: Vec<(String, i64)>,
    /// Its children, of all its spawns, by status.
    pub children: Vec<(Status, i64)>,
}

/// A child that has not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct PendingChild {
    pub id: i64,
    pub fsm: String,
    pub step: String,
    pub status: Status,
}

/// Why an instance does not run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The instance.
    pub instance: Instance,
    /// The schema's time when it was asked.
    pub now: Timestamp,
    /// What keeps it from running, in the order in which the picker would meet it: the first one is the answer. None:
    /// it is due, and the next pick of a worker takes it.
    pub blockers: Vec<Blocker>,
}

/// Something that keeps an instance from running.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Blocker {
    /// It has settled: nothing more will happen.
    Settled { status: Status, error: Option<String> },
    /// It does run. `host` and `pid` are null when the worker's row is gone; `alive`: its lease has not run out.
    Executing { worker: String, host: Option<String>, pid: Option<i32>, alive: bool },
    /// It waits to be told one of these. `letters` are there, and are not what it waits for.
    AwaitingSignal { names: Vec<String>, since: Timestamp, deadline: Option<Timestamp>, letters: Vec<(String, i64)> },
    /// It waits for children. The first few of them are named.
    AwaitingChildren { pending: i32, any: bool, deadline: Option<Timestamp>, children: Vec<PendingChild> },
    /// In a lane, behind its head.
    Queued,
    /// Set aside: the build that claimed it could not decode it.
    Stuck { error: Option<String> },
    /// No live worker works its queue.
    QueueNotWorked { queue: String },
    /// Its queue is paused.
    QueuePaused { queue: String, since: Timestamp, by: Option<String> },
    /// Its time has not come.
    NotDue { at: Timestamp },
    /// No live worker of its queue registered its machine and version.
    MachineNotServed { fsm: String, fsm_version: i32, queue: String },
    /// So many processes died with it that each worker runs such a row one at a time.
    Suspect { deaths: i16 },
    /// So many are due before it in its queue, counted up to 10,001.
    Behind { count: i64 },
}

impl Inspect {
    /// Letters and children of an instance, counted.
    pub async fn relations(&self, id: i64) -> Result<Relations, Error> {
        self.read("count letters and children", move |connection| async move { relations(&connection, id).await }).await
    }

    /// Why an instance does not run. `None`: there is no such instance.
    pub async fn explain(&self, id: i64) -> Result<Option<Explanation>, Error> {
        self.read("explain an instance", move |connection| async move { explain(&connection, id).await }).await
    }
}

async fn relations(connection: &Connection, id: i64) -> Result<Relations, Fault> {
    let mut relations = Relations::default();
    for row in &connection.query(&RELATIONS, &[&id]).await? {
        match column::<&str>(row, 0)? {
            "letter" => relations.letters.push((column(row, 1)?, column(row, 2)?)),
            _ => relations.children.push((inspect::status(row, 1)?, column(row, 2)?)),
        }
    }
    Ok(relations)
}

async fn pending(connection: &Connection, row: &Instance) -> Result<Vec<PendingChild>, Fault> {
    let rows = connection.query(&PENDING_CHILDREN, &[&row.id, &row.join_generation, &CHILDREN_NAMED_MAX]).await?;
    rows.iter()
        .map(|row| {
            Ok(PendingChild {
                id: column(row, 0)?,
                fsm: column(row, 1)?,
                step: column(row, 2)?,
                status: inspect::status(row, 3)?,
            })
        })
        .collect()
}

/// What the picker would ask about a row.
struct Facts {
    now: Timestamp,
    paused_at: Option<Timestamp>,
    paused_by: Option<String>,
    workers_of_queue: i64,
    workers_able: i64,
    host: Option<String>,
    pid: Option<i32>,
    alive: Option<bool>,
    before: i64,
}

async fn facts(connection: &Connection, id: i64) -> Result<Option<Facts>, Fault> {
    let rows = connection.query(&EXPLAIN, &[&id]).await?;
    let read = |row: &tokio_postgres::Row| -> Result<Facts, Fault> {
        Ok(Facts {
            now: column(row, 0)?,
            paused_at: column(row, 1)?,
            paused_by: column(row, 2)?,
            workers_of_queue: column(row, 3)?,
            workers_able: column(row, 4)?,
            host: column(row, 5)?,
            pid: column(row, 6)?,
            alive: column(row, 7)?,
            before: column(row, 8)?,
        })
    };
    rows.first().map(read).transpose()
}

/// Several statements, so the row may move on between them: it is an answer for people.
async fn explain(connection: &Connection, id: i64) -> Result<Option<Explanation>, Fault> {
    let (Some(instance), Some(facts)) = (inspect::one(connection, id).await?, facts(connection, id).await?) else {
        return Ok(None);
    };
    let row = &instance;
    let now = facts.now;
    let blockers = match row.status {
        Status::Runnable => runnable(row, facts),
        Status::Executing => vec![Blocker::Executing {
            worker: row.locked_by.clone().unwrap_or_default(),
            host: facts.host,
            pid: facts.pid,
            alive: facts.alive == Some(true),
        }],
        Status::AwaitingSignal => {
            let letters = relations(connection, id).await?.letters;
            let names = row.awaits.clone().unwrap_or_default();
            vec![Blocker::AwaitingSignal { names, since: row.updated_at, deadline: row.deadline_at, letters }]
        }
        Status::AwaitingChildren => vec![Blocker::AwaitingChildren {
            pending: row.children_pending,
            any: row.join_any,
            deadline: row.deadline_at,
            children: pending(connection, row).await?,
        }],
        Status::Queued => vec![Blocker::Queued],
        Status::Stuck => vec![Blocker::Stuck { error: row.last_error.clone() }],
        Status::Done | Status::Failed | Status::Cancelled => {
            vec![Blocker::Settled { status: row.status, error: row.last_error.clone() }]
        }
    };
    Ok(Some(Explanation { now, blockers, instance }))
}

/// As `gen_durable.pick` goes: a process asks for its own queues, leaves out the paused ones, reads what is due, the first
/// first, and takes what it can run; suspects apart.
fn runnable(row: &Instance, facts: Facts) -> Vec<Blocker> {
    let queue = || row.queue.clone();
    let mut blockers = Vec::new();
    if facts.workers_of_queue == 0 {
        blockers.push(Blocker::QueueNotWorked { queue: queue() });
    }
    if let Some(since) = facts.paused_at {
        blockers.push(Blocker::QueuePaused { queue: queue(), since, by: facts.paused_by });
    }
    if row.eligible_at > facts.now {
        blockers.push(Blocker::NotDue { at: row.eligible_at });
    }
    // That nobody works the queue says it already.
    if facts.workers_able == 0 && facts.workers_of_queue > 0 {
        let (fsm, fsm_version) = (row.fsm.clone(), row.fsm_version);
        blockers.push(Blocker::MachineNotServed { fsm, fsm_version, queue: queue() });
    }
    if row.crash_count >= SUSPECT_DEATHS {
        blockers.push(Blocker::Suspect { deaths: row.crash_count });
    } else if facts.before > 0 {
        blockers.push(Blocker::Behind { count: facts.before });
    }
    blockers
}
