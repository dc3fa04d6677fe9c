//! Projections for those who run them: how they do, their runs and failures. It reads and writes rows: what is asked for is
//! done by a process that has the projection registered.

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

/// Who waits for a cursor or a run looks this often, at first and at last.
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(100);
/// The most rows of one answer.
const PAGE_MAX: i32 = 10_000;

/// Projections for those who run them: `client.projections()`.
///
/// What is asked for (a rebuild, a replay, a verification, another try) is recorded, and done by a live worker that has the
/// projection registered; it survives the death of that worker.
#[derive(Debug, Clone)]
pub struct Projections {
    pool: Pool,
}

impl Projections {
    pub(crate) fn new(pool: Pool) -> Projections {
        Projections { pool }
    }

    /// How they do, in the order of tenant and projection; of one tenant, of one projection, or all (10,000 at the most).
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

    /// How one does. `None`: it has seen no event of this tenant yet.
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

    /// Runs, the newest first.
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

    /// One run.
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

    /// Wait for the end of a run, at most this long. Answers how it stands.
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

    /// Events that could not be applied; with `resolved` also those that were, in the end.
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

    /// Clear the rows and apply everything again, in place: readers see it happen. Awaited, it answers the number of the run.
    pub fn rebuild(&self, tenant: &str, projection: &str) -> RunRequest {
        self.ask(RunKind::Rebuild, tenant, projection)
    }

    /// Apply everything again to rows of another generation while the old ones are read; compare the digests; swap. Where the digests
    /// differ although the version is the same, it does not swap, unless [`anyway`](RunRequest::anyway) is said.
    pub fn rebuild_in_a_shadow(&self, tenant: &str, projection: &str) -> RunRequest {
        self.ask(RunKind::Shadow, tenant, projection)
    }

    /// Apply events again to the rows that are there: for a projection to which that makes no difference, or is meant to.
    pub fn replay(&self, tenant: &str, projection: &str) -> RunRequest {
        self.ask(RunKind::Replay, tenant, projection)
    }

    /// Apply everything to rows of another generation, compare, say whether they are equal, and forget them.
    pub fn verify(&self, tenant: &str, projection: &str) -> RunRequest {
        self.ask(RunKind::Verify, tenant, projection)
    }

