//! Runs the steps of a lab inline.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::Lab;
use crate::{
    engine::{
        execute::{Environment, StepRun},
        watch::Watch,
    },
    failure::Failure,
    store::row::Claimed,
};

/// How often a lab checks for cancels, if the running step uses `Context::cancelled`.
const WATCH_EVERY: Duration = Duration::from_millis(20);

impl<App: Send + Sync + 'static> Lab<App> {
    pub(super) async fn run(&self, row: &Claimed) -> StepRun {
        if self.twice {
            drop(self.run_again(row, None).await);
        }
        self.run_again(row, None).await
    }

    /// Runs the step of a claimed instance and returns the step result. If `poison` has a failure,
    /// runs only the machine's handler, with this failure.
    pub(super) async fn run_again(&self, row: &Claimed, poison: Option<Failure>) -> StepRun {
        let row = Arc::new(row.clone());
        let environment = Arc::new(Environment::new(
            self.client.pool().clone(),
            self.installation.clone(),
            &self.settings,
        ));
        let Some(kind) = self.registry.find(&row.machine, row.machine_version) else {
            panic!(
                "{} v{} was claimed and is not registered",
                row.machine, row.machine_version
            );
        };
        let runs = kind.clone().run(row, poison, environment.clone());
        tokio::select! {
            decision = runs => decision,
            never = self.watch(&environment.watch) => match never {},
        }
    }

    /// Checks at intervals whether a caller has cancelled the instance of a running step, if the
    /// step uses `Context::cancelled`.
    async fn watch(&self, watch: &Arc<Watch>) -> Infallible {
        loop {
            tokio::time::sleep(WATCH_EVERY).await;
            if !watch.is_empty() {
                let watch = watch.clone();
                self.call(move |connection| async move { watch.look(&connection).await })
                    .await;
            }
        }
    }
}
