//! The event log: appends events, assigns their log positions, finds new events, reads events, and
//! deletes old events.

use std::{rc::Rc, sync::Arc};

use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    gather::{Asked, fail_all},
    pool::Connections,
    row::{check_count, column, columns, named, only, unless_all},
    sql,
    target::Target,
    tx::{Session, query_in},
};
use crate::{
    error::Error,
    model::event::{EventRow, NewEvent},
};

sql!(prepared APPEND_WITHIN, "append_within.sql", [
    TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY, TEXT
]);
sql!(bounded APPEND, "append.sql", [
    TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY, TEXT, TEXT
]);
sql!(prepared PLACE, "place_events.sql", [TEXT_ARRAY, BOOL]);
sql!(prepared DISCOVER, "discover.sql", [TEXT, INT8, INT4]);
sql!(OF_TENANT, "events_of_tenant.sql", [TEXT, INT8, INT4]);
sql!(OF_NAME, "events_of_name.sql", [TEXT, INT8, INT4, TEXT]);
sql!(OF_INSTANCE, "events_of_instance.sql", [INT8, INT8, INT4]);
sql!(LAST_POSITION, "log_position.sql", [TEXT]);
sql!(TENANTS, "event_tenants.sql", [TEXT, INT4]);
sql!(
    TRIM,
    "trim_events.sql",
    [TEXT, INT8, FLOAT8, BOOL, INT4, TEXT_ARRAY]
);
sql!(
    TRIM_LOGS,
    "trim_logs.sql",
    [FLOAT8, TEXT_ARRAY, INT4, INT4, FLOAT8]
);

/// The largest number of single events that one statement appends together.
const GATHERED_MAX: usize = 1_000;
/// A batch of one caller with more bytes than this runs on a connection of its own, so that other
/// callers do not wait behind it.
const SHARED_BYTES_MAX: usize = 1024 * 1024;
/// The client refuses a call that appends more bytes than this before it sends anything: the server
/// accepts no message of 1 GiB.
const RECORD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The largest number of newly arrived events that one poll of the event log reads.
const DISCOVER_MAX: i32 = 10_000;

/// The log position of an appended event. `None`: the event has no position yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) position: Option<i64>,
}

struct NewEventColumns<'a> {
    tenants: Vec<&'a str>,
    names: Vec<&'a str>,
    versions: Vec<i32>,
    payloads: Vec<&'a str>,
    headers: Vec<Option<&'a str>>,
    instances: Vec<Option<i64>>,
    steps: Vec<Option<&'a str>>,
    heads: &'static str,
}

impl<'a> NewEventColumns<'a> {
    fn of(
        facts: impl Iterator<Item = &'a NewEvent> + Clone,
        heads: &'static str,
    ) -> NewEventColumns<'a> {
        NewEventColumns {
            tenants: facts.clone().map(|f| f.tenant.as_str()).collect(),
            names: facts.clone().map(|f| f.name).collect(),
            versions: unless_all(1, facts.clone().map(|f| f.version)),
            payloads: facts.clone().map(|f| f.payload.get()).collect(),
            headers: unless_all(
                None,
                facts
                    .clone()
                    .map(|f| f.headers.as_deref().map(RawValue::get)),
            ),
            instances: Vec::new(),
            steps: unless_all(None, facts.map(|f| f.step.as_deref())),
            heads,
        }
    }

    fn params(&self) -> [Param<'_>; 8] {
        [
            &self.tenants,
            &self.names,
            &self.versions,
            &self.payloads,
            &self.headers,
            &self.instances,
            &self.steps,
            &self.heads,
        ]
    }
}

/// Appends one event to the log of its tenant. Events that callers append while a statement runs
/// share the next statement.
pub(crate) async fn one(pool: &Arc<Connections>, fact: NewEvent) -> Result<Placed, Error> {
    let (answered, begins) = pool.gathers.events.add(fact);
    if begins {
        let flushed = pool.clone();
        pool.post(move |connection| async move { flush(&flushed, &connection).await })?;
    }
    answered
        .await
        .map_err(|_| Error::broken("an event got no result: the database thread has ended"))?
}

