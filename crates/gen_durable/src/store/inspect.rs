//! Read-only: lists, counts, one instance. For the CLI and the dashboard, and for a caller who waits.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::Connection,
    fault::Fault,
    gather::fail_all,
    pool::{Pool, Route},
    row::column,
    sql,
};
use crate::{error::Error, id::Status};

sql!(
    LIST,
    "list.sql",
    [TEXT, TEXT, TEXT, INT8, INT4, TEXT, TEXT, TEXT]
);
sql!(SHOW, "show.sql", [INT8_ARRAY]);
sql!(SETTLED, "settled.sql", [INT8_ARRAY]);
sql!(COUNTS, "counts.sql", []);
sql!(WORKERS, "workers.sql", []);
sql!(UNSERVED, "unserved.sql", []);
sql!(QUEUES, "queues.sql", []);
sql!(SERVER, "server.sql", []);

/// Callers that wait for the ends of instances share a statement, up to this many: each row may carry a large result.
const ENDS_MAX: usize = 64;

/// An instance, as `durable show` shows it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // The columns of the row, by their names.
pub struct Instance {
    pub id: i64,
    pub tenant: String,
    pub fsm: String,
    pub fsm_version: i32,
    pub step: String,
    pub data: Option<String>,
    pub state: String,
    pub status: Status,
    pub result: Option<String>,
    pub last_error: Option<String>,
    pub queue: String,
    pub priority: i16,
    pub attempt: i32,
    pub failures: i32,
    pub eligible_at: Timestamp,
    pub inserted_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub lease_expires_at: Option<Timestamp>,
    pub locked_by: Option<String>,
    pub claim_epoch: i64,
    pub step_seq: i64,
    pub visit: i64,
    pub crash_count: i16,
    pub traceparent: Option<String>,
    pub correlation_key: Option<String>,
    pub awaits: Option<Vec<String>>,
    pub deadline_at: Option<Timestamp>,
    pub deadline_step: Option<String>,
    pub deadline_data: Option<String>,
    pub parent_id: Option<i64>,
    pub parent_generation: Option<i32>,
    pub join_generation: i32,
    pub join_any: bool,
    pub children_pending: i32,
    pub partition_key: Option<String>,
    pub lane_key: Option<String>,
    pub lane_position: Option<i64>,
    pub in_lane: bool,
    pub lane_blocks: bool,
    pub held_back: bool,
    pub arrival: Option<i64>,
}

impl Instance {
    /// Whether it has its lane: it runs, or will, or waits for something, or has failed and was to keep its place; and all
    /// others in the lane wait for it. One that has just begun after another in its lane is still `queued`, for some 50 ms at
    /// the most, and not counted.
    pub fn is_lane_head(&self) -> bool {
        self.in_lane && self.status != Status::Queued
    }

    /// Whether its lane stands still behind it: it failed for good, and was to keep its place.
    pub fn blocks_its_lane(&self) -> bool {
        self.in_lane && self.status == Status::Failed
    }
}

/// Which instances to list: the newest first, from `before` on down.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Of this machine only.
    pub machine: Option<String>,
    /// In this status only.
    pub status: Option<Status>,
    /// Of this queue only.
    pub queue: Option<String>,
    /// Of this tenant only.
    pub tenant: Option<String>,
    /// Of this lane only, whether they have left it or not. A lane belongs to a tenant.
    pub lane: Option<String>,
    /// Under this partition key only. A key belongs to a tenant.
    pub partition: Option<String>,
    /// Only ids below this one: the last of the page before.
    pub before: Option<i64>,
    /// At most this many (200 at the most).
    pub limit: usize,
}

/// How many instances stand where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Count {
    pub fsm: String,
    pub fsm_version: i32,
    pub step: String,
    pub status: Status,
    pub count: i64,
}

/// A process that runs steps.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct WorkerInfo {
    pub id: String,
    pub host: String,
    pub pid: i32,
    pub queues: Vec<String>,
    pub machines: Vec<String>,
    pub started_at: Timestamp,
    pub lease_expires_at: Timestamp,
    /// Whether its lease has not run out.
    pub alive: bool,
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct QueueInfo {
    pub name: String,
    pub paused: bool,
    /// Due and waiting, counted up to 10,001.
    pub due: i64,
    pub executing: i64,
    /// Waiting in a lane behind its head, among the first 10,001 of all queues that do.
    pub queued: i64,
    /// Waiting for a turn under a partition key, among the first 10,001 of all queues that do.
    pub held_back: i64,
}

/// Live instances that no live worker can run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Unserved {
    pub fsm: String,
    pub fsm_version: i32,
    /// The step that no live worker knows. `None`: no live worker registered the machine and version at all.
    pub step: Option<String>,
    pub count: i64,
}

/// Looking at a schema without changing it.
#[derive(Debug, Clone)]
pub struct Inspect {
    pool: Pool,
    /// How long a statement may take on the server, and the turn to use the connection: a transaction cannot be shared.
    bound: Option<(Duration, Arc<tokio::sync::Mutex<()>>)>,
}

