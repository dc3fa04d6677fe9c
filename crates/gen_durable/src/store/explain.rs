//! Why an instance does not run: the picker's own conditions, in the order in which the picker meets them. For one that waits
//! in a lane or for its turn, why the one before it does not end.

use std::collections::HashMap;

use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;

use super::{
    connection::Connection,
    fault::Fault,
    inspect::{self, Inspect, Instance},
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(EXPLAIN, "explain.sql", [INT8_ARRAY, BOOL]);
sql!(TURNS, "turns.sql", [INT8_ARRAY]);
sql!(RELATIONS, "relations.sql", [INT8]);
sql!(PENDING_CHILDREN, "pending_children.sql", [INT8, INT4, INT4]);

/// So many of the children that a join waits for are named.
const CHILDREN_NAMED_MAX: i32 = 10;

/// One that waits in a lane, its head, and who has the turn for which that head waits: nobody waits for more than that.
const LEVELS_MAX: u8 = 3;

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
    /// It has settled: nothing more will happen. A `CancelledStepRunning` may follow.
    Settled {
        status: Status,
        error: Option<String>,
    },
    /// It does run. `host` and `pid` are null when the worker's row is gone; `alive`: its lease has not run out.
    Executing {
        worker: String,
        host: Option<String>,
        pid: Option<i32>,
        alive: bool,
    },
    /// It was cancelled while its step ran, and that step has not ended: its lane or partition key stays taken until it has, or until
    /// the lease of its worker is over.
    CancelledStepRunning {
        worker: String,
        host: Option<String>,
        pid: Option<i32>,
        alive: bool,
    },
    /// It waits to be told one of these. `letters` are there, and are not what it waits for.
    AwaitingSignal {
        names: Vec<String>,
        since: Timestamp,
        deadline: Option<Timestamp>,
        letters: Vec<(String, i64)>,
    },
    /// It waits for children. The first few of them are named.
    AwaitingChildren {
        pending: i32,
        any: bool,
        deadline: Option<Timestamp>,
        children: Vec<PendingChild>,
    },
    /// It stands in a lane behind so many others, counted up to 10,001. The first of them has the lane: it says why it has
    /// not ended.
    Queued {
        lane: String,
        ahead: i64,
        head: Box<Explanation>,
    },
    /// It has arrived at its lane or under its partition key, and no pick has seen to it: the next pick of any live worker
    /// does.
    NotPlaced { live_workers: i64 },
    /// It is another's turn under its partition key.
    HeldBack {
        partition: String,
        holder: Box<Explanation>,
    },
    /// It failed for good, and its lane stands still behind it until somebody retries, skips or discards it. So many wait,
    /// counted up to 10,001.
    BlocksLane {
        lane: String,
        tenant: String,
        behind: i64,
    },
    /// Set aside: the build that claimed it could not decode it (`deaths` is 0), or so many workers died while it ran.
    Stuck { error: Option<String>, deaths: i16 },
    /// No live worker works its queue.
    QueueNotWorked { queue: String },
    /// Its queue is paused.
    QueuePaused {
        queue: String,
        since: Timestamp,
        by: Option<String>,
    },
    /// Its time has not come.
    NotDue { at: Timestamp },
    /// No live worker of its queue registered its machine and version.
    MachineNotServed {
        fsm: String,
        fsm_version: i32,
        queue: String,
    },
    /// Live workers of its queue registered its machine and version, and none of them knows its step: a build that does has not
    /// been deployed, or no longer runs.
    NoWorkerForStep {
        fsm: String,
        fsm_version: i32,
        step: String,
        queue: String,
    },
    /// So many processes died with it that each worker runs such a row one at a time.
    Suspect { deaths: i16 },
    /// So many are due before it in its queue, counted up to 10,001.
    Behind { count: i64 },
}

impl Inspect {
    /// Letters and children of an instance, counted.
    pub async fn relations(&self, id: i64) -> Result<Relations, Error> {
        self.read("count letters and children", move |connection| async move {
            relations(&connection, id).await
        })
        .await
    }

    /// Why an instance does not run. `None`: there is no such instance.
    pub async fn explain(&self, id: i64) -> Result<Option<Explanation>, Error> {
        self.read("explain an instance", move |connection| async move {
            Ok(explain(&connection, &[id], true, 0).await?.remove(&id))
        })
        .await
    }
}

async fn relations(connection: &Connection, id: i64) -> Result<Relations, Fault> {
    let mut relations = Relations::default();
    for row in &connection.query(&RELATIONS, &[&id]).await? {
        match column::<&str>(row, 0)? {
            "letter" => relations.letters.push((column(row, 1)?, column(row, 2)?)),
            _ => relations
                .children
                .push((inspect::status(row, 1)?, column(row, 2)?)),
        }
    }
    Ok(relations)
}

