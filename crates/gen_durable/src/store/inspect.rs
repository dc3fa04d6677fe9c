//! Read-only queries: lists, counts, single instances. They serve the CLI, the dashboard, and
//! callers that wait until an instance settles.

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
sql!(NO_WORKER_FOR, "no_worker_for.sql", []);
sql!(QUEUES, "queues.sql", []);
sql!(SERVER, "server.sql", []);

/// The largest number of callers, each waiting until an instance settles, that share one statement.
/// The number is small, because each returned row may carry a large value in `result`.
const ENDS_MAX: usize = 64;

/// An instance, with the columns that `durable show` prints.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // The columns of the row, by their names.
pub struct Instance {
    pub id: i64,
    pub tenant: String,
    pub machine: String,
    pub machine_version: i32,
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
    pub settled_at: Option<Timestamp>,
    pub lease_expires_at: Option<Timestamp>,
    pub locked_by: Option<String>,
    pub claim_epoch: i64,
    pub step_seq: i64,
    pub step_entry_seq: i64,
    pub crash_count: i16,
    pub traceparent: Option<String>,
    pub key: Option<String>,
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
    pub partition_waiting: bool,
    pub arrival_no: Option<i64>,
}

impl Instance {
    /// Returns whether the instance is the head of its lane: it runs, may run, waits for signals or
    /// children, or has failed and blocks the lane. All other instances of the lane wait for the
    /// head. An instance that the lane worker has just started after its predecessor stays `queued`
    /// for about 50 ms at most; for that time this function returns false for the instance.
    pub fn is_lane_head(&self) -> bool {
        self.in_lane && self.status != Status::Queued
    }

    /// Returns whether the instance blocks its lane: it failed for good, and keeps its lane
    /// position until an operator retries it, skips it, or cancels it with `durable lanes discard`.
    pub fn blocks_its_lane(&self) -> bool {
        self.in_lane && self.status == Status::Failed
    }
}

/// Selects the instances of a list. The list is ordered from the newest to the oldest, and begins
/// below `before`.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Selects only instances of this machine.
    pub machine: Option<String>,
    /// Selects only instances in this status.
    pub status: Option<Status>,
    /// Selects only instances in the queue of this name.
    pub queue: Option<String>,
    /// Selects only instances of this tenant.
    pub tenant: Option<String>,
    /// Selects only instances with this lane key, including instances that have left the lane. A
    /// lane belongs to a tenant.
    pub lane: Option<String>,
    /// Selects only instances under this partition key. A partition key belongs to a tenant.
    pub partition: Option<String>,
    /// Selects only instances with an id below this id, which is the last id of the previous page.
    pub before: Option<i64>,
    /// The largest number of instances on the page, up to 200.
    pub limit: usize,
}

/// The number of instances of one machine at one step in one status.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Count {
    pub machine: String,
    pub machine_version: i32,
    pub step: String,
    pub status: Status,
    pub count: i64,
}

/// A worker: a process with an engine that runs steps.
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
    /// Whether the lease of the worker is valid.
    pub alive: bool,
}

/// A queue of instances, with the numbers of its instances.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct QueueInfo {
    pub name: String,
    pub paused: bool,
    /// The number of instances of the queue that are due and wait for a worker, counted up to
    /// 10,001.
    pub due: i64,
    pub executing: i64,
    /// The number of instances of this queue that wait in a lane behind its head. The query counts
    /// only the first 10,001 such instances of all queues together.
    pub queued: i64,
    /// The number of instances of this queue that wait for their partition. The query counts only
    /// the first 10,001 such instances of all queues together.
    pub partition_waiting: i64,
}

/// A group of instances that have not settled and that no live worker can run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct NoWorkerFor {
    pub machine: String,
    pub machine_version: i32,
    /// The step of these instances that no live worker knows. `None`: no live worker registered the
    /// machine and its version.
    pub step: Option<String>,
    pub count: i64,
}

/// Reads the tables of a schema without changing them: for tools and for people.
#[derive(Debug, Clone)]
pub struct Inspect {
    pool: Pool,
    /// The limits of [`bounded`](Inspect::bounded): how long a statement may take on the server,
    /// and the mutex that allows one read at a time.
    bound: Option<(Duration, Arc<tokio::sync::Mutex<()>>)>,
}

impl Inspect {
    /// Creates an `Inspect` that reads through this pool.
    pub fn new(pool: Pool) -> Inspect {
        Inspect { pool, bound: None }
    }

    /// Returns an `Inspect` that reads in read-only transactions, in which the server cancels a
    /// statement that takes longer than `statement_timeout`. Such reads run one at a time, so use a
    /// separate pool for them: [`Pool::beside`].
    pub fn bounded(self, statement_timeout: Duration) -> Inspect {
        Inspect {
            bound: Some((statement_timeout, Arc::default())),
            ..self
        }
    }

    /// Returns a page of instances, the newest first.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
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

