//! Stuck rows: which of them this build retries, and when it stops.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use super::core::Core;
use crate::store::{connection::Connection, fault::Fault, queue};

/// Stuck rows that are read in one statement.
const PAGE: i32 = 1_000;
/// Pages that are read in one go; the next go continues behind them.
const PAGES_MAX: usize = 10;
/// A process that could not decode this many rows retries no more by itself.
const UNDECODABLE_MAX: usize = 10_000;

/// The rows that this process claimed and could not decode, or could not claim. It retries none of them by itself, so builds that cannot decode a row
/// do not pass it to and fro for ever: each process tries it once. A process that starts anew tries again.
#[derive(Debug, Default)]
pub(crate) struct Undecodable(Mutex<HashSet<i64>>);

impl Undecodable {
    /// Notes that this process could not decode a row.
    pub(crate) fn add(&self, id: i64) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() < UNDECODABLE_MAX && ids.insert(id) && ids.len() == UNDECODABLE_MAX {
            tracing::warn!(
                "this process could not decode {UNDECODABLE_MAX} rows: it retries no stuck rows until it is restarted"
            );
        }
    }

    /// Returns the rows, or `None` if there are too many.
    fn ids(&self) -> Option<Vec<i64>> {
        let ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (ids.len() < UNDECODABLE_MAX).then(|| ids.iter().copied().collect())
    }
}

/// Retries stuck rows at steps that this build knows, a few pages of them by id. `after` is where the next go begins.
pub(crate) async fn retry(
    core: &Arc<Core>,
    connection: &Connection,
    after: &mut i64,
) -> Result<(), Fault> {
    let mut count = 0;
    for _ in 0..PAGES_MAX {
        let Some(undecodable) = core.undecodable.ids() else {
            break;
        };
        let (last, retried) =
            queue::retry_stuck(connection, &core.worker.steps, *after, PAGE, &undecodable).await?;
        count += retried;
        *after = last.unwrap_or(0);
        if last.is_none() {
            break;
        }
    }
    if count > 0 {
        tracing::info!(
            count,
            "retried {count} stuck rows that another build could not decode"
        );
        core.wake.ring();
    }
    Ok(())
}
