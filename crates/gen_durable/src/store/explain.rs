//! Explains why an instance does not run: lists the conditions of the picker that the instance does
//! not meet, in the order in which the picker applies them. If the instance waits in a lane or for
//! its partition, the explanation includes why the head or the partition holder has not settled.

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
sql!(PRECEDENCE, "lane_positions.sql", [INT8_ARRAY]);
sql!(RELATIONS, "relations.sql", [INT8]);
sql!(PENDING_CHILDREN, "pending_children.sql", [INT8, INT4, INT4]);

/// The largest number of pending children that an explanation names.
const CHILDREN_NAMED_MAX: i32 = 10;

/// The longest chain of explanations: an instance that waits in a lane, the head of that lane, and
/// the partition holder for which the head waits. A partition holder waits for no other instance.
const LEVELS_MAX: u8 = 3;

/// An instance is a suspect if this many workers crashed while they held its claim. The predicate
/// of the index `instances_suspects` contains the same number.
const SUSPECT_CRASHES: i16 = 2;

/// The numbers of unconsumed signals and of children of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Relations {
    /// The signals that no step of the instance has consumed, counted by name. If the instance has
    /// settled, no step has received these signals.
    pub signals: Vec<(String, i64)>,
    /// The children that the instance has spawned, counted by status.
    pub children: Vec<(Status, i64)>,
}

/// A child of the explained instance that has not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct PendingChild {
    pub id: i64,
    pub machine: String,
    pub step: String,
    pub status: Status,
}

/// The reasons why an instance does not run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The instance of which the explanation says why it does not run.
    pub instance: Instance,
    /// The time of the schema's clock when the statements of the explanation ran.
    pub now: Timestamp,
    /// The conditions that keep the instance from running, in the order in which the picker applies
    /// them. The first condition is the reason why the instance does not run now. If the list is
    /// empty, the instance is due and the next pick of a worker claims it.
    pub blockers: Vec<Blocker>,
}

/// A condition of the picker, or a status, that keeps an instance from running.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Blocker {
    /// The instance has settled, and runs again only if an operator retries it. If a step of the
    /// instance still runs, the next entry of the list is `CancelledStepRunning`.
    Settled {
        status: Status,
        error: Option<String>,
    },
    /// A worker runs the instance. `host` and `pid` are `None` if the row of the worker in
    /// `workers` no longer exists. `alive` says whether the worker's lease is valid.
    Executing {
        worker: String,
        host: Option<String>,
        pid: Option<i32>,
        alive: bool,
    },
    /// A caller cancelled the instance while its step ran, and the step has not ended. The instance
    /// keeps its lane or partition key until the step ends, or until the lease of its worker
    /// expires.
    CancelledStepRunning {
        worker: String,
        host: Option<String>,
        pid: Option<i32>,
        alive: bool,
    },
    /// The instance waits for a signal with one of these names. `signals` counts the signals in its
    /// inbox by name; none of these signals ends the wait.
    AwaitingSignal {
        names: Vec<String>,
        since: Timestamp,
        deadline: Option<Timestamp>,
        signals: Vec<(String, i64)>,
    },
    /// The instance waits for children. `children` names the first 10 children that have not
    /// settled.
    AwaitingChildren {
        pending: i32,
        any: bool,
        deadline: Option<Timestamp>,
        children: Vec<PendingChild>,
    },
    /// The instance waits in a lane behind `ahead` other instances, counted up to 10,001. The first
    /// of them is the head of the lane; the explanation of the head says why the head has not
    /// settled.
    Queued {
        lane: String,
        ahead: i64,
        head: Box<Explanation>,
    },
    /// The instance has arrived at its lane or under its partition key, and awaits placement: the
    /// next pick of any live worker gives the instance a lane position or makes it wait for the
    /// partition.
    AwaitingPlacement { live_workers: i64 },
    /// The instance waits for its partition, because another instance is the partition holder.
    PartitionWaiting {
        partition: String,
        holder: Box<Explanation>,
    },
    /// The instance failed for good and blocks its lane until an operator retries it, skips it, or
    /// cancels it with `durable lanes discard`. `behind` counts the instances that wait behind it
    /// in the lane, up to 10,001.
    BlocksLane {
        lane: String,
        tenant: String,
        behind: i64,
    },
    /// The instance is stuck: set aside for an operator. Either the build that claimed it could not
    /// decode it (`crashes` is 0), or `crashes` workers crashed while they ran it.
    Stuck { error: Option<String>, crashes: i16 },
    /// No live worker serves the queue of the instance.
    QueueNotWorked { queue: String },
    /// An operator has paused the queue of the instance, so no worker claims its instances.
    QueuePaused {
        queue: String,
        since: Timestamp,
        by: Option<String>,
    },
    /// The instance is not due yet: its due time `at` is in the future.
    NotDue { at: Timestamp },
    /// No live worker of the instance's queue registered its machine and machine version.
    MachineNotServed {
        machine: String,
        machine_version: i32,
        queue: String,
    },
    /// Live workers of the instance's queue registered its machine and machine version, but none of
    /// these workers knows its step. No worker with a build that knows the step has started yet, or
    /// none runs any more.
    NoWorkerForStep {
        machine: String,
        machine_version: i32,
        step: String,
        queue: String,
    },
    /// The instance is a suspect: at least two workers crashed while they held its claim. Each
    /// worker runs at most one suspect at a time.
    Suspect { crashes: i16 },
    /// `count` other instances of the queue are due before the explained instance, counted up to
    /// 10,001.
    BehindOthers { count: i64 },
}

