//! Read-only queries: lists, counts, single instances. They serve the CLI, the dashboard, and
//! callers that wait until an instance settles.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    gather::fail_all,
    pool::Connections,
    pulse,
    row::{named, only, parsed},
    sql,
};
use crate::{
    error::Error,
    id::Status,
    model::{
        instance::{Count, Filter, Instance},
        json::seconds,
        page_size,
        queue::{Backlog, NoWorkerFor, QueueInfo, WorkerInfo},
    },
};

sql!(
    LIST,
    "list.sql",
    [TEXT, TEXT, TEXT, INT8, INT4, TEXT, TEXT, TEXT]
);
sql!(SHOW, "show.sql", [INT8_ARRAY]);
sql!(SETTLED, "settled.sql", [INT8_ARRAY]);
sql!(COUNTS, "counts.sql", []);
sql!(WORKERS, "workers.sql", []);
sql!(CLAIMS, "worker_claims.sql", [TEXT, INT4]);
sql!(NO_WORKER_FOR, "no_worker_for.sql", []);
sql!(QUEUES, "queues.sql", []);
sql!(SERVER, "server.sql", []);

/// The largest number of callers, each waiting until an instance settles, that share one statement.
/// The number is small, because each returned row may carry a large value in `result`.
const ENDS_MAX: usize = 64;

