//! What is new in the logs: which have grown, and what waits for a position. It places as it goes.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::turn::Projector;
use crate::store::{
    events::{self, Looked, News, Trim},
    fault::Fault,
    projections,
};

/// A poll looks again at what arrived this long before the last one: numbers of arrival commit out of order.
const ARRIVAL_LAG: Duration = Duration::from_millis(100);
/// Scopes that one sweep may find.
const BACKLOG_MAX: i32 = 10_000;
/// Old events deleted in one statement.
const TRIM_BATCH: i32 = 1_000;
/// Logs that are trimmed before the next ones are asked for.
const TENANTS_PAGE: i32 = 1_000;

/// What was looked at, and what could not be placed yet.
pub(super) struct Look {
    projector: Arc<Projector>,
    since: Looked,
    /// Arrivals seen, and when: a poll begins a little before the last one.
    seen: VecDeque<(Instant, i64)>,
    /// Tenants whose head was held when we came to place.
    waiting: HashSet<String>,
    /// Logs that are still to be trimmed, with their height, who follows them, and the last one that was asked for.
    untrimmed: VecDeque<(String, i64)>,
    followers: Arc<Vec<String>>,
    trimmed_to: Option<String>,
}

impl Look {
    pub(super) fn new(projector: Arc<Projector>) -> Look {
        Look {
            projector,
            since: Looked::default(),
            seen: VecDeque::new(),
            waiting: HashSet::new(),
            untrimmed: VecDeque::new(),
            followers: Arc::default(),
            trimmed_to: None,
        }
    }

    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What has grown since the last look. A failure is an outage: the next one looks from the same place.
    pub(super) async fn poll(&mut self) -> BTreeMap<String, i64> {
        let mut since = self.since.clone();
        if self.projector.readers.is_empty() {
            since.arrival = None;
        }
        match self.look(since, false).await {
            Ok(grown) => grown,
            Err(fault) => {
                tracing::debug!(error = fault.message(), "could not look at the log");
                BTreeMap::new()
            }
        }
    }

    async fn look(&mut self, since: Looked, all: bool) -> Result<BTreeMap<String, i64>, Fault> {
        let News { unplaced, placed, looked } =
            self.projector.call(move |connection| async move { events::discover(&connection, &since).await }).await?;
        let mut grown: BTreeMap<String, i64> = placed.into_iter().collect();
        self.waiting.extend(unplaced);
        if !self.waiting.is_empty() {
            let tenants: Vec<String> = self.waiting.iter().cloned().collect();
            let done =
                self.projector.call(move |connection| async move { events::place(&connection, &tenants, all).await });
            for (tenant, count) in done.await? {
                self.waiting.remove(&tenant);
                if count > 0 {
                    grown.insert(tenant, i64::MAX);
                }
            }
        }
        let now = Instant::now();
        self.since.snapshot = looked.snapshot;
        if let Some(arrival) = looked.arrival {
            self.seen.push_back((now, arrival));
            while self.seen.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= ARRIVAL_LAG) {
                self.seen.pop_front();
            }
            self.since.arrival = self.seen.front().map(|(_, arrival)| *arrival);
        }
        Ok(grown)
    }

    /// From the beginning: what waits for a position, whoever left it there, and every scope that is behind.
    pub(super) async fn sweep(&mut self) -> Vec<(String, String)> {
        let (swept, worker) = (self.projector.swept(), self.projector.worker.clone());
        let since = Looked { snapshot: None, arrival: self.since.arrival };
        if let Err(fault) = self.look(since, true).await {
            tracing::debug!(error = fault.message(), "could not place from the beginning");
        }
        let behind = self
            .projector
            .call(move |connection| async move {
                if swept.is_empty() {
                    return Ok(Vec::new());
                }
                projections::backlog(&connection, &swept, &worker, BACKLOG_MAX).await
            })
            .await;
        match behind {
            Ok(behind) => behind,
            Err(fault) => {
                tracing::debug!(error = fault.message(), "could not sweep the log");
                Vec::new()
            }
        }
    }

    /// Some old events that everybody has read. Answers whether there may be more.
    pub(super) async fn trim(&mut self, retention: Option<Duration>) -> bool {
        let Some(retention) = retention else { return false };
        match self.trim_some(crate::codec::delay_seconds(retention)).await {
            Ok(more) => more,
            Err(fault) => {
                tracing::debug!(error = fault.message(), "could not trim the logs");
                self.untrimmed.clear();
                false
            }
        }
    }

    async fn trim_some(&mut self, seconds: f64) -> Result<bool, Fault> {
        let Some((tenant, height)) = self.untrimmed.pop_front() else {
            let after = self.trimmed_to.take();
            let page = self.projector.call(move |connection| async move {
                let tenants = events::tenants(&connection, after.as_deref(), TENANTS_PAGE).await?;
                Ok((tenants, projections::names(&connection).await?))
            });
            let (tenants, mut followers) = page.await?;
            followers.extend(self.projector.names().into_iter().map(str::to_owned));
            (self.untrimmed, self.followers) = (tenants.into(), Arc::new(followers));
            self.trimmed_to = self.untrimmed.back().map(|(tenant, _)| tenant.clone());
            return Ok(!self.untrimmed.is_empty());
        };
        let (whose, followers) = (tenant.clone(), self.followers.clone());
        let gone = self.projector.call(move |connection| async move {
            let trim = Trim {
                tenant: &whose,
                to: height,
                older_seconds: Some(seconds),
                abandon: false,
                followers: &followers,
                limit: TRIM_BATCH,
            };
            events::trim(&connection, &trim).await
        });
        if gone.await? >= TRIM_BATCH.into() {
            self.untrimmed.push_front((tenant, height));
        }
        Ok(true)
    }
}
