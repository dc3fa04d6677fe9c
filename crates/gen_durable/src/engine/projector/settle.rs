//! Runs all projections inline, for `Lab`.

use std::sync::Arc;

use super::{
    discover::Discovery,
    project::{BatchOutcome, Projector},
};
use crate::store::{fault::Fault, redrive, runs};

/// Runs projections on the calling task until no work is left. For tests.
pub(crate) async fn settle(projector: &Arc<Projector>) -> Result<(), Fault> {
    let mut discovery = Discovery::new(projector.clone());
    projector.offer_all().await?;
    loop {
        let mut moved = false;
        for (tenant, projection) in discovery.sweep(true).await.scopes {
            let Some(reader) = projector.reader(&projection) else {
                continue;
            };
            let mut limit = projector.batch;
            while projector
                .project_batch(reader, &tenant, &mut limit, true)
                .await
                .0
                == BatchOutcome::More
            {
                moved = true;
            }
        }
        let asked = projector.names();
        let redrives = projector
            .call(move |connection| async move { redrive::marked(&connection, &asked).await });
        for (tenant, projection, position) in redrives.await? {
            let Some(reader) = projector.reader(&projection) else {
                continue;
            };
            projector.redrive(reader, &tenant, position).await;
        }
        let (builds, worker) = (projector.builds(), projector.worker.clone());
        let due = projector
            .call(move |connection| async move { runs::due(&connection, &builds, &worker).await });
        for run in due.await? {
            let mut limit = projector.batch;
            let outcome = loop {
                match projector.run_batch(&run, &mut limit).await {
                    BatchOutcome::More => {}
                    outcome => break outcome,
                }
            };
            // A run that has to wait does not count as progress, so it does not make the loop of
            // `settle` continue.
            moved = moved || !matches!(outcome, BatchOutcome::Wait(_));
        }
        if !moved {
            return Ok(());
        }
    }
}
