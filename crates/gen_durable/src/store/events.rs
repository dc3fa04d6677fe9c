//! The event log: append, place, look what is new, read, trim.

use std::{
    rc::Rc,
    sync::{Mutex, PoisonError, Weak},
};

use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    gather::{Asked, fail_all},
    pool::{Pool, Route},
    row::{column, unless_all},
    sql,
    target::Target,
    tx::{Transaction, ride},
};
use crate::{
    error::Error,
    event::{EventRow, Fact},
    wake::LogBell,
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
sql!(HEIGHT, "event_height.sql", [TEXT]);
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

/// Single events that wait go together in one statement, up to this many.
const GATHERED_MAX: usize = 1_000;
/// A batch of one caller that is larger than this has a connection to itself: others must not wait behind it.
const SHARED_BYTES_MAX: usize = 1024 * 1024;
/// A statement larger than this is refused before it is sent: the server accepts no message of 1 GiB.
const RECORD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// At most this many rows of newly arrived events are looked at in one poll.
const DISCOVER_MAX: i32 = 10_000;

/// The engines of this process that a pool wakes when something was appended.
#[derive(Debug, Default)]
pub(crate) struct LogSide {
    /// Engines of this process that place and project. Guarded for a moment.
    bells: Mutex<Vec<Weak<LogBell>>>,
}

impl LogSide {
    pub(crate) fn subscribe(&self, bell: &std::sync::Arc<LogBell>) {
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(std::sync::Arc::downgrade(bell));
    }

    /// These tenants have new events: look now.
    pub(crate) fn poke<'a>(&self, tenants: impl Iterator<Item = &'a str> + Clone) {
        if tenants.clone().next().is_none() {
            return;
        }
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in bells.iter().filter_map(Weak::upgrade) {
            bell.poke(tenants.clone());
        }
    }

    /// Something will have to be placed soon.
    pub(crate) fn expect_unplaced(&self) {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|bell| bell.ring());
    }

    /// A run was asked for.
    pub(crate) fn poke_runs(&self) {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|bell| bell.poke_runs());
    }
}

/// Where an event came to stand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) position: Option<i64>,
}

struct Columns<'a> {
    tenants: Vec<&'a str>,
    names: Vec<&'a str>,
    versions: Vec<i32>,
    payloads: Vec<&'a str>,
    headers: Vec<Option<&'a str>>,
    instances: Vec<Option<i64>>,
    steps: Vec<Option<&'a str>>,
    heads: &'static str,
}

