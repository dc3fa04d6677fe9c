//! Scopes with rows of another version of their projection: the projector continues, rebuilds, or
//! offers a rebuild to operators, as `on_version_change` says.

use std::sync::Arc;

use super::{
    project::{BatchOutcome, LONG_PAUSE, Projector},
    reader::Reader,
};
use crate::{
    model::projection::RunKind,
    projection::OnVersionChange,
    store::{
        fault::Fault,
        projections,
        runs::{self, Request},
    },
};

impl Projector {
    /// Handles rows that an older version of this projection wrote, as `on_version_change` says.
    pub(super) async fn outdated(
        &self,
        reader: &Arc<dyn Reader>,
        tenant: &str,
        rows_of: i32,
    ) -> Result<BatchOutcome, Fault> {
        let (name, version) = (reader.name(), i32::from(reader.version()));
        let owned_tenant = tenant.to_owned();
        match reader.on_version_change() {
            OnVersionChange::Continue => {
                self.call(move |connection| async move {
                    projections::go_on(&connection, &owned_tenant, name, version).await
                })
                .await?;
                return Ok(BatchOutcome::More);
            }
            OnVersionChange::Rebuild => {
                let kind = if reader.generations() {
                    RunKind::Shadow
                } else {
                    RunKind::Rebuild
                };
                let by = format!("version {version}");
                let (tenant, projection) = (owned_tenant, name.to_owned());
                let version = Some(version);
                let request = Request {
                    tenant,
                    projection,
                    kind,
                    from: 0,
                    to: None,
                    force: true,
                    by,
                    version,
                };
                self.call(move |connection| async move {
                    runs::request(&connection, &request).await.map(drop)
                })
                .await?;
                self.pool.connections.log.wake_runs();
            }
            OnVersionChange::Offer => {
                tracing::warn!(
                    projection = name,
                    tenant,
                    "the rows are those of version {rows_of}, this build has version {version}: to update them, run `durable projections rebuild {name} --tenant {tenant}`"
                );
                self.offer(vec![(name, version)], Some(owned_tenant))
                    .await?;
            }
        }
        Ok(BatchOutcome::Wait(LONG_PAUSE))
    }

    /// Records all scopes that need a rebuild by this build. The projector calls this function once
    /// at the start; `outdated` records a scope when a batch finds rows of an older version.
    pub(crate) async fn offer_all(&self) -> Result<(), Fault> {
        let offering = self
            .readers
            .iter()
            .filter(|reader| reader.on_version_change() == OnVersionChange::Offer);
        self.offer(
            offering
                .map(|reader| (reader.name(), reader.version().into()))
                .collect(),
            None,
        )
        .await
    }

    async fn offer(
        &self,
        builds: Vec<(&'static str, i32)>,
        tenant: Option<String>,
    ) -> Result<(), Fault> {
        self.call(move |connection| async move {
            projections::offer(&connection, &builds, tenant.as_deref()).await
        })
        .await
    }
}