impl Inspect {
    /// Look through this pool.
    pub fn new(pool: Pool) -> Inspect {
        Inspect { pool, bound: None }
    }

    /// The same, in read-only transactions in which the server gives up a statement after this long. Such reads take turns:
    /// give them a pool of their own, by [`Pool::beside`].
    pub fn bounded(self, statement_timeout: Duration) -> Inspect {
        Inspect {
            bound: Some((statement_timeout, Arc::default())),
            ..self
        }
    }

    /// Instances, the newest first.
    pub async fn list(&self, filter: Filter) -> Result<Vec<Instance>, Error> {
        let limit = i32::try_from(filter.limit.clamp(1, 200)).unwrap_or(200);
        self.read("list instances", move |connection| async move {
            let status = filter.status.map(Status::name);
            let params: &[super::connection::Param<'_>] = &[
                &filter.machine,
                &status,
                &filter.queue,
                &filter.before,
                &limit,
                &filter.tenant,
                &filter.lane,
                &filter.partition,
            ];
            connection
                .query(&LIST, params)
                .await?
                .iter()
                .map(instance)
                .collect()
        })
        .await
    }

    /// One instance.
    pub async fn show(&self, id: i64) -> Result<Option<Instance>, Error> {
        self.read("show an instance", move |connection| async move {
            one(&connection, id).await
        })
        .await
    }