async fn pending(connection: &Connection, row: &Instance) -> Result<Vec<PendingChild>, Fault> {
    let rows = connection
        .query(
            &PENDING_CHILDREN,
            &[&row.id, &row.join_generation, &CHILDREN_NAMED_MAX],
        )
        .await?;
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
    workers_alive: i64,
    host: Option<String>,
    pid: Option<i32>,
    alive: Option<bool>,
    before: i64,
    /// Who leads its lane.
    led_by: Option<String>,
    /// Whether a live worker of its queue registered its machine and version, whichever steps it knows.
    machine_served: bool,
}

/// `closely`: also how many are due before it, which costs something.
async fn facts(
    connection: &Connection,
    ids: &[i64],
    closely: bool,
) -> Result<HashMap<i64, Facts>, Fault> {
    let rows = connection.query(&EXPLAIN, &[&ids, &closely]).await?;
    let read = |row: &tokio_postgres::Row| -> Result<(i64, Facts), Fault> {
        let facts = Facts {
            now: column(row, 1)?,
            paused_at: column(row, 2)?,
            paused_by: column(row, 3)?,
            workers_of_queue: column(row, 4)?,
            workers_able: column(row, 5)?,
            workers_alive: column(row, 6)?,
            host: column(row, 7)?,
            pid: column(row, 8)?,
            alive: column(row, 9)?,
            before: column(row, 10)?,
            led_by: column(row, 11)?,
            machine_served: column(row, 12)?,
        };
        Ok((column(row, 0)?, facts))
    };
    rows.iter().map(read).collect()
}

/// Where a row stands in its lane and under its partition key.
#[derive(Debug, Default, Clone, Copy)]
struct Turn {
    head: Option<i64>,
    ahead: i64,
    behind: i64,
    holder: Option<i64>,
}

impl Turn {
    /// Whom this one waits for.
    fn waits_for(self, row: &Instance) -> Option<i64> {
        let before = match row.status {
            Status::Queued => self.head,
            Status::Runnable if row.held_back => self.holder,
            _ => None,
        };
        before.filter(|id| *id != row.id)
    }
}

async fn turns(connection: &Connection, rows: &[Instance]) -> Result<HashMap<i64, Turn>, Fault> {
    let keyed = rows
        .iter()
        .filter(|row| row.lane_key.is_some() || row.partition_key.is_some());
    let ids: Vec<i64> = keyed.map(|row| row.id).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let read = |row: &tokio_postgres::Row| -> Result<(i64, Turn), Fault> {
        let turn = Turn {
            head: column(row, 1)?,
            ahead: column(row, 2)?,
            behind: column(row, 3)?,
            holder: column(row, 4)?,
        };
        Ok((column(row, 0)?, turn))
    };
    connection
        .query(&TURNS, &[&ids])
        .await?
        .iter()
        .map(read)
        .collect()
}

/// Several statements, so a row may move on between them: it is an answer for people. `closely`: with letters, children and
/// how many are due before it. As many statements for many as for one, but for what is asked closely.
pub(super) fn explain<'a>(
    connection: &'a Connection,
    ids: &'a [i64],
    closely: bool,
    level: u8,
) -> LocalBoxFuture<'a, Result<HashMap<i64, Explanation>, Fault>> {
    Box::pin(async move {
        let rows = inspect::many(connection, ids).await?;
        let mut facts = facts(connection, ids, closely).await?;
        let turns = turns(connection, &rows).await?;
        let turn_of = |row: &Instance| turns.get(&row.id).copied().unwrap_or_default();
        let before: Vec<i64> = rows
            .iter()
            .filter_map(|row| turn_of(row).waits_for(row))
            .collect();
        let before = match before.as_slice() {
            [_, ..] if level + 1 < LEVELS_MAX => {
                explain(connection, &before, closely, level + 1).await?
            }
            _ => HashMap::new(),
        };
        let mut explanations = HashMap::new();
        for row in rows {
            let Some(facts) = facts.remove(&row.id) else {
                continue;
            };
            let now = facts.now;
            let mut blockers = blockers(&row, facts, turn_of(&row), &before);
            if closely {
                look_closely(connection, &row, &mut blockers).await?;
            }
            explanations.insert(
                row.id,
                Explanation {
                    now,
                    blockers,
                    instance: row,
                },
            );
        }
        Ok(explanations)
    })
}

/// What a wait has in its inbox, and which children a join waits for.
async fn look_closely(
    connection: &Connection,
    row: &Instance,
    blockers: &mut [Blocker],
) -> Result<(), Fault> {
    for blocker in blockers {
        match blocker {
            Blocker::AwaitingSignal { letters, .. } => {
                *letters = relations(connection, row.id).await?.letters
            }
            Blocker::AwaitingChildren { children, .. } => {
                *children = pending(connection, row).await?
            }
            _ => {}
        }
    }
    Ok(())
}