impl<'a> Columns<'a> {
    fn of(facts: impl Iterator<Item = &'a Fact> + Clone, heads: &'static str) -> Columns<'a> {
        Columns {
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

/// Appends one event. While a statement is under way others gather, and share the next one.
pub(crate) async fn one(pool: &Pool, fact: Fact) -> Result<Placed, Error> {
    let (answered, begins) = pool.inner.gathers.events.add(fact);
    if begins {
        let flushed = pool.clone();
        pool.post(Route::Act, move |connection| async move {
            flush(&flushed, &connection).await
        })?;
    }
    answered
        .await
        .map_err(|_| Error::broken("an event was never answered"))?
}

fn weight(fact: &Fact) -> usize {
    fact.payload.get().len()
        + fact
            .headers
            .as_ref()
            .map_or(0, |headers| headers.get().len())
}

async fn flush(pool: &Pool, connection: &Connection) {
    while let Some(batch) = pool.inner.gathers.events.take(GATHERED_MAX, weight) {
        match append(connection, batch.iter().map(|asked| &asked.item), false).await {
            Ok(placed) => {
                pool.inner
                    .log
                    .poke(batch.iter().map(|asked| asked.item.tenant.as_str()));
                for (asked, placed) in batch.into_iter().zip(placed) {
                    asked.answer(Ok(placed));
                }
            }
            // One that is refused, or that meets the held head of a tenant's log, must not fail or delay the others: each
            // goes alone, beside the next batch.
            Err(fault)
                if matches!(fault, Fault::Busy(_))
                    || matches!(fault, Fault::Refused { .. }) && batch.len() > 1 =>
            {
                for asked in batch {
                    let log = pool.clone();
                    // The pool is there, or this would not run.
                    drop(pool.post(Route::Act, move |connection| async move {
                        alone(&log, &connection, asked).await
                    }));
                }
            }
            Err(fault) => fail_all(batch, &fault, "record an event"),
        }
    }
}

async fn alone(pool: &Pool, connection: &Connection, asked: Asked<Fact, Placed>) {
    let placed = append(connection, std::iter::once(&asked.item), true).await;
    pool.inner
        .log
        .poke(std::iter::once(asked.item.tenant.as_str()));
    asked.answer(first(placed));
}

/// Appends any number of events, all or none, in one statement.
pub(crate) async fn many(pool: &Pool, facts: Vec<Fact>) -> Result<Vec<Placed>, Error> {
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
        let placed = append(&connection, facts.iter(), true).await;
        if placed.is_ok() {
            log.inner
                .log
                .poke(facts.iter().map(|fact| fact.tenant.as_str()));
        }
        placed
    };
    let done = if is_short {
        pool.act(act).await?
    } else {
        pool.apart(act).await?
    };
    done.map_err(|fault| fault.into_error("record events"))
}

/// In the caller's transaction: they wait for a position until that has committed.
pub(crate) async fn within<T: Transaction>(
    tx: &mut T,
    target: &Target,
    facts: &[Fact],
) -> Result<(), Error> {
    let columns = Columns::of(facts.iter(), "none");
    let rows = ride(tx, target, &APPEND_WITHIN, &columns.params()).await;
    rows.map(drop)
        .map_err(|fault| fault.into_error("record an event"))
}

/// Appends in a transaction of its own. With `patient`, it tries again while another transaction holds the head of a log.
async fn append<'a>(
    connection: &Connection,
    facts: impl Iterator<Item = &'a Fact> + Clone,
    patient: bool,
) -> Result<Vec<Placed>, Fault> {
    let columns = Columns::of(facts, "wait");
    let params = columns.params();
    let rows = if patient {
        connection.act(&APPEND, &params).await?
    } else {
        connection.act_once(&APPEND, &params).await?
    };
    if rows.len() != columns.names.len() {
        let message = format!(
            "{} events were sent, {} were answered",
            columns.names.len(),
            rows.len()
        );
        return Err(Fault::Refused {
            code: None,
            message,
        });
    }
    rows.iter()
        .map(|row| {
            Ok(Placed {
                position: column(row, 0)?,
            })
        })
        .collect()
}

fn first(placed: Result<Vec<Placed>, Fault>) -> Result<Placed, Error> {
    let placed = placed.map_err(|fault| fault.into_error("record an event"))?;
    placed
        .into_iter()
        .next()
        .ok_or_else(|| Error::broken("an event was answered with nothing"))
}

/// Give positions to what waits, of these tenants. Answers those whose head was free; with `all`, from the beginning.
pub(crate) async fn place(
    connection: &Connection,
    tenants: &[String],
    all: bool,
) -> Result<Vec<(String, i64)>, Fault> {
    let rows = connection.query(&PLACE, &[&tenants, &all]).await?;
    rows.iter()
        .map(|row| Ok((column(row, 0)?, column(row, 1)?)))
        .collect()
}

/// How far a look for news went.
#[derive(Debug, Clone, Default)]
pub(crate) struct Looked {
    /// Everything that was committed by this snapshot has been looked at. `None`: from the beginning.
    pub(crate) snapshot: Option<String>,
    /// The newest arrival that was seen. `None`: none is asked for.
    pub(crate) arrival: Option<i64>,
}

/// What is new in the logs.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Tenants with events that wait for a position.
    pub(crate) unplaced: Vec<String>,
    /// Tenants with new events, and the highest position among these.
    pub(crate) placed: Vec<(String, i64)>,
    pub(crate) looked: Looked,
}

