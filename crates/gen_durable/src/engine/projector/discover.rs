//! Reads the logs: finds tenants with new events and events without a position, and assigns those
//! positions.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::project::Projector;
use crate::store::{
    events::{self, Looked, News, TrimPage},
    fault::Fault,
    projections::{self, Behind, Walk},
    runs,
};

/// A poll reads again what arrived this long before the last poll, because arrival numbers are
/// committed out of order.
const ARRIVAL_LAG: Duration = Duration::from_millis(100);
/// Number of tenants in one page of a walk, so that the cost of one query is bounded whatever the
/// number of tenants.
const TENANTS_PAGE: i32 = 1_000;
/// The walk over all tenants is limited to this share of the time, one worker at a time, with
/// pauses within these bounds.
const WALK_SHARE: u32 = 20;
const WALK_PAUSE_MIN: Duration = Duration::from_millis(100);
const WALK_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Pause after the walk has reached the last tenant.
const WALK_IDLE: Duration = Duration::from_millis(500);
/// Maximum number of old events deleted in one statement.
const TRIM_BATCH: i32 = 1_000;
/// Maximum number of finished runs, and of resolved failures, deleted in one statement.
const COLLECT_BATCH: i32 = 1_000;

/// How far the logs have been read, and the tenants with events that have no position yet.
pub(super) struct Discovery {
    projector: Arc<Projector>,
    since: Looked,
    /// Arrival numbers that were read, and when: a poll begins a little before the last one.
    seen: VecDeque<(Instant, i64)>,
    /// Tenants with a log head that was locked when positions were to be assigned.
    waiting: HashSet<String>,
    /// How long the last page of the walk over all tenants took.
    page_took: Duration,
}

impl Discovery {
    pub(super) fn new(projector: Arc<Projector>) -> Discovery {
        Discovery {
            projector,
            since: Looked::default(),
            seen: VecDeque::new(),
            waiting: HashSet::new(),
            page_took: Duration::ZERO,
        }
    }

    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the tenants with logs that have grown since the last poll. A failure is an outage:
    /// the next poll begins at the same number.
    pub(super) async fn poll(&mut self) -> BTreeMap<String, i64> {
        let mut since = self.since.clone();
        if self.projector.readers.is_empty() {
            since.arrival_no = None;
        }
        match self.discover(since, false).await {
            Ok(grown) => grown,
            Err(fault) => {
                tracing::debug!(error = fault.message(), "could not read the log");
                BTreeMap::new()
            }
        }
    }

    async fn discover(&mut self, since: Looked, all: bool) -> Result<BTreeMap<String, i64>, Fault> {
        let News {
            unplaced,
            placed,
            looked,
        } = self
            .projector
            .call(move |connection| async move { events::discover(&connection, &since).await })
            .await?;
        let mut grown: BTreeMap<String, i64> = placed.into_iter().collect();
        self.waiting.extend(unplaced);
        if !self.waiting.is_empty() {
            let tenants: Vec<String> = self.waiting.iter().cloned().collect();
            let done = self.projector.call(move |connection| async move {
                events::place(&connection, &tenants, all).await
            });
            for (tenant, count) in done.await? {
                self.waiting.remove(&tenant);
                if count > 0 {
                    grown.insert(tenant, i64::MAX);
                }
            }
        }
        let now = Instant::now();
        self.since.snapshot = looked.snapshot;
        if let Some(arrival_no) = looked.arrival_no {
            self.seen.push_back((now, arrival_no));
            while self
                .seen
                .get(1)
                .is_some_and(|(then, _)| now.duration_since(*then) >= ARRIVAL_LAG)
            {
                self.seen.pop_front();
            }
            self.since.arrival_no = self.seen.front().map(|(_, arrival_no)| *arrival_no);
        }
        Ok(grown)
    }

    /// Assigns positions to all events that wait for one, from the beginning, and returns the
    /// scopes that are due for a retry or, in the next page of tenants, are behind. With `all`, it
    /// covers all tenants at once.
    pub(super) async fn sweep(&mut self, all: bool) -> Behind {
        let (swept, worker) = (self.projector.swept(), self.projector.worker.clone());
        let since = Looked {
            snapshot: None,
            arrival_no: self.since.arrival_no,
        };
        if let Err(fault) = self.discover(since, true).await {
            tracing::debug!(
                error = fault.message(),
                "could not assign positions to events in a sweep"
            );
        }
        if swept.is_empty() {
            return Behind::default();
        }
        let pause = (self.page_took * WALK_SHARE).clamp(WALK_PAUSE_MIN, WALK_PAUSE_MAX);
        let walk = Walk {
            page: TENANTS_PAGE,
            pause_seconds: pause.as_secs_f64(),
            idle_seconds: WALK_IDLE.as_secs_f64(),
            all,
        };
        let begun = Instant::now();
        let behind = self
            .projector
            .call(move |connection| async move {
                projections::behind(&connection, &swept, &worker, walk).await
            })
            .await;
        match behind {
            Ok(behind) => {
                self.page_took = begun.elapsed();
                behind
            }
            Err(fault) => {
                tracing::debug!(error = fault.message(), "could not sweep the log");
                Behind::default()
            }
        }
    }

    /// Deletes some old events that all projections have read, for the next page of tenants.
    /// Returns whether there may be more.
    pub(super) async fn trim(&mut self, retention: Option<Duration>, every: Duration) -> bool {
        let Some(retention) = retention else {
            return false;
        };
        let (names, older_seconds) = (
            self.projector.names(),
            crate::codec::delay_seconds(retention),
        );
        let trimmed = self.projector.call(move |connection| async move {
            let idle_seconds = every.as_secs_f64();
            let page = TrimPage {
                older_seconds,
                followers: &names,
                tenants: TENANTS_PAGE,
                events: TRIM_BATCH,
                idle_seconds,
            };
            events::_trim_logs(&connection, &page).await
        });
        trimmed.await.unwrap_or_else(|fault| {
            tracing::debug!(error = fault.message(), "could not trim the logs");
            false
        })
    }

    /// Deletes some finished runs and resolved failures past their retention. Returns whether there
    /// may be more.
    pub(super) async fn collect(&mut self, retention: Option<Duration>) -> bool {
        let Some(retention) = retention else {
            return false;
        };
        let seconds = crate::codec::delay_seconds(retention);
        let collected = self.projector.call(move |connection| async move {
            runs::collect(&connection, seconds, COLLECT_BATCH).await
        });
        collected
            .await
            .map(|count| count >= COLLECT_BATCH.into())
            .unwrap_or_else(|fault| {
                tracing::debug!(error = fault.message(), "could not collect runs");
                false
            })
    }
}
