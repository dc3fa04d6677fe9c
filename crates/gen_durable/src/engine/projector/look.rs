//! What is new in the logs: which have grown, and what waits for a position. It places as it goes.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::turn::Projector;
use crate::store::{
    events::{self, Looked, News},
    fault::Fault,
    projections,
};

/// A poll looks again at what arrived this long before the last one: numbers of arrival commit out of order.
const ARRIVAL_LAG: Duration = Duration::from_millis(100);
/// Scopes that one sweep may find.
const BACKLOG_MAX: i32 = 10_000;
/// Old events deleted in one statement.
const TRIM_BATCH: i32 = 5_000;

/// What was looked at, and what could not be placed yet.
pub(super) struct Look {
    projector: Arc<Projector>,
    since: Looked,
    /// Arrivals seen, and when: a poll begins a little before the last one.
    seen: VecDeque<(Instant, i64)>,
    /// Tenants whose head was held when we came to place.
    waiting: HashSet<String>,
}

impl Look {
    pub(super) fn new(projector: Arc<Projector>) -> Look {
        Look { projector, since: Looked::default(), seen: VecDeque::new(), waiting: HashSet::new() }
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
        let placed = self.look(since, true).await;
        let behind = self
            .projector
            .call(move |connection| async move {
                if swept.is_empty() {
                    return Ok(Vec::new());
                }
                projections::backlog(&connection, &swept, &worker, BACKLOG_MAX).await
            })
            .await;
        match placed.and(behind) {
            Ok(behind) => behind,
            Err(fault) => {
                tracing::debug!(error = fault.message(), "could not sweep the log");
                Vec::new()
            }
        }
    }

    /// Old events that everybody has read.
    pub(super) async fn trim(&self, retention: Option<Duration>) {
        let Some(retention) = retention else { return };
        let seconds = crate::codec::delay_seconds(retention);
        let trimmed = self.projector.call(move |connection| async move {
            let mut after: Option<String> = None;
            loop {
                let tenants = events::tenants(&connection, after.as_deref(), 1_000).await?;
                let Some((last, _)) = tenants.last() else { return Ok(()) };
                after = Some(last.clone());
                for (tenant, height) in &tenants {
                    let batch = TRIM_BATCH;
                    while events::trim(&connection, tenant, *height, Some(seconds), false, batch).await? >= batch.into()
                    {
                    }
                }
            }
        });
        if let Err(fault) = trimmed.await {
            tracing::debug!(error = fault.message(), "could not trim the logs");
        }
    }
}
