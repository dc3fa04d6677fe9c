//! Inserts new instances: one, many, or in the caller's own transaction.

use std::{rc::Rc, sync::Arc};

use jiff::Timestamp;
use serde_json::value::RawValue;

use super::{
    Sql,
    connection::{Connection, Param},
    fault::Fault,
    gather::{Asked, GATHERED_BYTES_MAX, Gather, fail_all},
    pool::Connections,
    row::{Fields, check_count, named, unless_all},
    sql,
    target::Target,
    tx::{Session, query_in},
};
use crate::{error::Error, new_instance::New};

sql!(prepared INSERT, "enqueue.sql", [
    TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT2_ARRAY, TEXT_ARRAY, TIMESTAMPTZ_ARRAY,
    FLOAT8_ARRAY, TEXT_ARRAY
]);

sql!(prepared ARRIVALS, "enqueue_arrivals.sql", [
    TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT2_ARRAY, TEXT_ARRAY, TIMESTAMPTZ_ARRAY,
    FLOAT8_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, BOOL_ARRAY, TEXT_ARRAY, INT8_ARRAY
]);

sql!(KEYED, "enqueue_all.sql", [TEXT]);
sql!(bounded KEYED_AT_ONCE, "enqueue_at_once.sql", [TEXT, TEXT]);

/// The largest number of single enqueues that one statement inserts together.
const GATHERED_MAX: usize = 1_000;
/// A batch of one caller with more bytes than this runs on a connection of its own, so that other
/// callers do not wait behind it.
const SHARED_BYTES_MAX: usize = 1024 * 1024;

/// The outcome of inserting one instance. If another instance already holds the key, `id` is the id
/// of that instance and `is_new` is false.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inserted {
    pub(crate) id: i64,
    pub(crate) is_new: bool,
    pub(crate) eligible_at: Timestamp,
}

struct NewInstanceColumns<'a> {
    machines: Vec<&'a str>,
    versions: Vec<i32>,
    steps: Vec<&'a str>,
    data: Vec<Option<&'a str>>,
    states: Vec<&'a str>,
    queues: Vec<&'a str>,
    priorities: Vec<i16>,
    tenants: Vec<&'a str>,
    ats: Vec<Option<Timestamp>>,
    delays: Vec<f64>,
    traceparents: Vec<Option<&'a str>>,
    partitions: Vec<Option<&'a str>>,
    lanes: Vec<Option<&'a str>>,
    lane_blocks: Vec<bool>,
    limit_groups: Vec<Option<&'a str>>,
    limit_weights: Vec<Option<i64>>,
}

impl<'a> NewInstanceColumns<'a> {
    fn of(news: impl Iterator<Item = &'a New> + Clone) -> NewInstanceColumns<'a> {
        NewInstanceColumns {
            machines: news.clone().map(|n| n.machine).collect(),
            versions: news.clone().map(|n| n.machine_version).collect(),
            steps: news.clone().map(|n| n.step.as_str()).collect(),
            data: unless_all(
                None,
                news.clone().map(|n| n.data.as_deref().map(RawValue::get)),
            ),
            states: news.clone().map(|n| n.state.get()).collect(),
            queues: news.clone().map(|n| n.queue.as_str()).collect(),
            priorities: unless_all(0, news.clone().map(|n| n.priority)),
            tenants: unless_all("", news.clone().map(|n| n.tenant.as_str())),
            ats: unless_all(None, news.clone().map(|n| n.at)),
            delays: unless_all(0.0, news.clone().map(|n| n.delay_seconds)),
            traceparents: unless_all(None, news.clone().map(|n| n.traceparent.as_deref())),
            partitions: unless_all(None, news.clone().map(|n| n.partition.as_deref())),
            lanes: unless_all(None, news.clone().map(|n| n.lane.as_deref())),
            lane_blocks: unless_all(false, news.clone().map(|n| n.lane_blocks)),
            limit_groups: unless_all(None, news.clone().map(|n| n.limit_group.as_deref())),
            limit_weights: unless_all(None, news.map(|n| n.limit_weight)),
        }
    }

    /// Returns the statement that inserts these instances, with its parameters.
    fn statement(&self) -> (&'static Sql, Vec<Param<'_>>) {
        let mut params: Vec<Param<'_>> = vec![
            &self.machines,
            &self.versions,
            &self.steps,
            &self.data,
            &self.states,
            &self.queues,
            &self.priorities,
            &self.tenants,
            &self.ats,
            &self.delays,
            &self.traceparents,
        ];
        if self.partitions.is_empty() && self.lanes.is_empty() && self.limit_groups.is_empty() {
            return (&INSERT, params);
        }
        params.extend([
            &self.partitions as Param<'_>,
            &self.lanes,
            &self.lane_blocks,
            &self.limit_groups,
            &self.limit_weights,
        ]);
        (&ARRIVALS, params)
    }
}

