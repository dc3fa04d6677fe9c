//! Bulk actions, which retry, cancel or discard many instances. The database stores each bulk
//! action and its progress. A dashboard executes bulk actions: its own, and those that a dashboard
//! or a command has left.
//!
//! Dashboards and commands execute bulk actions, and not workers, because operators also act while
//! no worker runs.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gen_durable::operate::BulkRunner;

use crate::shared::{Inner, Shared};

/// The number of bulk actions that one dashboard executes concurrently.
const RUNNERS_MAX: usize = 4;
/// The pause after a page that failed, for example because the database is unreachable.
const PAUSE: Duration = Duration::from_secs(2);

/// The tasks of this dashboard that execute bulk actions.
#[derive(Debug, Default)]
pub(crate) struct Runners {
    running: Arc<AtomicUsize>,
}

/// The place of a task among the tasks that execute bulk actions.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a task that executes open bulk actions until no bulk action without a runner is left. The
/// task ends after the drop of the router. Does nothing if enough such tasks run.
pub(crate) fn execute_open(shared: &Shared) {
    let running = shared.runners.running.clone();
    if running.fetch_add(1, Ordering::Relaxed) >= RUNNERS_MAX {
        running.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let runner = shared.client.operate().bulk_runner();
    tokio::spawn(execute(Arc::downgrade(shared), runner, Place(running)));
}

async fn execute(shared: Weak<Inner>, mut runner: BulkRunner, _place: Place) {
    let mut is_leased = false;
    while shared.strong_count() > 0 {
        let went = match is_leased {
            true => runner.run_page().await,
            false => match runner.take().await {
                Ok(None) => return,
                taken => taken.map(|id| id.is_some()),
            },
        };
        match went {
            Ok(goes_on) => is_leased = goes_on,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "could not execute a bulk action, will try again"
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