fn weight(fact: &NewEvent) -> usize {
    fact.payload.get().len()
        + fact
            .headers
            .as_ref()
            .map_or(0, |headers| headers.get().len())
}

async fn flush(pool: &Arc<Connections>, connection: &Connection) {
    while let Some(batch) = pool.gathers.events.take(GATHERED_MAX, weight) {
        match append(
            connection,
            batch.iter().map(|asked| &asked.item),
            Patience::None,
        )
        .await
        {
            Ok(placed) => {
                pool.log
                    .wake_readers(batch.iter().map(|asked| asked.item.tenant.as_str()));
                for (asked, placed) in batch.into_iter().zip(placed) {
                    asked.answer(Ok(placed));
                }
            }
            // An event that the database refuses, or that waits for the locked head of a tenant's
            // log, must not fail or delay the other events of the batch. So each event gets a
            // statement of its own, which runs concurrently with the next batch.
            Err(fault)
                if matches!(fault, Fault::Busy(_))
                    || matches!(fault, Fault::Refused { .. }) && batch.len() > 1 =>
            {
                for asked in batch {
                    let log = pool.clone();
                    // This code runs on the thread of the pool, so the pool still exists and `post`
                    // succeeds.
                    drop(pool.post(move |connection| async move {
                        alone(&log, &connection, asked).await
                    }));
                }
            }
            Err(fault) => fail_all(batch, &fault, "record an event"),
        }
    }
}

async fn alone(pool: &Arc<Connections>, connection: &Connection, asked: Asked<NewEvent, Placed>) {
    let placed = append(connection, std::iter::once(&asked.item), Patience::Again).await;
    pool.log
        .wake_readers(std::iter::once(asked.item.tenant.as_str()));
    asked.answer(first(placed));
}

/// Appends any number of events to the logs of their tenants, all or none, in one statement.
pub(crate) async fn many(
    pool: &Arc<Connections>,
    facts: Vec<NewEvent>,
) -> Result<Vec<Placed>, Error> {
    let bytes: usize = facts.iter().map(weight).sum();
    if bytes > RECORD_BYTES_MAX {
        return Err(Error::invalid(format!(
            "cannot record {} events of {bytes} bytes in one call: the limit is {RECORD_BYTES_MAX} bytes; record them in several calls",
            facts.len()
        )));
    }
    let log = pool.clone();
    let is_short = facts.len() <= GATHERED_MAX && bytes <= SHARED_BYTES_MAX;
    let act = move |connection: Rc<Connection>| async move {
        let placed = append(&connection, facts.iter(), Patience::Bounded).await;
        if placed.is_ok() {
            log.log
                .wake_readers(facts.iter().map(|fact| fact.tenant.as_str()));
        }
        placed
    };
    let done = if is_short {
        pool.call(act).await?
    } else {
        pool.apart(act).await?
    };
    done.map_err(|fault| fault.into_error("record events"))
}

/// Appends events in the caller's transaction. Workers assign the log positions of these events
/// after that transaction has committed.
pub(crate) async fn within<T: Session>(
    tx: &mut T,
    target: &Target,
    facts: &[NewEvent],
) -> Result<(), Error> {
    let columns = NewEventColumns::of(facts.iter(), "none");
    let rows = query_in(tx, target, &APPEND_WITHIN, &columns.params()).await;
    rows.map(drop)
        .map_err(|fault| fault.into_error("record an event"))
}

/// How long an append waits for another transaction that holds a lock on the log head of a tenant.
#[derive(Clone, Copy)]
enum Patience {
    /// The append tries once, and waits briefly.
    None,
    /// The append tries several times within a bounded time.
    Bounded,
    /// The append tries several times, and at once on the connection for statements that have met a
    /// lock: the batch of the append met one.
    Again,
}