/// Inserts one instance. Enqueues that callers start while a statement runs share the next
/// statement. Enqueues with a key may have to wait for another transaction, so they share
/// statements of their own.
pub(crate) async fn one(pool: &Arc<Connections>, new: New) -> Result<Inserted, Error> {
    let keyed = new.key.is_some();
    let (answered, begins) = gather(pool, keyed).add(new);
    if begins {
        let flushed = pool.clone();
        pool.post(move |connection| async move { flush(&flushed, &connection, keyed).await })?;
    }
    answered
        .await
        .map_err(|_| Error::broken("an enqueue got no result: the database thread has ended"))?
}

fn gather(pool: &Arc<Connections>, keyed: bool) -> &Gather<New, Inserted> {
    if keyed {
        &pool.gathers.keyed
    } else {
        &pool.gathers.plain
    }
}

fn weight(new: &New) -> usize {
    new.state.get().len() + new.data.as_ref().map_or(0, |data| data.get().len())
}

async fn flush(pool: &Arc<Connections>, connection: &Connection, keyed: bool) {
    while let Some(batch) = gather(pool, keyed).take(GATHERED_MAX, weight) {
        match insert(
            connection,
            batch.iter().map(|asked| &asked.item),
            Placement::ByWorkers,
            Patience::None,
        )
        .await
        {
            Ok(inserted) => {
                for (asked, inserted) in batch.into_iter().zip(inserted) {
                    asked.answer(Ok(inserted));
                }
            }
            // An instance that the database refuses, or that waits for another transaction, must
            // not fail or delay the other instances of the batch. So each instance gets a statement
            // of its own, which runs concurrently with the next batch.
            Err(fault)
                if matches!(fault, Fault::Busy(_))
                    || matches!(fault, Fault::Refused { .. }) && batch.len() > 1 =>
            {
                for asked in batch {
                    // This code runs on the thread of the pool, so the pool still exists and `post`
                    // succeeds.
                    drop(pool.post(move |connection| alone(connection, asked)));
                }
            }
            Err(fault) => fail_all(batch, &fault, "enqueue"),
        }
    }
}

async fn alone(connection: Rc<Connection>, asked: Asked<New, Inserted>) {
    let inserted = insert(
        &connection,
        std::iter::once(&asked.item),
        Placement::ByWorkers,
        Patience::Again,
    )
    .await;
    asked.answer(first(inserted));
}

/// Inserts any number of instances, all or none. One statement inserts them; if they are very
/// large, several statements of one transaction do.
pub(crate) async fn many(pool: &Arc<Connections>, news: Vec<New>) -> Result<Vec<Inserted>, Error> {
    let count = news.len();
    let bytes: usize = news.iter().map(weight).sum();
    let whole = |news: Vec<New>| {
        move |connection: Rc<Connection>| async move {
            insert(
                &connection,
                news.iter(),
                Placement::AtOnce,
                Patience::Bounded,
            )
            .await
        }
    };
    let done = match (count, bytes) {
        // A batch of this size takes no longer than a batch of gathered single enqueues, so it may
        // use the same connection as the single enqueues.
        (..=GATHERED_MAX, ..=SHARED_BYTES_MAX) => pool.call(whole(news)).await?,
        (_, ..=GATHERED_BYTES_MAX) => pool.apart(whole(news)).await?,
        _ => {
            pool.apart(move |connection| async move { in_chunks(&connection, &news).await })
                .await?
        }
    };
    done.map_err(|fault| fault.into_error(&format!("enqueue {count} instances")))
}

async fn in_chunks(connection: &Connection, news: &[New]) -> Result<Vec<Inserted>, Fault> {
    connection.batch("begin").await?;
    let inserted = chunks(connection, news).await;
    let ended = connection
        .batch(if inserted.is_ok() {
            "commit"
        } else {
            "rollback"
        })
        .await;
    if ended.is_err() {
        // After this fault it is unknown whether the transaction has ended, so no later statement
        // may use the connection.
        connection.reset();
    }
    let inserted = inserted?;
    ended.map(|()| inserted)
}

async fn chunks(connection: &Connection, news: &[New]) -> Result<Vec<Inserted>, Fault> {
    let mut inserted = Vec::with_capacity(news.len());
    let mut rest = news;
    while !rest.is_empty() {
        let (chunk, later) = rest.split_at(chunk_length(rest));
        inserted.extend(
            insert(
                connection,
                chunk.iter(),
                Placement::ByWorkers,
                Patience::Transaction,
            )
            .await?,
        );
        rest = later;
    }
    Ok(inserted)
}

/// Inserts an instance in the caller's transaction: the instance exists if and only if that
/// transaction commits.
pub(crate) async fn within<T: Session>(
    tx: &mut T,
    target: &Target,
    new: &New,
) -> Result<Inserted, Error> {
    first(insert_within(tx, target, std::slice::from_ref(new)).await)
}

