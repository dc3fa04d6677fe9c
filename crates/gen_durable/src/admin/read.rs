//! Reads projection scopes, their runs and their failures page by page. Each page begins after the
//! last row of the previous page.

use crate::{
    error::Error,
    inspect::Inspect,
    model::{
        page_size,
        projection::{
            FailureCursor, ProjectionFailure, ProjectionInfo, ProjectionRun, ScopeCursor,
            ScopeFilter,
        },
    },
    store::{runs, scopes},
};

/// The largest number of scopes, runs or failures on one page.
const PAGE_MAX: usize = 200;

fn limit(filter: &ScopeFilter) -> i32 {
    page_size(filter.limit, PAGE_MAX)
}

/// Refuses a filter that names a tenant and no projection, because the indexes of runs and failures
/// begin with the projection.
fn check(filter: &ScopeFilter) -> Result<(), Error> {
    match filter {
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

impl Inspect {
    /// Returns the state of projection scopes, ordered by projection and tenant, after `after`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn projections(
        &self,
        filter: ScopeFilter,
        after: Option<ScopeCursor>,
    ) -> Result<Vec<ProjectionInfo>, Error> {
        self.read("list projections", move |connection| async move {
            let ScopeCursor { projection, tenant } = after.unwrap_or_default();
            scopes::page(
                &connection,
                filter.tenant.as_deref(),
                filter.projection.as_deref(),
                (&projection, &tenant),
                limit(&filter),
            )
            .await
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
        check(&filter)?;
        self.read("list runs", move |connection| async move {
            runs::page(
                &connection,
                filter.projection.as_deref(),
                filter.tenant.as_deref(),
                before.unwrap_or(i64::MAX),
                limit(&filter),
            )
            .await
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
        after: Option<FailureCursor>,
    ) -> Result<Vec<ProjectionFailure>, Error> {
        check(&filter)?;
        self.read("list failures", move |connection| async move {
            let FailureCursor { scope, position } = after.unwrap_or_default();
            scopes::failures_page(
                &connection,
                filter.projection.as_deref(),
                filter.tenant.as_deref(),
                (&scope.projection, &scope.tenant, position),
                limit(&filter),
            )
            .await
        })
        .await
    }
}
