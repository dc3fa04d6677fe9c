//! Bulk actions, which retry, cancel or discard many instances. The database stores each bulk
//! action and its progress. A dashboard counts the matching instances for a preview, and executes
//! bulk actions: its own, and those of a dashboard that has stopped.
//!
//! Dashboards execute bulk actions, and not workers, because operators also act while no worker
//! runs, and because only dashboards know the redaction on which the fingerprints of errors depend.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gen_durable::{
    inspect::{Inspect, Search, SearchHit},
    operate::BulkRunner,
};

use crate::{
    api::json::redacted_fingerprint,
    problem::Answer,
    redact::Redaction,
    shared::{Inner, Shared},
};

/// Maximum number of instances that a preview counts.
const COUNTED_MAX: usize = 10_000;
/// Maximum number of search pages that a preview reads.
const PAGES_MAX: usize = 100;
/// The number of instances that the preview of a bulk action shows.
const SAMPLE: usize = 20;
/// The number of bulk actions that one dashboard executes concurrently.
const RUNNERS_MAX: usize = 4;
/// The pause after a page that failed, for example because the database is unreachable.
const PAUSE: Duration = Duration::from_secs(2);

/// The instances that a bulk action would process.
#[derive(Debug)]
pub(crate) struct Matched {
    pub(crate) count: usize,
    pub(crate) sample: Vec<SearchHit>,
    /// Whether `count` is the number of all matching instances. False if `COUNTED_MAX` or
    /// `PAGES_MAX` ended the search early: `count` is then a lower bound.
    pub(crate) is_exact: bool,
}

/// Counts the instances that a bulk action would process: instances that match `search` and, if
/// `wanted` is given, have this error fingerprint.
pub(crate) async fn matching(
    inspect: &Inspect,
    search: &Search,
    wanted: Option<&str>,
    redaction: &Redaction,
) -> Answer<Matched> {
    let mut matched = Matched {
        count: 0,
        sample: Vec::new(),
        is_exact: false,
    };
    let mut search = Search {
        limit: 200,
        before: None,
        ..search.clone()
    };
    for _ in 0..PAGES_MAX {
        let page = inspect.search(search.clone()).await?;
        let fits = |found: &SearchHit| {
            wanted.is_none_or(|wanted| {
                redacted_fingerprint(found.last_error.as_deref(), redaction) == wanted
            })
        };
        for found in page.instances.into_iter().filter(fits) {
            if matched.count == COUNTED_MAX {
                return Ok(matched);
            }
            matched.count += 1;
            if matched.sample.len() < SAMPLE {
                matched.sample.push(found);
            }
        }
        search.before = page.next;
        if search.before.is_none() {
            matched.is_exact = true;
            return Ok(matched);
        }
    }
    Ok(matched)
}

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
    let redaction = shared.options.redaction.clone();
    let runner = shared
        .client
        .operate()
        .bulk_runner(move |error| redacted_fingerprint(Some(error), &redaction));
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
