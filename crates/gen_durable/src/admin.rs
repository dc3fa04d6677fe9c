//! Projections for operators: their progress, runs and failures. These calls only read and write
//! rows; a worker that has registered a projection applies its events and carries out its runs.

use std::{
    future::IntoFuture,
    pin::Pin,
    rc::Rc,
    time::{Duration, Instant},
};

use crate::{
    codec,
    error::{Error, Kind, storable},
    id::NAME_BYTES_MAX,
    store::{
        connection::Connection,
        events,
        fault::Fault,
        pool::Pool,
        projections,
        runs::{self, ProjectionRun, Request, RunKind},
        scopes::{self, ProjectionFailure, ProjectionInfo},
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

    /// Returns the progress of projections, ordered by tenant and projection: of one tenant, of one
    /// projection, or of all (at most 10,000).
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn list(
        &self,
        tenant: Option<&str>,
        projection: Option<&str>,
    ) -> Result<Vec<ProjectionInfo>, Error> {
        check(tenant, projection)?;
        let (tenant, projection) = (tenant.map(str::to_owned), projection.map(str::to_owned));
        self.call("list projections", move |connection| async move {
            scopes::list(
                &connection,
                tenant.as_deref(),
                projection.as_deref(),
                None,
                PAGE_MAX,
            )
            .await
        })
        .await
    }

    /// Returns the progress of one projection of a tenant. `None` if the projection has not read
    /// any event of this tenant yet.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn status(
        &self,
        tenant: &str,
        projection: &str,
    ) -> Result<Option<ProjectionInfo>, Error> {
        Ok(self
            .list(Some(tenant), Some(projection))
            .await?
            .into_iter()
            .next())
    }

    /// Returns rebuilds, replays and verifications of projections, the newest run first.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn runs(
        &self,
        tenant: Option<&str>,
        projection: Option<&str>,
    ) -> Result<Vec<ProjectionRun>, Error> {
        check(tenant, projection)?;
        let (tenant, projection) = (tenant.map(str::to_owned), projection.map(str::to_owned));
        self.call("list runs", move |connection| async move {
            runs::list(
                &connection,
                None,
                tenant.as_deref(),
                projection.as_deref(),
                PAGE_MAX,
            )
            .await
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
            .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no run {id}")))
    }

    /// Waits until a run has ended, for at most `within`. Returns the state of the run.
    ///
    /// # Errors
    /// The run does not exist, or the database is unreachable.
    pub async fn finished(&self, id: i64, within: Duration) -> Result<ProjectionRun, Error> {
        let (begun, mut pause) = (Instant::now(), POLL_FIRST);
        loop {
            let run = self.run(id).await?;
            if run.is_over() || begun.elapsed() >= within {
                return Ok(run);
            }
            tokio::time::sleep(pause.min(within.saturating_sub(begun.elapsed()))).await;
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// Returns the events that projections could not apply; with `resolved`, the list includes
    /// events that a projection applied later.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn failures(
        &self,
        tenant: Option<&str>,
        projection: Option<&str>,
        resolved: bool,
    ) -> Result<Vec<ProjectionFailure>, Error> {
        check(tenant, projection)?;
        let (tenant, projection) = (tenant.map(str::to_owned), projection.map(str::to_owned));
        self.call("list failures", move |connection| async move {
            scopes::failures(
                &connection,
                tenant.as_deref(),
                projection.as_deref(),
                resolved,
                PAGE_MAX,
            )
            .await
        })
        .await
    }

    /// Requests a rebuild in place: a worker deletes the rows of the scope and applies all events
    /// again. Readers see the intermediate states. The awaited request returns the number of the
    /// run.
    pub fn rebuild(&self, tenant: &str, projection: &str) -> RunRequest {
        self.ask(RunKind::Rebuild, tenant, projection)
    }

    /// Requests a rebuild in a shadow: a worker applies all events to rows of another generation
    /// while readers use the rows of the current generation, compares the digests of both, and
    /// makes the new generation the current one. If the digests differ although the version is the
    /// same, the current generation stays, unless [`force`](RunRequest::force) is set.
    pub fn rebuild_in_a_shadow(&self, tenant: &str, projection: &str) -> RunRequest {
        self.ask(RunKind::Shadow, tenant, projection)
    }

    /// Requests a replay: a worker applies events again to the existing rows. A replay is for
    /// projections that are idempotent, or for which a repetition is intended.
    pub fn replay(&self, tenant: &str, projection: &str) -> RunRequest {
        self.ask(RunKind::Replay, tenant, projection)
    }

    /// Requests a verification: a worker applies all events to rows of another generation, compares
    /// their digest with the digest of the current generation, reports whether the digests are
    /// equal, and deletes the rows of the other generation.
    pub fn verify(&self, tenant: &str, projection: &str) -> RunRequest {
        self.ask(RunKind::Verify, tenant, projection)
    }

    /// Requests a run of this kind for every tenant of a projection, in one statement. The
    /// statement skips tenants with an open run.
    pub fn for_all_tenants(&self, kind: RunKind, projection: &str) -> RunsRequest {
        RunsRequest(self.ask(kind, "", projection))
    }

    fn ask(&self, kind: RunKind, tenant: &str, projection: &str) -> RunRequest {
        let request = Request {
            tenant: tenant.to_owned(),
            projection: projection.to_owned(),
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
        self.pool.inner.log.wake_runs();
        Ok(cancelled)
    }

    /// Resumes at once a projection that has halted or waits for its next attempt. Returns whether
    /// the projection was in one of these states.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn retry(&self, tenant: &str, projection: &str) -> Result<bool, Error> {
        check(Some(tenant), Some(projection))?;
        let (tenant_name, name) = (tenant.to_owned(), projection.to_owned());
        let going = self
            .call("retry a projection", move |connection| async move {
                projections::retry(&connection, &tenant_name, &name).await
            })
            .await?;
        self.pool.inner.log.wake_runs();
        Ok(going)
    }

    /// Requests a redrive of one parked event, or of all parked events of the scope. Returns the
    /// number of these events.
    ///
    /// # Errors
    /// The name of a tenant or a projection is invalid, or the database is unreachable.
    pub async fn redrive(
        &self,
        tenant: &str,
        projection: &str,
        position: Option<i64>,
    ) -> Result<usize, Error> {
        check(Some(tenant), Some(projection))?;
        let (tenant, projection) = (tenant.to_owned(), projection.to_owned());
        let count = self
            .call("retry parked events", move |connection| async move {
                projections::redrive(&connection, &tenant, &projection, position).await
            })
            .await?;
        self.pool.inner.log.wake_runs();
        Ok(count)
    }

    /// Waits until a projection has reached `position`, for at most `within`. Returns the position
    /// that the projection has reached, which is below `position` if the time ran out.
    ///
    /// # Errors
    /// The projection has halted, or the database is unreachable.
    pub async fn sync(
        &self,
        tenant: &str,
        projection: &str,
        position: i64,
        within: Duration,
    ) -> Result<i64, Error> {
        let (begun, mut pause) = (Instant::now(), POLL_FIRST);
        let tenants = vec![tenant.to_owned()];
        let assign = move |connection: Rc<Connection>| async move {
            events::place(&connection, &tenants, false).await.map(drop)
        };
        self.call_briefly("assign positions to events", assign)
            .await?;
        self.pool.inner.log.wake_readers(std::iter::once(tenant));
        loop {
            let (tenant_name, name) = (tenant.to_owned(), projection.to_owned());
            let cursor = self
                .call_briefly("read a cursor", move |connection| async move {
                    projections::cursor(&connection, &tenant_name, &name).await
                })
                .await?;
            let reached = cursor.as_ref().map_or(0, |cursor| cursor.position);
            if reached >= position || begun.elapsed() >= within {
                return Ok(reached);
            }
            if let Some(cursor) = cursor.filter(|cursor| cursor.status == "halted") {
                let message = format!(
                    "{projection} of {tenant:?} has halted at position {reached}: {}",
                    cursor.last_error.unwrap_or_default()
                );
                return Err(Error::new(Kind::Refused, message));
            }
            tokio::time::sleep(pause.min(within.saturating_sub(begun.elapsed()))).await;
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
            .apart(act)
            .await?
            .map_err(|fault| fault.into_error(doing))
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

/// A request for a rebuild, a replay or a verification. Awaiting it inserts the request.
#[must_use = "nothing is requested until this is awaited"]
#[derive(Debug, Clone)]
pub struct RunRequest {
    projections: Projections,
    request: Request,
}

impl RunRequest {
    /// Limits a replay to events after this log position.
    pub fn after(mut self, position: i64) -> Self {
        self.request.from = position.max(0);
        self
    }
    /// Limits a replay to events up to this log position.
    pub fn up_to(mut self, position: i64) -> Self {
        self.request.to = Some(position);
        self
    }
    /// Makes the generation of a rebuild in a shadow the current one even if the digests differ.
    pub fn force(mut self) -> Self {
        self.request.force = true;
        self
    }
    /// Names the person or program that makes the request. The row of the run stores this name.
    pub fn by(mut self, actor: impl Into<String>) -> Self {
        self.request.by = storable(&actor.into());
        self
    }
}

impl IntoFuture for RunRequest {
    /// The number of the run that the request inserted.
    type Output = Result<i64, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let RunRequest {
            projections,
            request,
        } = self;
        Box::pin(async move {
            check(Some(&request.tenant), Some(&request.projection))?;
            let asked = request.clone();
            let act = move |connection: Rc<Connection>| async move {
                runs::request(&connection, &asked).await
            };
            let run = projections.call("request a run", act).await?;
            projections.pool.inner.log.wake_runs();
            match run {
                Some(run) => Ok(run),
                None => Err(projections.why_not(&request).await?),
            }
        })
    }
}

/// A request for runs of all tenants of a projection. Awaiting it inserts the requests; see
/// [`Projections::for_all_tenants`].
#[must_use = "nothing is requested until this is awaited"]
#[derive(Debug, Clone)]
pub struct RunsRequest(RunRequest);

impl RunsRequest {
    /// Limits replays to events after this log position.
    pub fn after(self, position: i64) -> Self {
        RunsRequest(self.0.after(position))
    }
    /// Limits replays to events up to this log position.
    pub fn up_to(self, position: i64) -> Self {
        RunsRequest(self.0.up_to(position))
    }
    /// Makes the generations of rebuilds in a shadow the current ones even if the digests differ.
    pub fn force(self) -> Self {
        RunsRequest(self.0.force())
    }
    /// Names the person or program that makes the request. The row of the run stores this name.
    pub fn by(self, actor: impl Into<String>) -> Self {
        RunsRequest(self.0.by(actor))
    }
}

impl IntoFuture for RunsRequest {
    /// The numbers of the runs that the request inserted, in the order of their tenants.
    type Output = Result<Vec<i64>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let RunRequest {
            projections,
            request,
        } = self.0;
        Box::pin(async move {
            check(None, Some(&request.projection))?;
            let projection = request.projection.clone();
            let act = move |connection: Rc<Connection>| async move {
                let runs = runs::request_all(&connection, &request).await?;
                let is_known = !runs.is_empty()
                    || projections::names(&connection)
                        .await?
                        .contains(&request.projection);
                Ok((runs, is_known))
            };
            let (runs, is_known) = projections.call("request runs", act).await?;
            projections.pool.inner.log.wake_runs();
            match is_known {
                true => Ok(runs),
                false => {
                    let message = format!("there is no projection {projection:?} of any tenant");
                    Err(Error::new(Kind::NotFound, message))
                }
            }
        })
    }
}

impl Projections {
    /// Returns the error that explains why the database did not insert the requested run.
    async fn why_not(&self, request: &Request) -> Result<Error, Error> {
        let Request {
            tenant, projection, ..
        } = request;
        if self.status(tenant, projection).await?.is_none() {
            let message = format!("there is no projection {projection:?} of tenant {tenant:?}");
            return Ok(Error::new(Kind::NotFound, message));
        }
        let runs = self.runs(Some(tenant), Some(projection)).await?;
        let open = runs.into_iter().find(|run| !run.is_over());
        let which = open.map_or_else(String::new, |run| {
            format!(" ({} {})", run.kind.name(), run.id)
        });
        let message = format!(
            "a run of {projection:?} of tenant {tenant:?} is in progress{which}: wait for its end or cancel it"
        );
        Ok(Error::new(Kind::Taken, message))
    }
}
