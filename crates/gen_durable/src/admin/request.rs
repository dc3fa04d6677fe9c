//! Requests of operators about projections. Awaiting a request sends it.

use std::{future::IntoFuture, pin::Pin, rc::Rc};

use super::{Projections, check, checked, limit};
use crate::{
    error::{Error, ErrorKind, storable},
    model::projection::{ProjectionFailure, Scope, ScopeFilter},
    store::{
        connection::Connection,
        projections,
        runs::{self, Request},
        scopes,
    },
};

/// A request for a rebuild, a replay or a verification. Awaiting it inserts the request.
#[must_use = "nothing is requested until this is awaited"]
#[derive(Debug, Clone)]
pub struct RunRequest {
    pub(super) projections: Projections,
    pub(super) request: Request,
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
    /// Makes the generation of a shadow rebuild the current one even if the digests differ.
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
            projections.pool.connections.log.wake_runs();
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
pub struct RunsRequest(pub(super) RunRequest);

impl RunsRequest {
    /// Limits replays to events after this log position.
    pub fn after(self, position: i64) -> Self {
        RunsRequest(self.0.after(position))
    }
    /// Limits replays to events up to this log position.
    pub fn up_to(self, position: i64) -> Self {
        RunsRequest(self.0.up_to(position))
    }
    /// Makes the generations of shadow rebuilds the current ones even if the digests differ.
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
            projections.pool.connections.log.wake_runs();
            match is_known {
                true => Ok(runs),
                false => {
                    let message = format!("there is no projection {projection:?} of any tenant");
                    Err(Error::new(ErrorKind::NotFound, message))
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
        let scope = Scope::new(projection).of(tenant);
        if self.status(scope.clone()).await?.is_none() {
            let message = format!("there is no projection {projection:?} of tenant {tenant:?}");
            return Ok(Error::new(ErrorKind::NotFound, message));
        }
        let runs = self.runs(scope).await?;
        let open = runs.into_iter().find(|run| !run.is_over());
        let which = open.map_or_else(String::new, |run| {
            format!(" ({} {})", run.kind.name(), run.id)
        });
        let message = format!(
            "a run of {projection:?} of tenant {tenant:?} is in progress{which}: wait for its end or cancel it"
        );
        Ok(Error::new(ErrorKind::RunInProgress, message))
    }
}

/// A request for the events that projections could not apply. Awaiting it reads them; see
/// [`Projections::failures`].
#[must_use = "nothing is read until this is awaited"]
#[derive(Debug, Clone)]
pub struct ListFailures {
    pub(super) projections: Projections,
    pub(super) filter: ScopeFilter,
    pub(super) resolved: bool,
}

impl ListFailures {
    /// Includes events that a projection applied later.
    pub fn include_resolved(mut self) -> Self {
        self.resolved = true;
        self
    }
}

impl IntoFuture for ListFailures {
    /// The events that projections could not apply, at most 10,000.
    type Output = Result<Vec<ProjectionFailure>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let ListFailures {
            projections,
            filter,
            resolved,
        } = self;
        Box::pin(async move {
            let filter = checked(filter)?;
            let act = move |connection: Rc<Connection>| async move {
                let (tenant, projection) = (filter.tenant.as_deref(), filter.projection.as_deref());
                scopes::failures(&connection, tenant, projection, resolved, limit(&filter)).await
            };
            projections.call("list failures", act).await
        })
    }
}
