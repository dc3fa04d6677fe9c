//! Pages for people of what runs beside the steps: scopes of projections, their runs, their failures. Each is found by an
//! index, and goes on where the last one ended.

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

/// The most rows of a page.
const PAGE_MAX: usize = 200;

/// Which scopes of which projections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeFilter {
    /// Of this projection only.
    pub projection: Option<String>,
    /// Of this tenant only.
    pub tenant: Option<String>,
    /// At most this many (200 at the most).
    pub limit: usize,
}

impl ScopeFilter {
    fn limit(&self) -> i32 {
        i32::try_from(self.limit.clamp(1, PAGE_MAX)).unwrap_or(1)
    }

    /// A run or a failure is found by its projection first.
    fn check(&self) -> Result<(), Error> {
        match self {
            ScopeFilter {
                projection: None,
                tenant: Some(_),
                ..
            } => Err(Error::invalid(
                "of one tenant alone there is no list: name the projection as well",
            )),
            _ => Ok(()),
        }
    }
}

impl Inspect {
    /// How projections do, in the order of projection and tenant, after this one.
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

    /// Runs of projections, the newest first, below this one.
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

    /// Events that could not be applied and still are not, in the order of projection, tenant and position, after this one.
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
