//! Lists projection scopes, their runs and their failures for people, page by page. Each query
//! reads its page by an index, and begins after the last row of the previous page.

use super::{
    connection::Param,
    inspect::Inspect,
    runs::{self, ProjectionRun},
    scopes::{self, ProjectionFailure, ProjectionInfo},
    sql,
};
use crate::error::Error;

sql!(
    PROJECTIONS,
    "projections_page.sql",
    [TEXT, TEXT, TEXT, TEXT, INT4]
);
sql!(RUNS, "runs_page.sql", [TEXT, TEXT, INT8, INT4]);
sql!(
    FAILURES,
    "failures_page.sql",
    [TEXT, TEXT, TEXT, TEXT, INT8, INT4]
);

/// The largest number of scopes, runs or failures on one page.
const PAGE_MAX: usize = 200;

/// Selects scopes of projections, and their runs and failures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeFilter {
    /// Selects only scopes of this projection.
    pub projection: Option<String>,
    /// Selects only scopes of this tenant.
    pub tenant: Option<String>,
    /// The largest number of scopes, runs or failures on the page, up to 200.
    pub limit: usize,
}

impl ScopeFilter {
    fn limit(&self) -> i32 {
        i32::try_from(self.limit.clamp(1, PAGE_MAX)).unwrap_or(1)
    }

    /// Refuses a filter that names a tenant and no projection, because the indexes of runs and
    /// failures begin with the projection.
    fn check(&self) -> Result<(), Error> {
        match self {
            ScopeFilter {
                projection: None,
                tenant: Some(_),
                ..
            } => Err(Error::invalid(
                "runs and failures cannot be listed by tenant alone: name the projection as well",
            )),
            _ => Ok(()),
        }
    }
}

impl Inspect {
    /// Returns the state of projection scopes, ordered by projection and tenant, after `after`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn projections(
        &self,
        filter: ScopeFilter,
        after: Option<(String, String)>,
    ) -> Result<Vec<ProjectionInfo>, Error> {
        self.read("list projections", move |connection| async move {
            let (projection, tenant) = after.unwrap_or_default();
            let params: &[Param<'_>] = &[
                &filter.tenant,
                &filter.projection,
                &projection,
                &tenant,
                &filter.limit(),
            ];
            connection
                .query(&PROJECTIONS, params)
                .await?
                .iter()
                .map(scopes::info)
                .collect()
        })
        .await
    }

    /// Returns runs of projections, the newest first, with ids below `before`.
    ///
    /// # Errors
    ///
    /// Fails if the filter names a tenant and no projection, or if the database cannot be reached.
    pub async fn projection_runs(
        &self,
        filter: ScopeFilter,
        before: Option<i64>,
    ) -> Result<Vec<ProjectionRun>, Error> {
        filter.check()?;
        self.read("list runs", move |connection| async move {
            let before = before.unwrap_or(i64::MAX);
            let params: &[Param<'_>] =
                &[&filter.projection, &filter.tenant, &before, &filter.limit()];
            connection
                .query(&RUNS, params)
                .await?
                .iter()
                .map(runs::read_run)
                .collect()
        })
        .await
    }

    /// Returns events that a projection could not apply and that are not resolved, ordered by
    /// projection, tenant and log position, after `after`.
    ///
    /// # Errors
    ///
    /// Fails if the filter names a tenant and no projection, or if the database cannot be reached.
    pub async fn projection_failures(
        &self,
        filter: ScopeFilter,
        after: Option<(String, String, i64)>,
    ) -> Result<Vec<ProjectionFailure>, Error> {
        filter.check()?;
        self.read("list failures", move |connection| async move {
            let (projection, tenant, position) = after.unwrap_or_default();
            let params: &[Param<'_>] = &[
                &filter.projection,
                &filter.tenant,
                &projection,
                &tenant,
                &position,
                &filter.limit(),
            ];
            connection
                .query(&FAILURES, params)
                .await?
                .iter()
                .map(scopes::failure)
                .collect()
        })
        .await
    }
}