impl Inspect {
    /// Counts the unconsumed signals and the children of an instance.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn relations(&self, id: i64) -> Result<Relations, Error> {
        self.read("count signals and children", move |connection| async move {
            relations(&connection, id).await
        })
        .await
    }

    /// Explains why an instance does not run. Returns `None` if there is no such instance.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
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
            "signal" => relations.signals.push((column(row, 1)?, column(row, 2)?)),
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
                machine: column(row, 1)?,
                step: column(row, 2)?,
                status: inspect::status(row, 3)?,
            })
        })
        .collect()
}

/// The facts about one instance that the conditions of the picker depend on.
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
    /// The worker id of the lane worker of the instance's lane, if the lane has one.
    worker_id: Option<String>,
    /// Whether a live worker of the instance's queue registered the machine and machine version of
    /// the instance, no matter which steps the worker knows.
    machine_served: bool,
}

/// Reads the facts about these instances that the picker's conditions depend on. With `detailed`,
/// counts for each instance the other instances that are due before it, which costs more.
async fn facts(
    connection: &Connection,
    ids: &[i64],
    detailed: bool,
) -> Result<HashMap<i64, Facts>, Fault> {
    let rows = connection.query(&EXPLAIN, &[&ids, &detailed]).await?;
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
            worker_id: column(row, 11)?,
            machine_served: column(row, 12)?,
        };
        Ok((column(row, 0)?, facts))
    };
    rows.iter().map(read).collect()
}

/// The position of an instance among others: the head of its lane, the numbers of instances before
/// and behind it in the lane, and the holder of its partition.
#[derive(Debug, Default, Clone, Copy)]
struct Precedence {
    head: Option<i64>,
    ahead: i64,
    behind: i64,
    holder: Option<i64>,
}

impl Precedence {
    /// Returns the id of the instance that the instance in `row` waits for.
    fn waits_for(self, row: &Instance) -> Option<i64> {
        let before = match row.status {
            Status::Queued => self.head,
            Status::Runnable if row.partition_waiting => self.holder,
            _ => None,
        };
        before.filter(|id| *id != row.id)
    }
}

async fn precedences(
    connection: &Connection,
    rows: &[Instance],
) -> Result<HashMap<i64, Precedence>, Fault> {
    let keyed = rows
        .iter()
        .filter(|row| row.lane_key.is_some() || row.partition_key.is_some());
    let ids: Vec<i64> = keyed.map(|row| row.id).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let read = |row: &tokio_postgres::Row| -> Result<(i64, Precedence), Fault> {
        let precedence = Precedence {
            head: column(row, 1)?,
            ahead: column(row, 2)?,
            behind: column(row, 3)?,
            holder: column(row, 4)?,
        };
        Ok((column(row, 0)?, precedence))
    };
    connection
        .query(&PRECEDENCE, &[&ids])
        .await?
        .iter()
        .map(read)
        .collect()
}

