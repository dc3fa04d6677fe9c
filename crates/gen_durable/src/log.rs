//! Reading logs, and trimming them.

use std::time::Duration;

use crate::{
    codec,
    error::Error,
    event::{Event, EventRow, Events, Recorded},
    id::{Id, NAME_BYTES_MAX},
    store::{
        connection::Connection,
        events::{self, Trim, Which},
        fault::Fault,
        pool::Pool,
        projections,
    },
};

/// The most events of one page.
const PAGE_MAX: usize = 10_000;
/// Events deleted in one statement.
const TRIM_BATCH: i32 = 5_000;

/// The logs of all tenants: `client.events().of_tenant("acme", 0, 100)`. Pages go by position: ask again from the last one.
#[derive(Debug, Clone)]
pub struct Log {
    pool: Pool,
}

impl Log {
    pub(crate) fn new(pool: Pool) -> Log {
        Log { pool }
    }

    /// Events of a tenant after this position, in order.
    pub async fn of_tenant(
        &self,
        tenant: &str,
        after: i64,
        limit: usize,
    ) -> Result<Vec<EventRow>, Error> {
        self.page(Which::Tenant(named(tenant)?), after, limit).await
    }

    /// Events of this name in a tenant's log after this position, in order.
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

    /// The same, decoded.
    pub async fn of<E: Event>(
        &self,
        tenant: &str,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Recorded<E>>, Error> {
        let rows = self.of_name(tenant, E::NAME, after, limit).await?;
        rows.into_iter().map(decoded).collect()
    }

    /// Events that an instance recorded, in the order of their arrival, after this one; also those that have no position yet.
    pub async fn of_instance<M>(
        &self,
        id: Id<M>,
        after: i64,
        limit: usize,
    ) -> Result<Vec<EventRow>, Error> {
        self.page(Which::Instance(id.raw()), after, limit).await
    }

    /// The position of the last event of a tenant's log; 0: it has none.
    pub async fn height(&self, tenant: &str) -> Result<i64, Error> {
        let tenant = named(tenant)?;
        self.call("read a log", move |connection| async move {
            events::height(&connection, &tenant).await
        })
        .await
    }

    /// Tenants that have a log, and its height, after this one in their order.
    pub async fn tenants(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>, Error> {
        let after = after.map(str::to_owned);
        let act = move |connection: std::rc::Rc<Connection>| async move {
            events::tenants(&connection, after.as_deref(), page(limit)).await
        };
        self.call("list the logs", act).await
    }

    /// Give positions to events of this tenant that were recorded in transactions and have committed. Engines do it by
    /// themselves; a program without one may. Answers how many.
    pub async fn place(&self, tenant: &str) -> Result<i64, Error> {
        let tenants = vec![named(tenant)?];
        let act = move |connection: std::rc::Rc<Connection>| async move {
            events::place(&connection, &tenants, true).await
        };
        let placed = self.call("place events", act).await?;
        self.pool
            .inner
            .log
            .poke(placed.iter().map(|(tenant, _)| tenant.as_str()));
        Ok(placed.iter().map(|(_, count)| count).sum())
    }

    /// Delete events of a tenant up to this position that are older than this. Never the last one; and none that a projection
    /// of the tenant, or a run, has not read yet; one that follows other tenants and has not begun with this one has read nothing. Answers how many. What is gone cannot be replayed: a rebuild of a trimmed log halts.
    pub async fn trim(&self, tenant: &str, to: i64, older_than: Duration) -> Result<i64, Error> {
        self.trim_with(tenant, to, older_than, false).await
    }

    /// The same, whatever has read it: projections that stand below will halt.
    pub async fn trim_anyway(
        &self,
        tenant: &str,
        to: i64,
        older_than: Duration,
    ) -> Result<i64, Error> {
        self.trim_with(tenant, to, older_than, true).await
    }

    async fn trim_with(
        &self,
        tenant: &str,
        to: i64,
        older_than: Duration,
        abandon: bool,
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
                    abandon,
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
            events::read(&connection, &which, after, page(limit)).await
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
            .apart(act)
            .await?
            .map_err(|fault| fault.into_error(doing))
    }
}

fn page(limit: usize) -> i32 {
    i32::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(i32::MAX)
}

fn named(tenant: &str) -> Result<String, Error> {
    codec::check_name("a tenant's name", tenant, 0, NAME_BYTES_MAX).map_err(Error::invalid)?;
    Ok(tenant.to_owned())
}

fn decoded<E: Event>(row: EventRow) -> Result<Recorded<E>, Error> {
    let shape = |error: String| {
        Error::invalid(format!(
            "event {:?} of {:?} is of another shape: {error}",
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
