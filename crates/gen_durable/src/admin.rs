//! Projections for operators: their progress, runs and failures. These calls only read and write
//! rows; a worker that has registered a projection applies its events and carries out its runs.

mod read;
mod request;

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

pub use request::{ListFailures, RunRequest, RunsRequest};

use crate::{
    codec,
    error::{Error, ErrorKind, storable},
    id::NAME_BYTES_MAX,
    model::projection::{ProjectionInfo, ProjectionRun, RunKind, Scope, ScopeFilter, ScopeStatus},
    pool::Pool,
    store::{
        connection::Connection,
        events,
        fault::Fault,
        projections, redrive,
        runs::{self, Request},
        scopes,
    },
};

/// The first and the longest interval between two reads of a caller that waits for a cursor or a
/// run.
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(100);
/// The largest number of rows that one list call returns.
const PAGE_MAX: i32 = 10_000;

/// Projections for operators: `client.projections()`.
///
/// A request (a rebuild, a replay, a verification, a retry) inserts or updates a row. A live worker
/// that has registered the projection carries the request out; if that worker crashes, another
/// worker continues.
#[derive(Debug, Clone)]
pub struct Projections {
    pool: Pool,
}

impl Projections {
    pub(crate) fn new(pool: Pool) -> Projections {
        Projections { pool }
    }

