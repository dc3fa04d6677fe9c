//! Insert instances: one, many, or the caller's own in the caller's transaction.

use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::{
    Sql,
    connection::{Connection, Param},
    fault::Fault,
    pool::Pool,
    row::{Fields, column, unless_all},
    sql,
    target::Target,
    tx::{Transaction, ride},
};
use crate::{birth::New, error::Error};

sql!(prepared INSERT, "enqueue.sql", [
    TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT2_ARRAY, TEXT_ARRAY, TIMESTAMPTZ_ARRAY,
    FLOAT8_ARRAY, TEXT_ARRAY
]);

sql!(KEYED, "enqueue_all.sql", [TEXT]);
sql!(KEYED_AT_ONCE, "enqueue_at_once.sql", [TEXT]);

/// At most this much JSON goes into one statement; what is larger goes in several, in one transaction.
const STATEMENT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Single enqueues that wait go together in one statement, up to this many.
const GATHERED_MAX: usize = 1_000;

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inserted {
    pub(crate) id: i64,
    pub(crate) is_new: bool,
    pub(crate) eligible_at: Timestamp,
}

/// Enqueues that wait for the statement under way to come back: then they go together, in the next one. Alone, an
/// enqueue waits for nothing.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    waiting: Vec<(New, oneshot::Sender<Result<Inserted, Error>>)>,
    under_way: bool,
}

struct Columns<'a> {
    fsms: Vec<&'a str>,
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
}

impl<'a> Columns<'a> {
    fn of(news: impl Iterator<Item = &'a New> + Clone) -> Columns<'a> {
        Columns {
            fsms: news.clone().map(|n| n.fsm).collect(),
            versions: news.clone().map(|n| n.fsm_version).collect(),
            steps: news.clone().map(|n| n.step.as_str()).collect(),
            data: unless_all(None, news.clone().map(|n| n.data.as_deref().map(RawValue::get))),
            states: news.clone().map(|n| n.state.get()).collect(),
            queues: news.clone().map(|n| n.queue.as_str()).collect(),
            priorities: unless_all(0, news.clone().map(|n| n.priority)),
            tenants: unless_all("", news.clone().map(|n| n.tenant.as_str())),
            ats: unless_all(None, news.clone().map(|n| n.at)),
            delays: unless_all(0.0, news.clone().map(|n| n.delay_seconds)),
            traceparents: unless_all(None, news.map(|n| n.traceparent.as_deref())),
        }
    }

    fn params(&self) -> [Param<'_>; 11] {
        [
            &self.fsms,
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
        ]
    }
}

/// One instance. While a statement is under way others gather, and share the next one.
pub(crate) async fn one(pool: &Pool, new: New) -> Result<Inserted, Error> {
    let (answer, answered) = oneshot::channel();
    let begin = {
        let mut pending = pool.inner.enqueues.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        pending.waiting.push((new, answer));
        !std::mem::replace(&mut pending.under_way, true)
    };
    if begin {
        let flushed = pool.clone();
        pool.post(move |connection| async move { flush(&flushed, &connection).await })?;
    }
    answered.await.map_err(|_| Error::broken("an enqueue was never answered"))?
}

async fn flush(pool: &Pool, connection: &Connection) {
    loop {
        let batch = {
            let mut pending = pool.inner.enqueues.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if pending.waiting.is_empty() {
                pending.under_way = false;
                return;
            }
            // Who has gone away does not enqueue any more: after an outage they would all come at once.
            pending.waiting.retain(|(_, answer)| !answer.is_closed());
            let count = pending.waiting.len().min(GATHERED_MAX);
            pending.waiting.drain(..count).collect::<Vec<_>>()
        };
        match insert(connection, batch.iter().map(|(new, _)| new), &KEYED_AT_ONCE).await {
            Ok(inserted) => {
                for ((_, answer), inserted) in batch.into_iter().zip(inserted) {
                    drop(answer.send(Ok(inserted)));
                }
            }
            // One that the database refuses must not fail the others: each on its own.
            Err(Fault::Refused { .. }) if batch.len() > 1 => {
                for (new, answer) in batch {
                    let alone = insert(connection, std::iter::once(&new), &KEYED_AT_ONCE).await;
                    drop(answer.send(first(alone)));
                }
            }
            Err(fault) => {
                let message = fault.message().to_owned();
                for (_, answer) in batch {
                    let same = match &fault {
                        Fault::Away(_) => Fault::Away(message.clone()),
                        Fault::Lost(_) => Fault::Lost(message.clone()),
                        Fault::Busy(_) => Fault::Busy(message.clone()),
                        Fault::TimedOut(_) => Fault::TimedOut(message.clone()),
                        Fault::Refused { code, .. } => Fault::Refused { code: code.clone(), message: message.clone() },
                    };
                    drop(answer.send(Err(same.into_error("enqueue"))));
                }
            }
        }
    }
}

/// Many instances, of any number, all or none: one statement, or several in one transaction when they are very large.
pub(crate) async fn many(pool: &Pool, news: Vec<New>) -> Result<Vec<Inserted>, Error> {
    let count = news.len();
    let bytes: usize = news.iter().map(|new| new.state.get().len()).sum();
    let done = if bytes <= STATEMENT_BYTES_MAX {
        pool.call(move |connection| async move { insert(&connection, news.iter(), &KEYED_AT_ONCE).await }).await?
    } else {
        let target = pool.inner.target.clone();
        pool.call(move |_| async move {
            // The calls' connection is shared, so a transaction of several statements gets one of its own.
            let own = Connection::new(target);
            in_chunks(&own, &news).await
        })
        .await?
    };
    done.map_err(|fault| fault.into_error(&format!("enqueue {count} instances")))
}

async fn in_chunks(connection: &Connection, news: &[New]) -> Result<Vec<Inserted>, Fault> {
    let mut inserted = Vec::with_capacity(news.len());
    connection.batch("begin").await?;
    let mut rest = news;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take_while(|new| {
                bytes += new.state.get().len();
                bytes <= STATEMENT_BYTES_MAX
            })
            .count()
            .max(1);
        let (chunk, later) = rest.split_at(count);
        inserted.extend(insert(connection, chunk.iter(), &KEYED).await?);
        rest = later;
    }
    connection.batch("commit").await?;
    Ok(inserted)
}

