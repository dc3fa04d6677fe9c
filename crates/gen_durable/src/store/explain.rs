//! Explains why an instance does not run: lists the conditions of the picker that the instance does
//! not meet, in the order in which the picker applies them. If the instance waits in a lane or for
//! its partition, the explanation includes why the head or the partition holder has not settled.

use std::collections::{BTreeMap, HashMap};

use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;

use super::{
    connection::Connection,
    fault::Fault,
    inspect, limit,
    row::{named, parsed},
    sql,
};
use crate::{
    id::Status,
    model::{
        explanation::{Blocker, Explanation, PendingChild, Relations},
        instance::Instance,
    },
};

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

/// How much an explanation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The blockers only.
    Brief,
    /// Also signals, children and the number of instances that are due earlier.
    Full,
}

/// Counts the unconsumed signals and the children of an instance.
pub(crate) async fn relations(connection: &Connection, id: i64) -> Result<Relations, Fault> {
    let mut relations = Relations::default();
    for row in &connection.query(&RELATIONS, &[&id]).await? {
        let count = named(row, "count")?;
        match named::<&str>(row, "kind")? {
            "signal" => relations.signals.insert(named(row, "name")?, count),
            _ => relations.children.insert(parsed(row, "name")?, count),
        };
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
                id: named(row, "id")?,
                machine: named(row, "machine")?,
                step: named(row, "step")?,
                status: parsed(row, "status")?,
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
    /// Whether a live worker of the instance's queue registered the machine and machine version of
    /// the instance, no matter which steps the worker knows.
    machine_served: bool,
}

/// Reads the facts about these instances that the picker's conditions depend on. With full
/// detail, counts for each instance the other instances that are due before it, which costs more.
async fn facts(
    connection: &Connection,
    ids: &[i64],
    detail: Detail,
) -> Result<HashMap<i64, Facts>, Fault> {
    let rows = connection
        .query(&EXPLAIN, &[&ids, &(detail == Detail::Full)])
        .await?;
    let read = |row: &tokio_postgres::Row| -> Result<(i64, Facts), Fault> {
        let facts = Facts {
            now: named(row, "now")?,
            paused_at: named(row, "paused_at")?,
            paused_by: named(row, "paused_by")?,
            workers_of_queue: named(row, "workers_of_queue")?,
            workers_able: named(row, "workers_able")?,
            workers_alive: named(row, "workers_alive")?,
            host: named(row, "host")?,
            pid: named(row, "pid")?,
            alive: named(row, "alive")?,
            before: named(row, "due_before")?,
            machine_served: named(row, "machine_served")?,
        };
        Ok((named(row, "id")?, facts))
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
        .filter(|row| row.lane.is_some() || row.partition.is_some());
    let ids: Vec<i64> = keyed.map(|row| row.id).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let read = |row: &tokio_postgres::Row| -> Result<(i64, Precedence), Fault> {
        let precedence = Precedence {
            head: named(row, "head")?,
            ahead: named(row, "ahead")?,
            behind: named(row, "behind")?,
            holder: named(row, "holder")?,
        };
        Ok((named(row, "id")?, precedence))
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
/// If the detail is [`Detail::Brief`], the number of statements does not depend on the number of
/// ids.
pub(crate) async fn explain(
    connection: &Connection,
    ids: &[i64],
    detail: Detail,
) -> Result<HashMap<i64, Explanation>, Fault> {
    explain_at(connection, ids, detail, 0).await
}

fn explain_at<'a>(
    connection: &'a Connection,
    ids: &'a [i64],
    detail: Detail,
    level: u8,
) -> LocalBoxFuture<'a, Result<HashMap<i64, Explanation>, Fault>> {
    Box::pin(async move {
        let rows = inspect::many(connection, ids).await?;
        let mut facts = facts(connection, ids, detail).await?;
        let precedences = precedences(connection, &rows).await?;
        let precedence_of = |row: &Instance| precedences.get(&row.id).copied().unwrap_or_default();
        let before: Vec<i64> = rows
            .iter()
            .filter_map(|row| precedence_of(row).waits_for(row))
            .collect();
        let before = match before.as_slice() {
            [_, ..] if level + 1 < LEVELS_MAX => {
                explain_at(connection, &before, detail, level + 1).await?
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
            if detail == Detail::Full {
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

/// Adds the signals in the inbox of the instance to `AwaitingSignal`, the names of its pending
/// children to `AwaitingChildren`, and the use of its limits to `AwaitingLimit`.
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
            Blocker::AwaitingLimit { limits, .. } => {
                *limits = limit::use_of(connection, row.id).await?
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
            let (since, deadline_at) = (row.updated_at, row.deadline_at);
            vec![Blocker::AwaitingSignal {
                names,
                since,
                deadline_at,
                signals: BTreeMap::new(),
            }]
        }
        Status::AwaitingChildren => {
            let (pending, any, deadline_at) = (row.children_pending, row.join_any, row.deadline_at);
            vec![Blocker::AwaitingChildren {
                pending,
                any,
                deadline_at,
                children: Vec::new(),
            }]
        }
        Status::AwaitingLimit => awaiting_limit(row, facts),
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
                lane: row.lane.clone().unwrap_or_default(),
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

/// Returns the blockers of an instance that waits for a limit: the limit, and conditions that would
/// keep a runnable instance from running.
fn awaiting_limit(row: &Instance, facts: Facts) -> Vec<Blocker> {
    let waits = Blocker::AwaitingLimit {
        since: row.updated_at,
        limits: Vec::new(),
    };
    let others = runnable(row, facts).into_iter();
    let others = others.filter(|other| !matches!(other, Blocker::BehindOthers { .. }));
    std::iter::once(waits).chain(others).collect()
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
    let head = precedence.waits_for(row).and_then(|id| before.get(&id));
    let behind = head.map(|head| Blocker::Queued {
        lane: row.lane.clone().unwrap_or_default(),
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
            partition: row.partition.clone().unwrap_or_default(),
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
    if let Some(paused_at) = facts.paused_at {
        blockers.push(Blocker::QueuePaused {
            queue: queue(),
            paused_at,
            paused_by: facts.paused_by,
        });
    }
    if row.eligible_at > facts.now {
        blockers.push(Blocker::NotDue {
            due_at: row.eligible_at,
        });
    }
    // If no worker serves the queue of the instance, the list of blockers already contains
    // `QueueNotWorked`, and needs no further entry about workers.
    if facts.workers_able == 0 && facts.workers_of_queue > 0 {
        let (machine, version) = (row.machine.clone(), row.version);
        blockers.push(match facts.machine_served {
            true => Blocker::NoWorkerForStep {
                machine,
                version,
                step: row.step.clone(),
                queue: queue(),
            },
            false => Blocker::MachineNotServed {
                machine,
                version,
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
