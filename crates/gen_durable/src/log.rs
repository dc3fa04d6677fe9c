//! Calls that read and trim the event logs of tenants.

use std::{future::Future, pin::Pin, time::Duration};

use crate::{
    codec,
    error::Error,
    event::{Event, Events, Recorded},
    id::{Id, NAME_BYTES_MAX},
    model::{event::EventRow, page_size},
    pool::Pool,
    store::{
        connection::Connection,
        events::{self, Trim, Which},
        fault::Fault,
        projections,
    },
};

/// The largest number of events that one read of a log returns.
const PAGE_MAX: usize = 10_000;
/// The number of events of a log that one statement of a trim deletes.
const TRIM_BATCH: i32 = 5_000;

/// The event logs of all tenants: `client.events().of_tenant("acme", 0, 100)`. To read the next
/// page, pass the position of the last event as `after`. A page has at most `limit` entries, up to
/// 10,000; 0 means 50.
#[derive(Debug, Clone)]
pub struct Log {
    pool: Pool,
}

impl Log {
    pub(crate) fn new(pool: Pool) -> Log {
        Log { pool }
    }

    /// Returns the events of a tenant's log after this position, in the order of their positions.
    ///
    /// # Errors
    /// The tenant's name is invalid, or the database is unreachable.
    pub async fn of_tenant(
        &self,
        tenant: &str,
        after: i64,
        limit: usize,
    ) -> Result<Vec<EventRow>, Error> {
        self.page(Which::Tenant(named(tenant)?), after, limit).await
    }

    /// Returns the events with this name in a tenant's log after this position, in order.
    ///
    /// # Errors
    /// The name of the tenant or of the event is invalid, or the database is unreachable.
    pub async fn of_name(
        &self,
        tenant: &str,
        name: &str,
        after: i64,
        limit: usize,
    ) -> Result<Vec<EventRow>, Error> {
        codec::check_name("an event's name", name, 1, NAME_BYTES_MAX).map_err(Error::invalid)?;
        self.page(Which::Name(named(tenant)?, name.to_owned()), after, limit)
            .await
    }

    /// Returns the events of type `E` in a tenant's log after this position, decoded and in order.
    ///
    /// # Errors
    /// An event cannot be decoded, or the database is unreachable.
    pub async fn of<E: Event>(
        &self,
        tenant: &str,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Recorded<E>>, Error> {
        let rows = self.of_name(tenant, E::NAME, after, limit).await?;
        rows.into_iter().map(decoded).collect()
    }

    /// Returns the events that an instance recorded, in the order of their arrival numbers, after
    /// the arrival number `after`. The list includes events without a log position.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn of_instance<M>(
        &self,
        id: Id<M>,
        after: i64,
        limit: usize,
    ) -> Result<Vec<EventRow>, Error> {
        self.page(Which::Instance(id.raw()), after, limit).await
    }

    /// Returns the position of the last event of a tenant's log; 0 if the log is empty.
    ///
    /// # Errors
    /// The tenant's name is invalid, or the database is unreachable.
    pub async fn log_position(&self, tenant: &str) -> Result<i64, Error> {
        let tenant = named(tenant)?;
        self.call("read a log", move |connection| async move {
            events::log_position(&connection, &tenant).await
        })
        .await
    }