    /// How many stand where. It reads every row: for people, not for loops.
    pub async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.read("count instances", |connection| async move {
            let rows = connection.query(&COUNTS, &[]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Count {
                        fsm: column(row, 0)?,
                        fsm_version: column(row, 1)?,
                        step: column(row, 2)?,
                        status: status(row, 3)?,
                        count: column(row, 4)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// The workers, dead ones that nobody has buried yet included.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>, Error> {
        self.read("list workers", |connection| async move {
            let rows = connection.query(&WORKERS, &[]).await?;
            rows.iter()
                .map(|row| {
                    Ok(WorkerInfo {
                        id: column(row, 0)?,
                        host: column(row, 1)?,
                        pid: column(row, 2)?,
                        queues: column(row, 3)?,
                        machines: column(row, 4)?,
                        started_at: column(row, 5)?,
                        lease_expires_at: column(row, 6)?,
                        alive: column(row, 7)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// The queues that hold live work or are paused.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, Error> {
        self.read("list queues", |connection| async move {
            let rows = connection.query(&QUEUES, &[]).await?;
            rows.iter()
                .map(|row| {
                    Ok(QueueInfo {
                        name: column(row, 0)?,
                        paused: column(row, 1)?,
                        due: column(row, 2)?,
                        executing: column(row, 3)?,
                        queued: column(row, 4)?,
                        held_back: column(row, 5)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Live instances for which there is no worker: no live one registered their machine and version ("no live worker runs
    /// checkout v3"), or none of those that did knows their step.
    pub async fn unserved(&self) -> Result<Vec<Unserved>, Error> {
        self.read(
            "look for work that nobody can run",
            |connection| async move {
                let rows = connection.query(&UNSERVED, &[]).await?;
                rows.iter()
                    .map(|row| {
                        let (fsm, fsm_version) = (column(row, 0)?, column(row, 1)?);
                        Ok(Unserved {
                            fsm,
                            fsm_version,
                            step: column(row, 2)?,
                            count: column(row, 3)?,
                        })
                    })
                    .collect()
            },
        )
        .await
    }

    pub(crate) async fn read<T, F, Fut>(&self, doing: &str, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(std::rc::Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        let Some((timeout, turn)) = self.bound.clone() else {
            return self
                .pool
                .apart(act)
                .await?
                .map_err(|fault| fault.into_error(doing));
        };
        let bounded = self.pool.apart(move |connection| async move {
            let _turn = turn.lock().await;
            within(&connection, timeout, act(connection.clone())).await
        });
        bounded.await?.map_err(|fault| fault.into_error(doing))
    }
}

/// In a transaction of its own, since a pooler keeps a setting no longer than that. Nothing is compiled: looks are bounded, but the
/// planner does not know how soon they end, and would spend more on that than the look takes.
async fn within<T>(
    connection: &Connection,
    timeout: Duration,
    act: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let milliseconds = timeout.as_millis();
    connection
        .batch(&format!(
            "begin read only; set local statement_timeout = {milliseconds}; set local jit = off"
        ))
        .await?;
    let answer = act.await;
    let ended = connection.batch("rollback").await;
    if ended.is_err() {
        connection.reset();
    }
    answer
}

/// How an instance stands, for a caller that waits for its end.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) status: Status,
    pub(crate) fsm: String,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) attempt: i32,
    pub(crate) failures: i32,
}

/// Returns how an instance stands. Callers that ask at the same time share a statement.
pub(crate) async fn end_of(pool: &Pool, id: i64) -> Result<Option<End>, Error> {
    let (answered, begins) = pool.inner.gathers.ends.add(id);
    if begins {
        let flushed = pool.clone();
        pool.post(Route::Call, move |connection| async move {
            answer_all(&flushed, &connection).await
        })?;
    }
    answered
        .await
        .map_err(|_| Error::broken("a question was never answered"))?
}

async fn answer_all(pool: &Pool, connection: &Connection) {
    while let Some(batch) = pool.inner.gathers.ends.take(ENDS_MAX, |_| 0) {
        let mut ids: Vec<i64> = batch.iter().map(|asked| asked.item).collect();
        ids.sort_unstable();
        ids.dedup();
        match ends_of(connection, &ids).await {
            Ok(ends) => {
                for asked in batch {
                    let end = ends.get(&asked.item).cloned();
                    asked.answer(Ok(end));
                }
            }
            Err(fault) => fail_all(batch, &fault, "look whether an instance has settled"),
        }
    }
}

async fn ends_of(connection: &Connection, ids: &[i64]) -> Result<HashMap<i64, End>, Fault> {
    let rows = connection.query(&SETTLED, &[&ids]).await?;
    let read = |row: &Row| -> Result<(i64, End), Fault> {
        let end = End {
            status: status(row, 1)?,
            fsm: column(row, 2)?,
            result: column(row, 3)?,
            error: column(row, 4)?,
            attempt: column(row, 5)?,
            failures: column(row, 6)?,
        };
        Ok((column(row, 0)?, end))
    };
    rows.iter().map(read).collect()
}

/// What the server says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) max_connections: i32,
    pub(crate) used_connections: i32,
    pub(crate) synchronous_commit: String,
    pub(crate) fsync: String,
    pub(crate) read_only: bool,
    /// A fresh random id, for whoever needs one.
    pub(crate) random_id: String,
    pub(crate) isolation: String,
    /// The random name of this schema.
    pub(crate) installation: String,
}

pub(crate) async fn server(connection: &Connection) -> Result<Server, Fault> {
    let rows = connection.query(&SERVER, &[]).await?;
    let row = rows.first().ok_or(Fault::Refused {
        code: None,
        message: "the server said nothing of itself".into(),
    })?;
    Ok(Server {
        max_connections: column(row, 0)?,
        used_connections: column(row, 1)?,
        synchronous_commit: column(row, 2)?,
        fsync: column(row, 3)?,
        read_only: column(row, 4)?,
        random_id: column(row, 5)?,
        isolation: column(row, 6)?,
        installation: column(row, 7)?,
    })
}

/// One instance, if it is there.
pub(crate) async fn one(connection: &Connection, id: i64) -> Result<Option<Instance>, Fault> {
    Ok(many(connection, &[id]).await?.pop())
}

/// These instances, as far as they are there.
pub(crate) async fn many(connection: &Connection, ids: &[i64]) -> Result<Vec<Instance>, Fault> {
    connection
        .query(&SHOW, &[&ids])
        .await?
        .iter()
        .map(instance)
        .collect()
}

fn instance(row: &Row) -> Result<Instance, Fault> {
    Ok(Instance {
        id: column(row, 0)?,
        tenant: column(row, 1)?,
        fsm: column(row, 2)?,
        fsm_version: column(row, 3)?,
        step: column(row, 4)?,
        data: column(row, 5)?,
        state: column(row, 6)?,
        status: status(row, 7)?,
        result: column(row, 8)?,
        last_error: column(row, 9)?,
        queue: column(row, 10)?,
        priority: column(row, 11)?,
        attempt: column(row, 12)?,
        eligible_at: column(row, 13)?,
        inserted_at: column(row, 14)?,
        updated_at: column(row, 15)?,
        finished_at: column(row, 16)?,
        lease_expires_at: column(row, 17)?,
        locked_by: column(row, 18)?,
        claim_epoch: column(row, 19)?,
        step_seq: column(row, 20)?,
        visit: column(row, 21)?,
        crash_count: column(row, 22)?,
        traceparent: column(row, 23)?,
        correlation_key: column(row, 24)?,
        awaits: column(row, 25)?,
        deadline_at: column(row, 26)?,
        deadline_step: column(row, 27)?,
        deadline_data: column(row, 28)?,
        parent_id: column(row, 29)?,
        parent_generation: column(row, 30)?,
        join_generation: column(row, 31)?,
        join_any: column(row, 32)?,
        children_pending: column(row, 33)?,
        partition_key: column(row, 34)?,
        lane_key: column(row, 35)?,
        lane_position: column(row, 36)?,
        in_lane: column(row, 37)?,
        lane_blocks: column(row, 38)?,
        held_back: column(row, 39)?,
        arrival: column(row, 40)?,
        failures: column(row, 41)?,
    })
}

pub(crate) fn status(row: &Row, index: usize) -> Result<Status, Fault> {
    let name: String = column(row, index)?;
    Status::named(&name).ok_or_else(|| Fault::Refused {
        code: None,
        message: format!("an unknown status {name:?}"),
    })
}