/// Runs reads in a transaction of their own, because a connection pooler keeps a setting no longer
/// than a transaction. The transaction turns JIT off: each read returns a bounded number of rows,
/// but the planner does not know how early a read stops, and would spend more time on compilation
/// than the read takes.
pub(crate) async fn within<T>(
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

/// Returns a page of instances, the newest first.
pub(crate) async fn list(connection: &Connection, filter: &Filter) -> Result<Vec<Instance>, Fault> {
    let limit = page_size(filter.limit, 200);
    let status = filter.status.map(Status::name);
    let params: &[Param<'_>] = &[
        &filter.machine,
        &status,
        &filter.queue,
        &filter.before,
        &limit,
        &filter.tenant,
        &filter.lane,
        &filter.partition,
    ];
    let rows = connection.query(&LIST, params).await?;
    rows.iter().map(instance).collect()
}

/// Counts all instances by machine, step and status.
pub(crate) async fn counts(connection: &Connection) -> Result<Vec<Count>, Fault> {
    let rows = connection.query(&COUNTS, &[]).await?;
    rows.iter().map(count).collect()
}

pub(super) fn count(row: &Row) -> Result<Count, Fault> {
    Ok(Count {
        machine: named(row, "machine")?,
        version: named(row, "machine_version")?,
        step: named(row, "step")?,
        status: parsed(row, "status")?,
        count: named(row, "count")?,
    })
}

/// Returns the workers, including expired workers that no reaper has removed yet.
pub(crate) async fn workers(connection: &Connection) -> Result<Vec<WorkerInfo>, Fault> {
    let read = |row: &Row| {
        Ok(WorkerInfo {
            id: named(row, "id")?,
            host: named(row, "host")?,
            pid: named(row, "pid")?,
            queues: named(row, "queues")?,
            machines: named(row, "machines")?,
            steps: named(row, "steps")?,
            schedules: named(row, "schedules")?,
            projections: named(row, "projections")?,
            started_at: named(row, "started_at")?,
            renewed_at: named(row, "renewed_at")?,
            found_work_at: named(row, "found_work_at")?,
            lease_expires_at: named(row, "lease_expires_at")?,
            alive: named(row, "alive")?,
            polls: named(row, "polls")?,
            draining: named(row, "draining")?,
            version: named(row, "version")?,
            connections_max: named(row, "connections_max")?,
        })
    };
    let rows = connection.query(&WORKERS, &[]).await?;
    rows.iter().map(read).collect()
}

/// Returns the queues that workers serve, the queues with waiting or executing instances, and the
/// queues with a row in the table `queues`.
pub(crate) async fn queues(connection: &Connection) -> Result<Vec<QueueInfo>, Fault> {
    let mut backlog: HashMap<String, Backlog> = pulse::backlog(connection)
        .await?
        .into_iter()
        .map(|queue| (queue.name.clone(), queue))
        .collect();
    let rows = connection.query(&QUEUES, &[]).await?;
    let mut queues = rows
        .iter()
        .map(|row| {
            let name: String = named(row, "name")?;
            let backlog = backlog.remove(&name);
            Ok(QueueInfo {
                paused_at: named(row, "paused_at")?,
                paused_by: named(row, "paused_by")?,
                due: named(row, "due")?,
                executing: named(row, "executing")?,
                queued: named(row, "queued")?,
                partition_waiting: named(row, "partition_waiting")?,
                retention: kept(row, "retention")?,
                failed_retention: kept(row, "failed_retention")?,
                is_fair: named(row, "is_fair")?,
                tenant_shares: serde_json::from_str(named::<&str>(row, "tenant_shares")?)
                    .unwrap_or_default(),
                ..queue(name, backlog)
            })
        })
        .collect::<Result<Vec<_>, Fault>>()?;
    queues.extend(
        backlog
            .into_iter()
            .map(|(name, own)| queue(name, Some(own))),
    );
    queues.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(queues)
}

/// Returns a queue with the numbers of its backlog, and no instances in lanes or partitions.
fn queue(name: String, backlog: Option<Backlog>) -> QueueInfo {
    let own = backlog.as_ref();
    QueueInfo {
        paused_at: own.and_then(|own| own.paused_at),
        paused_by: own.and_then(|own| own.paused_by.clone()),
        due: own.map_or(0, |own| own.due),
        oldest_due_at: own.and_then(|own| own.oldest_due_at),
        scheduled: own.map_or(0, |own| own.scheduled),
        next_due_at: own.and_then(|own| own.next_due_at),
        executing: own.map_or(0, |own| own.executing),
        workers: own.map_or(0, |own| own.workers),
        queued: 0,
        partition_waiting: 0,
        retention: None,
        failed_retention: None,
        is_fair: false,
        tenant_shares: BTreeMap::new(),
        name,
    }
}

fn kept(row: &Row, name: &str) -> Result<Option<Duration>, Fault> {
    Ok(named::<Option<f64>>(row, name)?.map(seconds::duration))
}

/// Returns the instances that a worker has claimed, at most `limit`.
pub(crate) async fn claims(
    connection: &Connection,
    worker: &str,
    limit: usize,
) -> Result<Vec<Instance>, Fault> {
    let limit = page_size(limit, 200);
    let rows = connection.query(&CLAIMS, &[&worker, &limit]).await?;
    let ids = rows.iter().map(only).collect::<Result<Vec<i64>, _>>()?;
    many(connection, &ids).await
}

/// Returns the instances that have not settled and that no live worker can run, in groups.
pub(crate) async fn no_worker_for(connection: &Connection) -> Result<Vec<NoWorkerFor>, Fault> {
    let read = |row: &Row| {
        Ok(NoWorkerFor {
            machine: named(row, "machine")?,
            version: named(row, "machine_version")?,
            step: named(row, "step")?,
            count: named(row, "count")?,
        })
    };
    let rows = connection.query(&NO_WORKER_FOR, &[]).await?;
    rows.iter().map(read).collect()
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
pub(crate) async fn end_of(pool: &Arc<Connections>, id: i64) -> Result<Option<End>, Error> {
    let (answered, begins) = pool.gathers.ends.add(id);
    if begins {
        let flushed = pool.clone();
        pool.post(move |connection| async move { answer_all(&flushed, &connection).await })?;
    }
    answered.await.map_err(|_| {
        Error::broken(
            "a query for the status of an instance got no result: the database thread has ended",
        )
    })?
}

async fn answer_all(pool: &Arc<Connections>, connection: &Connection) {
    while let Some(batch) = pool.gathers.ends.take(ENDS_MAX, |_| 0) {
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
            status: parsed(row, "status")?,
            machine: named(row, "machine")?,
            result: named(row, "result")?,
            error: named(row, "last_error")?,
            attempt: named(row, "attempt")?,
            failures: named(row, "failures")?,
        };
        Ok((named(row, "id")?, end))
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
    let row = rows.first().ok_or_else(Fault::no_row)?;
    Ok(Server {
        max_connections: named(row, "max_connections")?,
        used_connections: named(row, "used_connections")?,
        synchronous_commit: named(row, "synchronous_commit")?,
        fsync: named(row, "fsync")?,
        read_only: named(row, "read_only")?,
        random_id: named(row, "random_id")?,
        isolation: named(row, "isolation")?,
        installation: named(row, "installation")?,
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
        id: named(row, "id")?,
        tenant: named(row, "tenant")?,
        machine: named(row, "machine")?,
        version: named(row, "machine_version")?,
        step: named(row, "step")?,
        data: named(row, "data")?,
        state: named(row, "state")?,
        status: parsed(row, "status")?,
        result: named(row, "result")?,
        last_error: named(row, "last_error")?,
        queue: named(row, "queue")?,
        priority: named(row, "priority")?,
        attempt: named(row, "attempt")?,
        eligible_at: named(row, "eligible_at")?,
        inserted_at: named(row, "inserted_at")?,
        updated_at: named(row, "updated_at")?,
        settled_at: named(row, "settled_at")?,
        lease_expires_at: named(row, "lease_expires_at")?,
        locked_by: named(row, "locked_by")?,
        claim_epoch: named(row, "claim_epoch")?,
        step_seq: named(row, "step_seq")?,
        step_entry_seq: named(row, "step_entry_seq")?,
        crash_count: named(row, "crash_count")?,
        traceparent: named(row, "traceparent")?,
        key: named(row, "key")?,
        awaits: named(row, "awaits")?,
        deadline_at: named(row, "deadline_at")?,
        deadline_step: named(row, "deadline_step")?,
        deadline_data: named(row, "deadline_data")?,
        parent_id: named(row, "parent_id")?,
        parent_generation: named(row, "parent_generation")?,
        join_generation: named(row, "join_generation")?,
        join_any: named(row, "join_any")?,
        children_pending: named(row, "children_pending")?,
        partition: named(row, "partition_key")?,
        lane: named(row, "lane_key")?,
        lane_position: named(row, "lane_position")?,
        in_lane: named(row, "in_lane")?,
        lane_blocks: named(row, "lane_blocks")?,
        partition_waiting: named(row, "partition_waiting")?,
        arrival_no: named(row, "arrival_no")?,
        failures: named(row, "failures")?,
    })
}