/// Explains why these instances do not run. The function sends several statements, and another
/// transaction may change a row between two of them, so code must not rely on the explanations.
/// With `detailed`, the function adds signals, children and the number of instances that are due
/// earlier. Without details, the number of statements does not depend on the number of ids.
pub(super) fn explain<'a>(
    connection: &'a Connection,
    ids: &'a [i64],
    detailed: bool,
    level: u8,
) -> LocalBoxFuture<'a, Result<HashMap<i64, Explanation>, Fault>> {
    Box::pin(async move {
        let rows = inspect::many(connection, ids).await?;
        let mut facts = facts(connection, ids, detailed).await?;
        let precedences = precedences(connection, &rows).await?;
        let precedence_of = |row: &Instance| precedences.get(&row.id).copied().unwrap_or_default();
        let before: Vec<i64> = rows
            .iter()
            .filter_map(|row| precedence_of(row).waits_for(row))
            .collect();
        let before = match before.as_slice() {
            [_, ..] if level + 1 < LEVELS_MAX => {
                explain(connection, &before, detailed, level + 1).await?
            }
            _ => HashMap::new(),
        };
        let mut explanations = HashMap::new();
        for row in rows {
            let Some(facts) = facts.remove(&row.id) else {
                continue;
            };
            let now = facts.now;
            let mut blockers = blockers(&row, facts, precedence_of(&row), &before);
            if detailed {
                add_details(connection, &row, &mut blockers).await?;
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

/// Adds the signals in the inbox of the instance to `AwaitingSignal`, and the names of its pending
/// children to `AwaitingChildren`.
async fn add_details(
    connection: &Connection,
    row: &Instance,
    blockers: &mut [Blocker],
) -> Result<(), Fault> {
    for blocker in blockers {
        match blocker {
            Blocker::AwaitingSignal { signals, .. } => {
                *signals = relations(connection, row.id).await?.signals
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
    precedence: Precedence,
    before: &HashMap<i64, Explanation>,
) -> Vec<Blocker> {
    match row.status {
        Status::Runnable if row.partition_waiting => {
            partition_waiting(row, facts, precedence, before)
        }
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
                signals: Vec::new(),
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
        Status::Queued => queued(row, facts, precedence, before),
        Status::Stuck => vec![Blocker::Stuck {
            error: row.last_error.clone(),
            crashes: row.crash_count,
        }],
        Status::Done | Status::Failed | Status::Cancelled => {
            let settled = Blocker::Settled {
                status: row.status,
                error: row.last_error.clone(),
            };
            let blocks = row.blocks_its_lane().then(|| Blocker::BlocksLane {
                lane: row.lane_key.clone().unwrap_or_default(),
                tenant: row.tenant.clone(),
                behind: precedence.behind,
            });
            // A caller cancelled the instance while its step ran. The step has not ended, and the
            // instance keeps its lane or its partition key.
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

/// Returns the blockers of an instance that waits in a lane. While workers are alive, the next pick
/// gives an instance without a lane position its position, so the first blocker names the head of
/// the lane and not the missing position.
fn queued(
    row: &Instance,
    facts: Facts,
    precedence: Precedence,
    before: &HashMap<i64, Explanation>,
) -> Vec<Blocker> {
    // The lane worker runs the first instance of its lane without a claim. If the step takes
    // longer, the lane worker claims the instance, and the status of the instance becomes
    // `executing`.
    if let (Some(worker), true) = (facts.worker_id, precedence.head == Some(row.id)) {
        return vec![Blocker::Executing {
            worker,
            host: facts.host,
            pid: facts.pid,
            alive: facts.alive == Some(true),
        }];
    }
    let head = precedence.waits_for(row).and_then(|id| before.get(&id));
    let behind = head.map(|head| Blocker::Queued {
        lane: row.lane_key.clone().unwrap_or_default(),
        ahead: precedence.ahead,
        head: Box::new(head.clone()),
    });
    let awaiting_placement =
        (!row.in_lane || head.is_none()).then_some(Blocker::AwaitingPlacement {
            live_workers: facts.workers_alive,
        });
    match facts.workers_alive {
        0 => awaiting_placement.into_iter().chain(behind).collect(),
        _ => behind.into_iter().chain(awaiting_placement).collect(),
    }
}

/// Returns the blockers of an instance that waits for its partition. The index of the picker does
/// not contain such an instance, so the first blocker names the partition holder. The other
/// conditions of the picker come after it.
fn partition_waiting(
    row: &Instance,
    facts: Facts,
    precedence: Precedence,
    before: &HashMap<i64, Explanation>,
) -> Vec<Blocker> {
    let first = match precedence.waits_for(row).and_then(|id| before.get(&id)) {
        Some(holder) => Blocker::PartitionWaiting {
            partition: row.partition_key.clone().unwrap_or_default(),
            holder: Box::new(holder.clone()),
        },
        None => Blocker::AwaitingPlacement {
            live_workers: facts.workers_alive,
        },
    };
    let others = runnable(row, Facts { before: 0, ..facts });
    std::iter::once(first).chain(others).collect()
}

/// Returns the blockers of a runnable instance, in the order of `gen_durable._pick`: a worker asks
/// for its own queues, leaves out paused queues, reads the instances that are due in order, and
/// claims the instances that it can run. The worker reads suspects separately.
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
    // If no worker serves the queue of the instance, the list of blockers already contains
    // `QueueNotWorked`, and needs no further entry about workers.
    if facts.workers_able == 0 && facts.workers_of_queue > 0 {
        let (machine, machine_version) = (row.machine.clone(), row.machine_version);
        blockers.push(match facts.machine_served {
            true => Blocker::NoWorkerForStep {
                machine,
                machine_version,
                step: row.step.clone(),
                queue: queue(),
            },
            false => Blocker::MachineNotServed {
                machine,
                machine_version,
                queue: queue(),
            },
        });
    }
    if row.crash_count >= SUSPECT_CRASHES {
        blockers.push(Blocker::Suspect {
            crashes: row.crash_count,
        });
    } else if facts.before > 0 {
        blockers.push(Blocker::BehindOthers {
            count: facts.before,
        });
    }
    blockers
}