    /// Asks for a run of this kind for every tenant of a projection, in one statement. Scopes in which a run is open are left out.
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
            anyway: false,
            by: String::new(),
            version: None,
        };
        RunRequest {
            projections: self.clone(),
            request,
        }
    }

    /// End a run. Answers whether it came in time. A rebuild in place that has cleared its rows goes on as live: there is no way back.
    pub async fn cancel(&self, run: i64, why: &str) -> Result<bool, Error> {
        let why = storable(why);
        let cancelled = self
            .call("cancel a run", move |connection| async move {
                runs::cancel(&connection, run, &why).await
            })
            .await?;
        self.pool.inner.log.poke_runs();
        Ok(cancelled)
    }

    /// Let a projection that halted, or waits before it tries again, go on now. Answers whether it was so.
    pub async fn retry(&self, tenant: &str, projection: &str) -> Result<bool, Error> {
        check(Some(tenant), Some(projection))?;
        let (whose, name) = (tenant.to_owned(), projection.to_owned());
        let going = self
            .call("retry a projection", move |connection| async move {
                projections::retry(&connection, &whose, &name).await
            })
            .await?;
        self.pool.inner.log.poke_runs();
        Ok(going)
    }

    /// Try a parked event again, or all of them. Answers how many there were.
    pub async fn redrive(
        &self,
        tenant: &str,
        projection: &str,
        position: Option<i64>,
    ) -> Result<usize, Error> {
        check(Some(tenant), Some(projection))?;
        let (tenant, projection) = (tenant.to_owned(), projection.to_owned());
        let count = self
            .call("try parked events again", move |connection| async move {
                projections::redrive(&connection, &tenant, &projection, position).await
            })
            .await?;
        self.pool.inner.log.poke_runs();
        Ok(count)
    }

    /// Wait until a projection has come to this position, at most this long. Answers where it stands.
    pub async fn sync(
        &self,
        tenant: &str,
        projection: &str,
        position: i64,
        within: Duration,
    ) -> Result<i64, Error> {
        let (begun, mut pause) = (Instant::now(), POLL_FIRST);
        let tenants = vec![tenant.to_owned()];
        let place = move |connection: Rc<Connection>| async move {
            events::place(&connection, &tenants, false).await.map(drop)
        };
        self.call_briefly("place events", place).await?;
        self.pool.inner.log.poke(std::iter::once(tenant));
        loop {
            let (whose, name) = (tenant.to_owned(), projection.to_owned());
            let cursor = self
                .call_briefly("read a cursor", move |connection| async move {
                    projections::cursor(&connection, &whose, &name).await
                })
                .await?;
            let stands = cursor.as_ref().map_or(0, |cursor| cursor.position);
            if stands >= position || begun.elapsed() >= within {
                return Ok(stands);
            }
            if let Some(cursor) = cursor.filter(|cursor| cursor.status == "halted") {
                let message = format!(
                    "{projection} of {tenant:?} has halted at position {stands}: {}",
                    cursor.last_error.unwrap_or_default()
                );
                return Err(Error::new(Kind::Refused, message));
            }
            tokio::time::sleep(pause.min(within.saturating_sub(begun.elapsed()))).await;
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// Runs statements that wait for no lock and read by a key: many callers may wait for a projection.
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

/// Names that a row can hold.
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

/// A run that has not been asked for yet.
#[must_use = "nothing is asked for until this is awaited"]
#[derive(Debug, Clone)]
pub struct RunRequest {
    projections: Projections,
    request: Request,
}

impl RunRequest {
    /// Of a replay: only events after this position.
    pub fn after(mut self, position: i64) -> Self {
        self.request.from = position.max(0);
        self
    }
    /// Of a replay: only events up to this position.
    pub fn up_to(mut self, position: i64) -> Self {
        self.request.to = Some(position);
        self
    }
    /// Of a rebuild in a shadow: swap also if the digests differ.
    pub fn anyway(mut self) -> Self {
        self.request.anyway = true;
        self
    }
    /// Who asks, for the record.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.request.by = storable(&who.into());
        self
    }
}

impl IntoFuture for RunRequest {
    /// The number of the run.
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
            let run = projections.call("ask for a run", act).await?;
            projections.pool.inner.log.poke_runs();
            match run {
                Some(run) => Ok(run),
                None => Err(projections.why_not(&request).await?),
            }
        })
    }
}

/// Runs of all tenants of a projection that have not been asked for yet; see [`Projections::for_all_tenants`].
#[must_use = "nothing is asked for until this is awaited"]
#[derive(Debug, Clone)]
pub struct RunsRequest(RunRequest);

impl RunsRequest {
    /// Limits replays to events after this position.
    pub fn after(self, position: i64) -> Self {
        RunsRequest(self.0.after(position))
    }
    /// Limits replays to events up to this position.
    pub fn up_to(self, position: i64) -> Self {
        RunsRequest(self.0.up_to(position))
    }
    /// Swaps shadows also if the digests differ.
    pub fn anyway(self) -> Self {
        RunsRequest(self.0.anyway())
    }
    /// Names the person or program that asks, for the record.
    pub fn by(self, who: impl Into<String>) -> Self {
        RunsRequest(self.0.by(who))
    }
}

impl IntoFuture for RunsRequest {
    /// The numbers of the runs, in the order of tenants.
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
            let (runs, is_known) = projections.call("ask for runs", act).await?;
            projections.pool.inner.log.poke_runs();
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
    /// Why a run was not admitted.
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
            "a run of {projection:?} of tenant {tenant:?} is under way{which}: one at a time"
        );
        Ok(Error::new(Kind::Taken, message))
    }
}