/// In the caller's transaction: it exists if and only if the rest of it does.
pub(crate) async fn within<T: Transaction>(tx: &mut T, target: &Target, new: &New) -> Result<Inserted, Error> {
    if new.is_keyed() {
        let rows = ride(tx, target, &KEYED, &[&document(std::iter::once(new))]).await;
        return first(rows.and_then(|rows| read_keyed(&rows, 1)));
    }
    let columns = Columns::of(std::iter::once(new));
    let rows = ride(tx, target, &INSERT, &columns.params()).await;
    first(rows.and_then(|rows| read(&rows, 1)))
}

/// Where the transaction ends with the statement, lanes give out their places at once; otherwise whoever picks does.
async fn insert<'a>(
    connection: &Connection,
    news: impl Iterator<Item = &'a New> + Clone,
    keyed: &'static Sql,
) -> Result<Vec<Inserted>, Fault> {
    if news.clone().any(New::is_keyed) {
        let rows = connection.query(keyed, &[&document(news.clone())]).await?;
        return read_keyed(&rows, news.count());
    }
    let columns = Columns::of(news);
    let rows = connection.query(&INSERT, &columns.params()).await?;
    read(&rows, columns.fsms.len())
}

/// Instances with keys go as a document: each asks who holds its key.
fn document<'a>(news: impl Iterator<Item = &'a New>) -> String {
    serde_json::to_string(&news.collect::<Vec<_>>()).unwrap_or_default()
}

pub(super) fn read_keyed<R: Fields>(rows: &[R], expected: usize) -> Result<Vec<Inserted>, Fault> {
    if rows.len() != expected {
        let message = format!("{expected} instances were sent, {} were answered", rows.len());
        return Err(Fault::Refused { code: None, message });
    }
    let read = |row: &R| Ok(Inserted { id: column(row, 1)?, is_new: column(row, 2)?, eligible_at: column(row, 3)? });
    rows.iter().map(read).collect()
}

fn read(rows: &[impl Fields], expected: usize) -> Result<Vec<Inserted>, Fault> {
    if rows.len() != expected {
        let message = format!("{expected} instances were sent, {} were answered", rows.len());
        return Err(Fault::Refused { code: None, message });
    }
    rows.iter().map(|row| Ok(Inserted { id: column(row, 0)?, is_new: true, eligible_at: column(row, 1)? })).collect()
}

fn first(inserted: Result<Vec<Inserted>, Fault>) -> Result<Inserted, Error> {
    let inserted = inserted.map_err(|fault| fault.into_error("enqueue"))?;
    inserted.into_iter().next().ok_or_else(|| Error::broken("an enqueue was answered with nothing"))
}