/// What is new since the last look.
pub(crate) async fn discover(connection: &Connection, since: &Looked) -> Result<News, Fault> {
    let rows = connection
        .query(&DISCOVER, &[&since.snapshot, &since.arrival, &DISCOVER_MAX])
        .await?;
    let mut news = News::default();
    for row in &rows {
        match (
            column::<Option<String>>(row, 0)?,
            column::<Option<bool>>(row, 1)?,
        ) {
            (Some(tenant), Some(true)) => news.unplaced.push(tenant),
            (Some(tenant), _) => news.placed.push((tenant, column(row, 4)?)),
            (None, _) => {
                news.looked = Looked {
                    snapshot: column(row, 3)?,
                    arrival: column(row, 2)?,
                }
            }
        }
    }
    Ok(news)
}

/// Which events to read.
#[derive(Debug, Clone)]
pub(crate) enum Which {
    Tenant(String),
    Name(String, String),
    Instance(i64),
}

/// Events after a position (of an instance: after an arrival), in order.
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
    rows.iter().map(event_row).collect()
}

fn event_row(row: &Row) -> Result<EventRow, Fault> {
    Ok(EventRow {
        position: column(row, 0)?,
        arrival: column(row, 1)?,
        tenant: column(row, 2)?,
        name: column(row, 3)?,
        version: column(row, 4)?,
        payload: column(row, 5)?,
        headers: column(row, 6)?,
        at: column(row, 7)?,
        instance_id: column(row, 8)?,
        step: column(row, 9)?,
    })
}

/// The position of a tenant's last placed event; 0: there is none.
pub(crate) async fn height(connection: &Connection, tenant: &str) -> Result<i64, Fault> {
    let rows = connection.query(&HEIGHT, &[&tenant]).await?;
    rows.first().map_or(Ok(0), |row| column(row, 0))
}

/// Tenants with a log, and how high it is, after this one in their order.
pub(crate) async fn tenants(
    connection: &Connection,
    after: Option<&str>,
    limit: i32,
) -> Result<Vec<(String, i64)>, Fault> {
    let rows = connection.query(&TENANTS, &[&after, &limit]).await?;
    rows.iter()
        .map(|row| Ok((column(row, 0)?, column(row, 1)?)))
        .collect()
}

/// What of a log may go.
#[derive(Debug)]
pub(crate) struct Trim<'a> {
    pub(crate) tenant: &'a str,
    /// Up to this position.
    pub(crate) to: i64,
    pub(crate) older_seconds: Option<f64>,
    /// Whoever has not read it.
    pub(crate) abandon: bool,
    /// Projections that follow every log, also those that have not begun with this one.
    pub(crate) followers: &'a [String],
    pub(crate) limit: i32,
}

/// Delete old events. Answers how many.
pub(crate) async fn trim(connection: &Connection, trim: &Trim<'_>) -> Result<i64, Fault> {
    let Trim {
        tenant,
        to,
        older_seconds,
        abandon,
        followers,
        limit,
    } = trim;
    let rows = connection
        .query(
            &TRIM,
            &[tenant, to, older_seconds, abandon, limit, followers],
        )
        .await?;
    rows.first().map_or(Ok(0), |row| column(row, 0))
}

/// A page of the walk that trims all logs.
#[derive(Debug)]
pub(crate) struct TrimPage<'a> {
    pub(crate) older_seconds: f64,
    /// Projections that follow every log, also those that have not begun with any.
    pub(crate) followers: &'a [&'static str],
    pub(crate) tenants: i32,
    pub(crate) events: i32,
    /// How long the walk rests at its end.
    pub(crate) idle_seconds: f64,
}

/// Deletes old events of the next page of tenants, unless another worker is at it. Returns whether there may be more at once.
pub(crate) async fn trim_logs(connection: &Connection, page: &TrimPage<'_>) -> Result<bool, Fault> {
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
    rows.first().map_or(Ok(false), |row| column(row, 1))
}