    /// Returns the progress of projections, ordered by tenant and projection:
    /// `ScopeFilter::default()` selects all scopes, and
    /// [`Inspect::projections`](crate::inspect::Inspect::projections) reads them page by page.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn list(&self, filter: impl Into<ScopeFilter>) -> Result<Vec<ProjectionInfo>, Error> {
        let filter = checked(filter.into())?;
        self.call("list projections", move |connection| async move {
            let (tenant, projection) = (filter.tenant.as_deref(), filter.projection.as_deref());
            scopes::list(&connection, tenant, projection, None, limit(&filter)).await
        })
        .await
    }

    /// Returns the progress of one projection of a tenant. `None` if the projection has not read
    /// any event of this tenant yet.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn status(&self, scope: impl Into<Scope>) -> Result<Option<ProjectionInfo>, Error> {
        Ok(self.list(scope.into()).await?.into_iter().next())
    }

    /// Returns rebuilds, replays and verifications of projections, the newest run first.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn runs(&self, filter: impl Into<ScopeFilter>) -> Result<Vec<ProjectionRun>, Error> {
        let filter = checked(filter.into())?;
        self.call("list runs", move |connection| async move {
            let (tenant, projection) = (filter.tenant.as_deref(), filter.projection.as_deref());
            runs::list(&connection, None, tenant, projection, limit(&filter)).await
        })
        .await
    }

    /// Returns the rebuild, replay or verification with this number.
    ///
    /// # Errors
    /// The run does not exist, or the database is unreachable.
    pub async fn run(&self, id: i64) -> Result<ProjectionRun, Error> {
        let found = self
            .call("read a run", move |connection| async move {
                runs::list(&connection, Some(id), None, None, 1).await
            })
            .await?;
        found
            .into_iter()
            .next()
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no run {id}")))
    }

    /// Waits until a run has ended, for at most `timeout`. Returns the state of the run.
    ///
    /// # Errors
    /// The run does not exist, or the database is unreachable.
    pub async fn finished(&self, id: i64, timeout: Duration) -> Result<ProjectionRun, Error> {
        let (begun, mut pause) = (Instant::now(), POLL_FIRST);
        loop {
            let run = self.run(id).await?;
            if run.is_over() || begun.elapsed() >= timeout {
                return Ok(run);
            }
            tokio::time::sleep(pause.min(timeout.saturating_sub(begun.elapsed()))).await;
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// Returns the events that projections could not apply and that are not resolved; with
    /// [`include_resolved`](ListFailures::include_resolved), also events that a projection applied
    /// later. Awaiting the request reads them.
    pub fn failures(&self, filter: impl Into<ScopeFilter>) -> ListFailures {
        ListFailures {
            projections: self.clone(),
            filter: filter.into(),
            resolved: false,
        }
    }

    /// Requests a rebuild in place: a worker deletes the rows of the scope and applies all events
    /// again. Readers see the intermediate states. The awaited request returns the number of the
    /// run.
    pub fn rebuild(&self, scope: impl Into<Scope>) -> RunRequest {
        self.ask(RunKind::Rebuild, scope.into())
    }

    /// Requests a shadow rebuild, as `REFRESH MATERIALIZED VIEW CONCURRENTLY` does it: a worker
    /// applies all events to rows of another generation while readers use the rows of the current
    /// generation, compares the digests of both, and makes the new generation the current one. If
    /// the digests differ although the version is the same, the current generation stays, unless
    /// [`force`](RunRequest::force) is set.
    pub fn shadow_rebuild(&self, scope: impl Into<Scope>) -> RunRequest {
        self.ask(RunKind::Shadow, scope.into())
    }

    /// Requests a replay: a worker applies events again to the existing rows. A replay is for
    /// projections that are idempotent, or for which a repetition is intended.
    pub fn replay(&self, scope: impl Into<Scope>) -> RunRequest {
        self.ask(RunKind::Replay, scope.into())
    }

    /// Requests a verification: a worker applies all events to rows of another generation, compares
    /// their digest with the digest of the current generation, reports whether the digests are
    /// equal, and deletes the rows of the other generation.
    pub fn verify(&self, scope: impl Into<Scope>) -> RunRequest {
        self.ask(RunKind::Verify, scope.into())
    }

    /// Requests a run of this kind for every tenant of a projection, in one statement. The
    /// statement skips tenants with an open run.
    pub fn for_all_tenants(&self, kind: RunKind, projection: &str) -> RunsRequest {
        RunsRequest(self.ask(kind, Scope::new(projection)))
    }

    fn ask(&self, kind: RunKind, scope: Scope) -> RunRequest {
        let request = Request {
            tenant: scope.tenant().to_owned(),
            projection: scope.projection().to_owned(),
            kind,
            from: 0,
            to: None,
            force: false,
            by: String::new(),
            version: None,
        };
        RunRequest {
            projections: self.clone(),
            request,
        }
    }

    /// Cancels a run. Returns `false` if the run does not exist or had already ended. A cancel does
    /// not restore the rows that a rebuild in place has deleted: the projection continues to apply
    /// its events as usual.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn cancel(&self, run: i64, why: &str) -> Result<bool, Error> {
        let why = storable(why);
        let cancelled = self
            .call("cancel a run", move |connection| async move {
                runs::cancel(&connection, run, &why).await
            })
            .await?;
        self.pool.connections.log.wake_runs();
        Ok(cancelled)
    }

    /// Resumes at once a projection that has halted or waits for its next attempt. Returns whether
    /// the projection was in one of these states.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn retry(&self, scope: impl Into<Scope>) -> Result<bool, Error> {
        let scope = checked_scope(scope.into())?;
        let going = self
            .call("retry a projection", move |connection| async move {
                projections::retry(&connection, scope.tenant(), scope.projection()).await
            })
            .await?;
        self.pool.connections.log.wake_runs();
        Ok(going)
    }

    /// Requests a redrive of one parked event, or of all parked events of the scope. Returns the
    /// number of these events.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn redrive(
        &self,
        scope: impl Into<Scope>,
        position: Option<i64>,
    ) -> Result<usize, Error> {
        let scope = checked_scope(scope.into())?;
        let count = self
            .call("retry parked events", move |connection| async move {
                redrive::mark(&connection, scope.tenant(), scope.projection(), position).await
            })
            .await?;
        self.pool.connections.log.wake_runs();
        Ok(count)
    }

    /// Waits until a projection has reached `position`, for at most `timeout`. Returns the position
    /// that the projection has reached, which is below `position` if the time ran out.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, the projection has halted, or the database
    /// is unreachable.
    pub async fn sync(
        &self,
        scope: impl Into<Scope>,
        position: i64,
        timeout: Duration,
    ) -> Result<i64, Error> {
        let scope = checked_scope(scope.into())?;
        let (tenant, projection) = (scope.tenant(), scope.projection());
        let (begun, mut pause) = (Instant::now(), POLL_FIRST);
        let tenants = vec![tenant.to_owned()];
        let assign = move |connection: Rc<Connection>| async move {
            events::place(&connection, &tenants, false).await.map(drop)
        };
        self.call_briefly("assign positions to events", assign)
            .await?;
        self.pool
            .connections
            .log
            .wake_readers(std::iter::once(tenant));
        loop {
            let (tenant_name, name) = (tenant.to_owned(), projection.to_owned());
            let cursor = self
                .call_briefly("read a cursor", move |connection| async move {
                    projections::cursor(&connection, &tenant_name, &name).await
                })
                .await?;
            let reached = cursor.as_ref().map_or(0, |cursor| cursor.position);
            if reached >= position || begun.elapsed() >= timeout {
                return Ok(reached);
            }
            if let Some(cursor) = cursor.filter(|cursor| cursor.status == ScopeStatus::Halted) {
                let message = format!(
                    "{projection} of {tenant:?} has halted at position {reached}: {}",
                    cursor.last_error.unwrap_or_default()
                );
                return Err(Error::new(ErrorKind::Refused, message));
            }
            tokio::time::sleep(pause.min(timeout.saturating_sub(begun.elapsed()))).await;
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// Runs a short statement, which waits for no lock and reads by a key, on the shared
    /// connections, because many callers may wait for a projection.
    async fn call_briefly<T, F, Fut>(&self, doing: &str, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        self.pool
            .connections
            .call(act)
            .await?
            .map_err(|fault| fault.into_error(doing))
    }

    async fn call<T, F, Fut>(&self, doing: &str, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        self.pool
            .connections
            .apart(act)
            .await?
            .map_err(|fault| fault.into_error(doing))
    }
}

/// Returns the scope if a row can store the names of its tenant and its projection.
fn checked_scope(scope: Scope) -> Result<Scope, Error> {
    check(Some(scope.tenant()), Some(scope.projection()))?;
    Ok(scope)
}

/// Returns the filter if a row can store the names in it.
fn checked(filter: ScopeFilter) -> Result<ScopeFilter, Error> {
    check(filter.tenant.as_deref(), filter.projection.as_deref())?;
    Ok(filter)
}

/// Returns the largest number of rows that a list call with this filter returns.
fn limit(filter: &ScopeFilter) -> i32 {
    match i32::try_from(filter.limit) {
        Ok(limit @ 1..=PAGE_MAX) => limit,
        _ => PAGE_MAX,
    }
}

/// Checks that a row can store the name of the tenant and the name of the projection.
fn check(tenant: Option<&str>, projection: Option<&str>) -> Result<(), Error> {
    codec::check_name(
        "a tenant's name",
        tenant.unwrap_or_default(),
        0,
        NAME_BYTES_MAX,
    )
    .map_err(Error::invalid)?;
    codec::check_name(
        "a projection's name",
        projection.unwrap_or("any"),
        1,
        NAME_BYTES_MAX,
    )
    .map_err(Error::invalid)
}