/// Inserts any number of instances in the caller's transaction. One statement inserts them; if they
/// are very large, several statements do.
pub(crate) async fn many_within<T: Session>(
    tx: &mut T,
    target: &Target,
    news: &[New],
) -> Result<Vec<Inserted>, Error> {
    let mut inserted = Vec::with_capacity(news.len());
    let mut rest = news;
    while !rest.is_empty() {
        let (chunk, later) = rest.split_at(chunk_length(rest));
        let done = insert_within(tx, target, chunk).await;
        inserted.extend(
            done.map_err(|fault| fault.into_error(&format!("enqueue {} instances", news.len())))?,
        );
        rest = later;
    }
    Ok(inserted)
}

async fn insert_within<T: Session>(
    tx: &mut T,
    target: &Target,
    news: &[New],
) -> Result<Vec<Inserted>, Fault> {
    if news.iter().any(|new| new.key.is_some()) {
        let rows = query_in(tx, target, &KEYED, &[&document(news.iter())]).await?;
        return read_keyed(&rows, news.len());
    }
    let columns = NewInstanceColumns::of(news.iter());
    let (sql, params) = columns.statement();
    let rows = query_in(tx, target, sql, &params).await?;
    read(&rows, news.len())
}

/// Returns how many of these instances one statement inserts.
fn chunk_length(news: &[New]) -> usize {
    let mut bytes = 0;
    let fits = |new: &&New| {
        bytes += weight(new);
        bytes <= GATHERED_BYTES_MAX
    };
    news.iter().take_while(fits).count().max(1)
}

/// How long an insert of an instance with a key waits for another transaction that has inserted the
/// same key and not committed yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// The insert tries once, and waits briefly for the transaction that has inserted the same key.
    None,
    /// The insert tries several times within a bounded time, until the transaction that has
    /// inserted the same key ends.
    Bounded,
    /// The insert tries several times, and at once on the connection for statements that have met a
    /// lock: the batch of the insert met one.
    Again,
    /// The insert waits for the other transaction as long as any statement in the caller's open
    /// transaction would wait.
    Transaction,
}

/// Which transaction assigns the lane positions of new instances.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placement {
    /// The statement that inserts the instances, if it is a transaction of its own and no other
    /// transaction places at this moment. That saves a row version of each instance, and costs
    /// more than the insert of a single instance.
    AtOnce,
    /// The next pick of a worker, which places all instances that have arrived.
    ByWorkers,
}

/// Inserts instances in one statement.
async fn insert<'a>(
    connection: &Connection,
    news: impl Iterator<Item = &'a New> + Clone,
    placement: Placement,
    patience: Patience,
) -> Result<Vec<Inserted>, Fault> {
    let has_keys = news.clone().any(|new| new.key.is_some());
    let places = placement == Placement::AtOnce && news.clone().any(|new| new.lane.is_some());
    if has_keys || places {
        let document = document(news.clone());
        let rows = match patience {
            Patience::None => connection.act_once(&KEYED_AT_ONCE, &[&document]).await?,
            Patience::Bounded => connection.act(&KEYED_AT_ONCE, &[&document]).await?,
            Patience::Again => connection.act_again(&KEYED_AT_ONCE, &[&document]).await?,
            Patience::Transaction => connection.query(&KEYED, &[&document]).await?,
        };
        return read_keyed(&rows, news.count());
    }
    let columns = NewInstanceColumns::of(news);
    let (sql, params) = columns.statement();
    let rows = connection.query(sql, &params).await?;
    read(&rows, columns.machines.len())
}

/// Encodes instances with keys as one JSON document for `gen_durable.enqueue_all`, which checks for
/// each key whether another instance holds the key.
fn document<'a>(news: impl Iterator<Item = &'a New>) -> String {
    serde_json::to_string(&news.collect::<Vec<_>>()).unwrap_or_default()
}

pub(super) fn read_keyed<R: Fields>(rows: &[R], expected: usize) -> Result<Vec<Inserted>, Fault> {
    check_count("instances", expected, rows.len())?;
    let read = |row: &R| {
        Ok(Inserted {
            id: named(row, "id")?,
            is_new: named(row, "is_new")?,
            eligible_at: named(row, "eligible_at")?,
        })
    };
    rows.iter().map(read).collect()
}

fn read(rows: &[impl Fields], expected: usize) -> Result<Vec<Inserted>, Fault> {
    check_count("instances", expected, rows.len())?;
    rows.iter()
        .map(|row| {
            Ok(Inserted {
                id: named(row, "id")?,
                is_new: true,
                eligible_at: named(row, "eligible_at")?,
            })
        })
        .collect()
}

fn first(inserted: Result<Vec<Inserted>, Fault>) -> Result<Inserted, Error> {
    let inserted = inserted.map_err(|fault| fault.into_error("enqueue"))?;
    inserted
        .into_iter()
        .next()
        .ok_or_else(|| Error::broken("the database returned no row for an enqueue"))
}