    /// Returns the instance with this id, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn show(&self, id: i64) -> Result<Option<Instance>, Error> {
        self.read("show an instance", move |connection| async move {
            one(&connection, id).await
        })
        .await
    }

    /// Counts the instances by machine, step and status. The query reads every row of `instances`,
    /// so do not call this function in a loop.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.read("count instances", |connection| async move {
            let rows = connection.query(&COUNTS, &[]).await?;
            rows.iter()
                .map(|row| {
                    Ok(Count {
                        machine: column(row, 0)?,
                        machine_version: column(row, 1)?,
                        step: column(row, 2)?,
                        status: status(row, 3)?,
                        count: column(row, 4)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Returns the workers, including expired workers that no reaper has removed yet.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
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

    /// Returns the queues that have runnable, executing or queued instances, or a row in the table
    /// `queues`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
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
                        partition_waiting: column(row, 5)?,
                    })
                })
                .collect()
        })
        .await
    }

    /// Returns the instances that have not settled and that no live worker can run, in groups:
    /// either no live worker registered their machine and version ("no live worker runs checkout
    /// v3"), or none of the workers that did so knows their step.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn no_worker_for(&self) -> Result<Vec<NoWorkerFor>, Error> {
        self.read(
            "list instances that no worker can run",
            |connection| async move {
                let rows = connection.query(&NO_WORKER_FOR, &[]).await?;
                rows.iter()
                    .map(|row| {
                        let (machine, machine_version) = (column(row, 0)?, column(row, 1)?);
                        Ok(NoWorkerFor {
                            machine,
                            machine_version,
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
        let Some((timeout, one_at_a_time)) = self.bound.clone() else {
            return self
                .pool
                .apart(act)
                .await?
                .map_err(|fault| fault.into_error(doing));
        };
        let bounded = self.pool.apart(move |connection| async move {
            let _guard = one_at_a_time.lock().await;
            within(&connection, timeout, act(connection.clone())).await
        });
        bounded.await?.map_err(|fault| fault.into_error(doing))
    }
}

/// Runs reads in a transaction of their own, because a connection pooler keeps a setting no longer
/// than a transaction. The transaction turns JIT off: each read returns a bounded number of rows,
/// but the planner does not know how early a read stops, and would spend more time on compilation
/// than the read takes.
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

/// The status of an instance, for a caller that waits until the instance settles.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) status: Status,
    pub(crate) machine: String,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) attempt: i32,
    pub(crate) failures: i32,
}

/// Returns the status of an instance, or `None` if the instance does not exist. Concurrent callers
/// share one statement.
pub(crate) async fn end_of(pool: &Pool, id: i64) -> Result<Option<End>, Error> {
    let (answered, begins) = pool.inner.gathers.ends.add(id);
    if begins {
        let flushed = pool.clone();
        pool.post(Route::Call, move |connection| async move {
            answer_all(&flushed, &connection).await
        })?;
    }
    answered.await.map_err(|_| {
        Error::broken(
            "a query for the status of an instance got no result: the database thread has ended",
        )
    })?
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
            Err(fault) => fail_all(batch, &fault, "check whether an instance has settled"),
        }
    }
}

async fn ends_of(connection: &Connection, ids: &[i64]) -> Result<HashMap<i64, End>, Fault> {
    let rows = connection.query(&SETTLED, &[&ids]).await?;
    let read = |row: &Row| -> Result<(i64, End), Fault> {
        let end = End {
            status: status(row, 1)?,
            machine: column(row, 2)?,
            result: column(row, 3)?,
            error: column(row, 4)?,
            attempt: column(row, 5)?,
            failures: column(row, 6)?,
        };
        Ok((column(row, 0)?, end))
    };
    rows.iter().map(read).collect()
}

/// Facts about the server and the schema that an engine reads when it starts.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) max_connections: i32,
    pub(crate) used_connections: i32,
    pub(crate) synchronous_commit: String,
    pub(crate) fsync: String,
    pub(crate) read_only: bool,
    /// A fresh random id. An engine uses this id as the id of its worker.
    pub(crate) random_id: String,
    pub(crate) isolation: String,
    /// The random id that identifies this installation of the schema.
    pub(crate) installation: String,
}

pub(crate) async fn server(connection: &Connection) -> Result<Server, Fault> {
    let rows = connection.query(&SERVER, &[]).await?;
    let row = rows.first().ok_or(Fault::Refused {
        code: None,
        message: "the server returned no row about itself".into(),
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

/// Returns the instance with this id, if it exists.
pub(crate) async fn one(connection: &Connection, id: i64) -> Result<Option<Instance>, Fault> {
    Ok(many(connection, &[id]).await?.pop())
}

/// Returns the instances with these ids. Leaves out ids without an instance.
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
        machine: column(row, 2)?,
        machine_version: column(row, 3)?,
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
        settled_at: column(row, 16)?,
        lease_expires_at: column(row, 17)?,
        locked_by: column(row, 18)?,
        claim_epoch: column(row, 19)?,
        step_seq: column(row, 20)?,
        step_entry_seq: column(row, 21)?,
        crash_count: column(row, 22)?,
        traceparent: column(row, 23)?,
        key: column(row, 24)?,
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
        partition_waiting: column(row, 39)?,
        arrival_no: column(row, 40)?,
        failures: column(row, 41)?,
    })
}

pub(crate) fn status(row: &Row, index: usize) -> Result<Status, Fault> {
    let name: String = column(row, index)?;
    Status::named(&name).ok_or_else(|| Fault::Refused {
        code: None,
        message: format!("the database returned an unknown status: {name:?}"),
    })
}