/// Appends events in a transaction of its own.
async fn append<'a>(
    connection: &Connection,
    facts: impl Iterator<Item = &'a NewEvent> + Clone,
    patience: Patience,
) -> Result<Vec<Placed>, Fault> {
    let columns = NewEventColumns::of(facts, "wait");
    let params = columns.params();
    let rows = match patience {
        Patience::None => connection.act_once(&APPEND, &params).await?,
        Patience::Bounded => connection.act(&APPEND, &params).await?,
        Patience::Again => connection.act_again(&APPEND, &params).await?,
    };
    check_count("events", columns.names.len(), rows.len())?;
    rows.iter()
        .map(|row| {
            Ok(Placed {
                position: named(row, "pos")?,
            })
        })
        .collect()
}

fn first(placed: Result<Vec<Placed>, Fault>) -> Result<Placed, Error> {
    let placed = placed.map_err(|fault| fault.into_error("record an event"))?;
    placed
        .into_iter()
        .next()
        .ok_or_else(|| Error::broken("the database returned no row for an event"))
}

/// Assigns log positions to the events of these tenants that have none. Skips a tenant if another
/// transaction holds a lock on its log head. Returns the tenants that it did not skip, each with
/// the number of events that got a position. With `all`, reads the index from the beginning, and
/// not only the events since the last poll.
pub(crate) async fn place(
    connection: &Connection,
    tenants: &[String],
    all: bool,
) -> Result<Vec<(String, i64)>, Fault> {
    let rows = connection.query(&PLACE, &[&tenants, &all]).await?;
    rows.iter()
        .map(|row| Ok((named(row, "tenant")?, named(row, "placed")?)))
        .collect()
}

/// How far a poll for new events has read the log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Looked {
    /// The snapshot of the last poll for new events: the polls have read every event that is
    /// visible in this snapshot. `None`: the next poll reads from the beginning.
    pub(crate) snapshot: Option<String>,
    /// The largest arrival number of an event that a poll has read. `None`: the poll searches only
    /// events without a log position.
    pub(crate) arrival_no: Option<i64>,
}

/// The new events that a poll of the event log found.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Tenants with events that have no log position yet.
    pub(crate) unplaced: Vec<String>,
    /// Tenants with new events that have a log position, each with the highest log position among
    /// its new events.
    pub(crate) placed: Vec<(String, i64)>,
    pub(crate) looked: Looked,
}

/// Finds the events that other transactions committed since the last poll.
pub(crate) async fn discover(connection: &Connection, since: &Looked) -> Result<News, Fault> {
    let rows = connection
        .query(
            &DISCOVER,
            &[&since.snapshot, &since.arrival_no, &DISCOVER_MAX],
        )
        .await?;
    let mut news = News::default();
    for row in &rows {
        match (
            named::<Option<String>>(row, "tenant")?,
            named::<Option<bool>>(row, "unplaced")?,
        ) {
            (Some(tenant), Some(true)) => news.unplaced.push(tenant),
            (Some(tenant), _) => news.placed.push((tenant, named(row, "pos")?)),
            (None, _) => {
                news.looked = Looked {
                    snapshot: named(row, "looked")?,
                    arrival_no: named(row, "arrival_no")?,
                }
            }
        }
    }
    Ok(news)
}

columns!(
    /// The columns of the statements that read events.
    EventColumns {
        position, arrival_no, tenant, name, version, payload, headers, at, instance_id, step,
    }
);

/// Selects the events that a call reads.
#[derive(Debug, Clone)]
pub(crate) enum Which {
    Tenant(String),
    Name(String, String),
    Instance(i64),
}

/// Reads events in order, after the log position `after`. If the call selects the events of one
/// instance, `after` is an arrival number.
pub(crate) async fn read(
    connection: &Connection,
    which: &Which,
    after: i64,
    limit: i32,
) -> Result<Vec<EventRow>, Fault> {
    let rows = match which {
        Which::Tenant(tenant) => {
            connection
                .query(&OF_TENANT, &[tenant, &after, &limit])
                .await?
        }
        Which::Name(tenant, name) => {
            connection
                .query(&OF_NAME, &[tenant, &after, &limit, name])
                .await?
        }
        Which::Instance(id) => {
            connection
                .query(&OF_INSTANCE, &[id, &after, &limit])
                .await?
        }
    };
    let at = EventColumns::of(&rows)?;
    rows.iter().map(|row| event_row(row, at)).collect()
}