    /// Returns the tenants that have a log, each with the position of its last event. The list is
    /// ordered by tenant and begins after `after`.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn tenants(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>, Error> {
        let after = after.map(str::to_owned);
        let act = move |connection: std::rc::Rc<Connection>| async move {
            events::tenants(&connection, after.as_deref(), page_size(limit, PAGE_MAX)).await
        };
        self.call("list the logs", act).await
    }

    /// Assigns positions to events of this tenant that callers recorded in transactions, if these
    /// transactions have committed. Engines assign positions on their own; a program without an
    /// engine may call this method. Returns the number of events that received a position.
    ///
    /// # Errors
    /// The tenant's name is invalid, or the database is unreachable.
    pub async fn assign_positions(&self, tenant: &str) -> Result<i64, Error> {
        let tenants = vec![named(tenant)?];
        let act = move |connection: std::rc::Rc<Connection>| async move {
            events::place(&connection, &tenants, true).await
        };
        let placed = self.call("assign positions to events", act).await?;
        self.pool
            .connections
            .log
            .wake_readers(placed.iter().map(|(tenant, _)| tenant.as_str()));
        Ok(placed.iter().map(|(_, count)| count).sum())
    }

    /// Deletes events of a tenant up to the position `to` that are older than `older_than`. A trim
    /// never deletes the last event, nor an event that a projection or a run of the tenant has not
    /// read yet, unless [`force`](TrimLog::force) is set. If a projection has scopes only for other
    /// tenants, it counts as a projection that has not read any event of this log. Returns the
    /// number of deleted events. Deleted events cannot be applied again: a rebuild, a replay
    /// or a verification that needs them fails and leaves the rows unchanged.
    ///
    /// # Errors
    /// The tenant's name is invalid, or the database is unreachable.
    pub fn trim(&self, tenant: &str, to: i64, older_than: Duration) -> TrimLog<'_> {
        TrimLog {
            log: self,
            tenant: tenant.to_owned(),
            to,
            older_than,
            force: false,
        }
    }

    async fn trim_with(
        &self,
        tenant: &str,
        to: i64,
        older_than: Duration,
        force: bool,
    ) -> Result<i64, Error> {
        let (tenant, mut count) = (named(tenant)?, 0);
        let older_seconds = (!older_than.is_zero()).then(|| codec::delay_seconds(older_than));
        loop {
            let tenant = tenant.clone();
            let act = move |connection: std::rc::Rc<Connection>| async move {
                let followers = &projections::names(&connection).await?;
                let trim = Trim {
                    tenant: &tenant,
                    to,
                    older_seconds,
                    force,
                    followers,
                    limit: TRIM_BATCH,
                };
                events::trim(&connection, &trim).await
            };
            let gone = self.call("trim a log", act).await?;
            count += gone;
            if gone < TRIM_BATCH.into() {
                return Ok(count);
            }
        }
    }

    async fn page(&self, which: Which, after: i64, limit: usize) -> Result<Vec<EventRow>, Error> {
        let act = move |connection: std::rc::Rc<Connection>| async move {
            events::read(&connection, &which, after, page_size(limit, PAGE_MAX)).await
        };
        self.call("read a log", act).await
    }

    async fn call<T, F, Fut>(&self, doing: &str, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(std::rc::Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        self.pool
            .connections
            .apart(act)
            .await?
            .map_err(|fault| fault.into_error(doing))
    }
}

fn named(tenant: &str) -> Result<String, Error> {
    codec::check_name("a tenant's name", tenant, 0, NAME_BYTES_MAX).map_err(Error::invalid)?;
    Ok(tenant.to_owned())
}

fn decoded<E: Event>(row: EventRow) -> Result<Recorded<E>, Error> {
    let shape = |error: String| {
        Error::invalid(format!(
            "event {:?} of {:?} cannot be decoded: {error}",
            row.position, row.tenant
        ))
    };
    let parse = |text: &str| serde_json::from_str(text).map_err(|error| shape(error.to_string()));
    let version = u16::try_from(row.version).unwrap_or_default();
    Ok(Recorded {
        position: row.position.unwrap_or_default(),
        at: row.at,
        instance: row.instance_id,
        step: row.step.clone(),
        headers: row.headers.as_deref().map(parse).transpose()?,
        event: <E as Events>::decode(&row.name, version, &row.payload)
            .map_err(|error| shape(error.to_string()))?,
    })
}

/// A request to trim a log. Awaiting it sends the request: `log.trim("acme", 100,
/// DAY).force().await`.
#[must_use = "a trim does nothing until it is awaited"]
#[derive(Debug)]
pub struct TrimLog<'l> {
    log: &'l Log,
    tenant: String,
    to: i64,
    older_than: Duration,
    force: bool,
}

impl TrimLog<'_> {
    /// Lets the trim delete events that projections have not read yet, too. A projection that still
    /// needs a deleted event fails.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }
}

impl<'l> IntoFuture for TrimLog<'l> {
    type Output = Result<i64, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'l>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let TrimLog {
                log,
                tenant,
                to,
                older_than,
                force,
            } = self;
            log.trim_with(&tenant, to, older_than, force).await
        })
    }
}
