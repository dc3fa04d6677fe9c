//! Polls the event logs: finds tenants with new events, and assigns log positions to events that
//! have none.

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

/// A poll of the event logs begins with the events that arrived this long before the last poll,
/// because transactions do not commit in the order of arrival numbers.
const ARRIVAL_LAG: Duration = Duration::from_millis(100);
/// Number of tenants in one page of the pass over all tenants, so that the cost of one query does
/// not depend on the number of tenants.
const TENANTS_PAGE: i32 = 1_000;
/// The pass over all tenants uses at most one part in `WALK_SHARE` of the time, by one worker at a
/// time. The pause after each page is within these bounds.
const WALK_SHARE: u32 = 20;
const WALK_PAUSE_MIN: Duration = Duration::from_millis(100);
const WALK_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Pause after the pass over all tenants has reached the last tenant.
const WALK_IDLE: Duration = Duration::from_millis(500);
/// Maximum number of old events that the projector deletes in one statement.
const TRIM_BATCH: i32 = 1_000;
/// Maximum number of finished runs, and of resolved failures, that the projector deletes in one
/// statement.
const COLLECT_BATCH: i32 = 1_000;

/// How far the logs have been read, and the tenants with events that have no position yet.
pub(super) struct Discovery {
    projector: Arc<Projector>,
    since: Looked,
    /// The arrival numbers of events that recent polls have read, with the time of each poll. The
    /// next poll begins at the number that a poll read `ARRIVAL_LAG` ago.
    seen: VecDeque<(Instant, i64)>,
    /// Tenants with events that have no log position yet, because another transaction has locked
    /// the tenant's row in `event_heads`.
    waiting: HashSet<String>,
    /// How long the last page of the pass over all tenants took.
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

    /// Returns the tenants with logs that have grown since the last poll. A failed poll counts as
    /// an outage of the database, and the next poll begins at the same arrival number.
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

    /// Assigns log positions to all events that have none. Returns the scopes that are due for a
    /// retry, and the scopes among the next page of tenants that are behind their log. With `all`,
    /// the function reads all tenants at once.
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

    /// Deletes old events that all projections have read, for the next page of tenants. Returns
    /// whether there may be more events to delete.
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

    /// Deletes a batch of finished runs and resolved failures of projections after the end of their
    /// retention. Returns whether there may be more of them.
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
