//! Makes stuck instances runnable again that this build may be able to run, and limits the retries.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use super::core::Core;
use crate::store::{connection::Connection, fault::Fault, queue};

/// Number of stuck instance rows that one statement reads.
const PAGE: i32 = 1_000;
/// Number of pages of stuck rows that one call of `retry` reads. The next call continues after
/// these pages.
const PAGES_MAX: usize = 10;
/// A process that could not decode this many instance rows retries no stuck instances by itself any
/// more.
const UNDECODABLE_MAX: usize = 10_000;

/// The ids of the instance rows that this process could not decode after a claim, or could not
/// claim. The process does not retry these rows by itself: each process tries such a row once, so
/// that two builds that cannot decode the row do not retry it endlessly in alternation. A restarted
/// process tries the row once more.
#[derive(Debug, Default)]
pub(crate) struct Undecodable(Mutex<HashSet<i64>>);

impl Undecodable {
    /// Records that this process could not decode an instance row.
    pub(crate) fn add(&self, id: i64) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() < UNDECODABLE_MAX && ids.insert(id) && ids.len() == UNDECODABLE_MAX {
            tracing::warn!(
                "this process could not decode {UNDECODABLE_MAX} rows: it retries no stuck rows until it is restarted"
            );
        }
    }

    /// Removes the ids of the instance rows that this process could not decode. Removes all ids if
    /// there are too many such rows.
    fn remove_from(&self, page: &mut Vec<i64>) {
        let ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        page.retain(|id| ids.len() < UNDECODABLE_MAX && !ids.contains(id));
    }
}

/// Makes stuck instances at steps that this build knows runnable: a few pages of rows, in order of
/// id. `after` is the id after which the next call begins.
pub(crate) async fn retry(
    core: &Arc<Core>,
    connection: &Connection,
    after: &mut i64,
) -> Result<(), Fault> {
    let mut count = 0;
    for _ in 0..PAGES_MAX {
        let (last, mut ids) =
            queue::stuck_page(connection, &core.worker.steps, *after, PAGE).await?;
        // A worker task records a row that it cannot decode before the row becomes stuck. So this
        // process knows every row of the page that it could not decode itself, if it compares after
        // the page was read.
        core.undecodable.remove_from(&mut ids);
        if !ids.is_empty() {
            core.record_work();
            count += queue::retry_stuck(connection, &ids).await?;
        }
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
        core.wake.wake();
    }
    Ok(())
}