fn event_row(row: &Row, at: EventColumns) -> Result<EventRow, Fault> {
    Ok(EventRow {
        position: column(row, at.position)?,
        arrival_no: column(row, at.arrival_no)?,
        tenant: column(row, at.tenant)?,
        name: column(row, at.name)?,
        version: column(row, at.version)?,
        payload: column(row, at.payload)?,
        headers: column(row, at.headers)?,
        at: column(row, at.at)?,
        instance_id: column(row, at.instance_id)?,
        step: column(row, at.step)?,
    })
}

/// Returns the largest log position in a tenant's log, or 0 if no event of the log has a position.
pub(crate) async fn log_position(connection: &Connection, tenant: &str) -> Result<i64, Fault> {
    let rows = connection.query(&LAST_POSITION, &[&tenant]).await?;
    rows.first().map_or(Ok(0), only)
}

/// Returns the tenants that have a log, ordered by name and beginning after the given tenant, each
/// with the log position of its last event.
pub(crate) async fn tenants(
    connection: &Connection,
    after: Option<&str>,
    limit: i32,
) -> Result<Vec<(String, i64)>, Fault> {
    let rows = connection.query(&TENANTS, &[&after, &limit]).await?;
    rows.iter()
        .map(|row| Ok((named(row, "tenant")?, named(row, "position")?)))
        .collect()
}

/// Selects the events of a tenant's log that a call may delete.
#[derive(Debug)]
pub(crate) struct Trim<'a> {
    pub(crate) tenant: &'a str,
    /// The log position of the last event that the call may delete.
    pub(crate) to: i64,
    pub(crate) older_seconds: Option<f64>,
    /// Whether the call may delete events that a projection or a run has not read yet.
    pub(crate) force: bool,
    /// The names of projections that read the log of every tenant. If such a projection has no
    /// scope for this tenant, it counts as having read nothing, so that without `force` the call
    /// deletes no event.
    pub(crate) followers: &'a [String],
    pub(crate) limit: i32,
}

/// Deletes old events of one tenant's log. Returns how many events it deleted.
pub(crate) async fn trim(connection: &Connection, trim: &Trim<'_>) -> Result<i64, Fault> {
    let Trim {
        tenant,
        to,
        older_seconds,
        force,
        followers,
        limit,
    } = trim;
    let rows = connection
        .query(&TRIM, &[tenant, to, older_seconds, force, limit, followers])
        .await?;
    rows.first().map_or(Ok(0), only)
}

/// One page of the pass over the logs of all tenants that deletes old events.
#[derive(Debug)]
pub(crate) struct TrimPage<'a> {
    pub(crate) older_seconds: f64,
    /// The names of projections that read the log of every tenant. If such a projection has no
    /// scope for a tenant, it counts as having read nothing of that tenant's log, and the pass
    /// deletes no event of that log.
    pub(crate) followers: &'a [&'static str],
    pub(crate) tenants: i32,
    pub(crate) events: i32,
    /// How long the pass that deletes old events pauses after the log of the last tenant.
    pub(crate) idle_seconds: f64,
}

/// Deletes old events of the next page of tenants, unless another worker is processing a page.
/// Returns whether the worker may process the next page at once.
pub(crate) async fn _trim_logs(
    connection: &Connection,
    page: &TrimPage<'_>,
) -> Result<bool, Fault> {
    let TrimPage {
        older_seconds,
        followers,
        tenants,
        events,
        idle_seconds,
    } = page;
    let rows = connection
        .query(
            &TRIM_LOGS,
            &[older_seconds, followers, tenants, events, idle_seconds],
        )
        .await?;
    rows.first().map_or(Ok(false), |row| named(row, "more"))
}