fn blockers(
    row: &Instance,
    facts: Facts,
    turn: Turn,
    before: &HashMap<i64, Explanation>,
) -> Vec<Blocker> {
    match row.status {
        Status::Runnable if row.held_back => held_back(row, facts, turn, before),
        Status::Runnable => runnable(row, facts),
        Status::Executing => vec![Blocker::Executing {
            worker: row.locked_by.clone().unwrap_or_default(),
            host: facts.host,
            pid: facts.pid,
            alive: facts.alive == Some(true),
        }],
        Status::AwaitingSignal => {
            let names = row.awaits.clone().unwrap_or_default();
            let (since, deadline) = (row.updated_at, row.deadline_at);
            vec![Blocker::AwaitingSignal {
                names,
                since,
                deadline,
                letters: Vec::new(),
            }]
        }
        Status::AwaitingChildren => {
            let (pending, any, deadline) = (row.children_pending, row.join_any, row.deadline_at);
            vec![Blocker::AwaitingChildren {
                pending,
                any,
                deadline,
                children: Vec::new(),
            }]
        }
        Status::Queued => queued(row, facts, turn, before),
        Status::Stuck => vec![Blocker::Stuck {
            error: row.last_error.clone(),
            deaths: row.crash_count,
        }],
        Status::Done | Status::Failed | Status::Cancelled => {
            let settled = Blocker::Settled {
                status: row.status,
                error: row.last_error.clone(),
            };
            let blocks = row.blocks_its_lane().then(|| Blocker::BlocksLane {
                lane: row.lane_key.clone().unwrap_or_default(),
                tenant: row.tenant.clone(),
                behind: turn.behind,
            });
            // Cancelled while its step ran: the step has not ended, and keeps the lane or the partition key.
            let runs = row
                .locked_by
                .clone()
                .map(|worker| Blocker::CancelledStepRunning {
                    worker,
                    host: facts.host,
                    pid: facts.pid,
                    alive: facts.alive == Some(true),
                });
            std::iter::once(settled).chain(runs).chain(blocks).collect()
        }
    }
}

/// In a lane. While workers live, one without a place gets it with the next pick: what keeps it is the head.
fn queued(
    row: &Instance,
    facts: Facts,
    turn: Turn,
    before: &HashMap<i64, Explanation>,
) -> Vec<Blocker> {
    // Who is first in a lane that is led runs there, and will be seen to execute if it lasts.
    if let (Some(worker), true) = (facts.led_by, turn.head == Some(row.id)) {
        return vec![Blocker::Executing {
            worker,
            host: facts.host,
            pid: facts.pid,
            alive: facts.alive == Some(true),
        }];
    }
    let head = turn.waits_for(row).and_then(|id| before.get(&id));
    let behind = head.map(|head| Blocker::Queued {
        lane: row.lane_key.clone().unwrap_or_default(),
        ahead: turn.ahead,
        head: Box::new(head.clone()),
    });
    let not_placed = (!row.in_lane || head.is_none()).then_some(Blocker::NotPlaced {
        live_workers: facts.workers_alive,
    });
    match facts.workers_alive {
        0 => not_placed.into_iter().chain(behind).collect(),
        _ => behind.into_iter().chain(not_placed).collect(),
    }
}

/// Under a partition key, not in the picker's index at all; then whatever else would keep it.
fn held_back(
    row: &Instance,
    facts: Facts,
    turn: Turn,
    before: &HashMap<i64, Explanation>,
) -> Vec<Blocker> {
    let first = match turn.waits_for(row).and_then(|id| before.get(&id)) {
        Some(holder) => Blocker::HeldBack {
            partition: row.partition_key.clone().unwrap_or_default(),
            holder: Box::new(holder.clone()),
        },
        None => Blocker::NotPlaced {
            live_workers: facts.workers_alive,
        },
    };
    let others = runnable(row, Facts { before: 0, ..facts });
    std::iter::once(first).chain(others).collect()
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
        blockers.push(Blocker::QueuePaused {
            queue: queue(),
            since,
            by: facts.paused_by,
        });
    }
    if row.eligible_at > facts.now {
        blockers.push(Blocker::NotDue {
            at: row.eligible_at,
        });
    }
    // That nobody works the queue says it already.
    if facts.workers_able == 0 && facts.workers_of_queue > 0 {
        let (fsm, fsm_version) = (row.fsm.clone(), row.fsm_version);
        blockers.push(match facts.machine_served {
            true => Blocker::NoWorkerForStep {
                fsm,
                fsm_version,
                step: row.step.clone(),
                queue: queue(),
            },
            false => Blocker::MachineNotServed {
                fsm,
                fsm_version,
                queue: queue(),
            },
        });
    }
    if row.crash_count >= SUSPECT_DEATHS {
        blockers.push(Blocker::Suspect {
            deaths: row.crash_count,
        });
    } else if facts.before > 0 {
        blockers.push(Blocker::Behind {
            count: facts.before,
        });
    }
    blockers
}
