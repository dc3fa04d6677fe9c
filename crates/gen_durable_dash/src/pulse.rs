//! The numbers of the dashboard overview. One task reads the numbers from the database once a
//! second while at least one dashboard is open, serializes them once, and shares the text with all
//! open dashboards.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use gen_durable::{
    Error, Pool,
    inspect::{
        Backlog, Count, Edge, Estimate, FailureGroup, Findings, Inspect, LimitInfo, WorkerInfo,
    },
    schedule::Timestamp,
};
use tokio::sync::{Notify, watch};

use crate::{
    api::json,
    limit_series::{LimitChart, LimitSeries},
    redact::Redaction,
    series::{Chart, KEPT_SECONDS, Series, Sums},
};

/// The interval between two reads of the numbers of the overview while a dashboard is open.
const EVERY: Duration = Duration::from_secs(1);
/// The task that reads the numbers of the overview reads the slowly changing and the expensive
/// numbers only at every `SLOW_EVERY`th read.
const SLOW_EVERY: u64 = 3;
/// The task continues to read the numbers of the overview for this long after the last request of a
/// dashboard.
const IDLE_AFTER: Duration = Duration::from_secs(15);
/// If the last snapshot of the overview is older than `FRESH`, a request waits for a new snapshot,
/// at most `WAIT_MAX`.
const FRESH: Duration = Duration::from_millis(2500);
const WAIT_MAX: Duration = Duration::from_secs(4);
/// A read of the numbers of the overview that takes longer has failed.
const READ_MAX: Duration = Duration::from_secs(4);
/// The dashboard assumes that a commit becomes visible at most this many seconds after the
/// timestamp in its rows.
const LATE_SECONDS: i64 = 5;
/// The length of the overview chart in seconds.
const CHART_SECONDS: i64 = 300;

/// A snapshot: all numbers of the dashboard overview from one read of the database.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// The time of the read of the snapshot, by the clock of the database schema.
    pub(crate) now: Option<Timestamp>,
    taken: Option<Instant>,
    pub(crate) estimate: Option<Estimate>,
    pub(crate) backlog: Vec<Backlog>,
    /// The use of the first 100 limits by name.
    pub(crate) limits: Vec<LimitInfo>,
    pub(crate) standing: Vec<Count>,
    /// Whether the numbers of queued instances in `standing` are lower bounds.
    pub(crate) is_queued_capped: bool,
    pub(crate) edges: Vec<Edge>,
    pub(crate) workers: Vec<WorkerInfo>,
    pub(crate) troubles: Vec<FailureGroup>,
    /// Counts of lanes, timers and schedules that need an operator.
    pub(crate) findings: Findings,
    pub(crate) chart: Chart,
    /// The numbers of enqueued and settled instances of the last minute, and percentiles of the
    /// time from enqueue to settled.
    pub(crate) minute: Sums,
    /// The numbers of instances that have settled since the dashboard began to read: (done,
    /// failed, cancelled).
    pub(crate) settled: (i64, i64, i64),
    /// The error of the last read of the numbers, if that read failed. The other fields of the
    /// snapshot then have the values of the last successful read.
    pub(crate) trouble: Option<String>,
    /// The time of the first of the failed reads since the last successful one.
    pub(crate) trouble_since: Option<Timestamp>,
    /// The snapshot serialized as JSON.
    pub(crate) text: Arc<str>,
}

/// The numbers of a snapshot that change slowly or are expensive to read.
#[derive(Debug)]
struct SlowNumbers {
    standing: Vec<Count>,
    is_queued_capped: bool,
    workers: Vec<WorkerInfo>,
    troubles: Vec<FailureGroup>,
    edges: Vec<Edge>,
    findings: Findings,
}

impl SlowNumbers {
    /// Returns the numbers of an earlier snapshot.
    fn of(before: &Snapshot) -> SlowNumbers {
        SlowNumbers {
            standing: before.standing.clone(),
            is_queued_capped: before.is_queued_capped,
            workers: before.workers.clone(),
            troubles: before.troubles.clone(),
            edges: before.edges.clone(),
            findings: before.findings,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pulse {
    inspect: Inspect,
    pool: Pool,
    redaction: Redaction,
    latest: watch::Sender<Arc<Snapshot>>,
    /// The time of the last request for the numbers of the overview. Requests and the reading task
    /// lock this mutex briefly, never across an await.
    requested: Mutex<Option<Instant>>,
    /// A request after an idle time wakes the task that reads the numbers of the overview through
    /// this field.
    wake: Notify,
    series: Mutex<Series>,
    limit_series: Mutex<LimitSeries>,
}

/// The state that the task that reads the numbers of the overview keeps between two reads.
#[derive(Debug, Default)]
struct ReadState {
    reads: u64,
    /// The time of the last read of the numbers, in seconds since 1970.
    second: Option<i64>,
    /// The newest instance id at each read, as (second, id). At the next read, the task counts all
    /// instances with an id above the id of the oldest entry again.
    seen: std::collections::VecDeque<(i64, i64)>,
    settled: (i64, i64, i64),
    settled_until: Option<i64>,
}

impl ReadState {
    /// Adds the instances that settled before `complete_until` to the totals. The totals include
    /// only complete seconds: in the last `LATE_SECONDS`, a commit with an earlier timestamp may
    /// still become visible.
    fn add_settled(&mut self, series: &Series, complete_until: i64) {
        let sums = series.sums(self.settled_until.unwrap_or(complete_until), complete_until);
        self.settled.0 += sums.done;
        self.settled.1 += sums.failed;
        self.settled.2 += sums.cancelled;
        self.settled_until = Some(complete_until);
    }
}

impl Pulse {
    /// Starts the task that reads the numbers of the overview. The task reads only while dashboards
    /// send requests, and ends after the drop of the `Pulse`.
    pub(crate) fn start(
        pool: Pool,
        statement_timeout: Duration,
        redaction: Redaction,
    ) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse {
            inspect: Inspect::new(pool.clone()).bounded(statement_timeout),
            pool,
            redaction,
            latest: watch::Sender::new(Arc::default()),
            requested: Mutex::default(),
            wake: Notify::new(),
            series: Mutex::default(),
            limit_series: Mutex::default(),
        });
        tokio::spawn(read_while_requested(Arc::downgrade(&pulse)));
        pulse
    }

    /// Returns the number of statements that the reading task has sent for the numbers of the
    /// overview.
    pub(crate) fn statements(&self) -> u64 {
        self.pool.statements().values().sum()
    }

    /// Records the time of a request for the numbers of the overview, and wakes the task that reads
    /// them.
    pub(crate) fn ask(&self) {
        *self
            .requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.wake.notify_one();
    }

    fn is_requested(&self) -> bool {
        let requested = *self
            .requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.latest.receiver_count() > 0
            || requested.is_some_and(|requested| requested.elapsed() < IDLE_AFTER)
    }

    /// Returns a receiver of all later snapshots of the overview. The receiver has the current
    /// snapshot at once.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Snapshot>> {
        let receiver = self.latest.subscribe();
        self.ask();
        receiver
    }

    /// Returns a snapshot of the overview that is younger than `FRESH`. Returns the last snapshot,
    /// whatever its age, if there is no new snapshot within `WAIT_MAX`.
    pub(crate) async fn now(&self) -> Arc<Snapshot> {
        let mut receiver = self.follow();
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let latest = receiver.borrow_and_update().clone();
            if latest.taken.is_some_and(|taken| taken.elapsed() < FRESH) {
                return latest;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !matches!(
                tokio::time::timeout(left, receiver.changed()).await,
                Ok(Ok(()))
            ) {
                return latest;
            }
        }
    }

    /// Returns the overview chart of the last `window` seconds with `step` seconds per point.
    pub(crate) fn chart(&self, now: i64, window: i64, step: i64) -> Chart {
        self.series
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .show(now, window, step)
    }

    /// Returns the use of a limit in the `CHART_SECONDS` up to a snapshot, or `None` if the
    /// snapshot does not have the limit.
    pub(crate) fn limit_chart(&self, snapshot: &Snapshot, name: &str) -> Option<LimitChart> {
        let now = snapshot.now?.as_second();
        snapshot.limits.iter().find(|limit| limit.name == name)?;
        let series = self
            .limit_series
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Some(series.show(name, now, CHART_SECONDS))
    }

    async fn refresh(&self, state: &mut ReadState) {
        let before = self.latest.borrow().clone();
        // A database that hangs sends no error. The pages must say soon that the numbers are old.
        let read = tokio::time::timeout(READ_MAX, self.read(state, &before)).await;
        let failed = |why: String| Snapshot {
            trouble: Some(self.redaction.text(&why)),
            trouble_since: before.trouble_since.or_else(|| Some(Timestamp::now())),
            ..(*before).clone()
        };
        let mut snapshot = match read {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(error)) => failed(format!("{error:#}")),
            Err(_) => failed(format!("no answer within {} s", READ_MAX.as_secs())),
        };
        snapshot.taken = Some(Instant::now());
        snapshot.text = json::overview(&snapshot, &self.redaction)
            .to_string()
            .into();
        self.latest.send_replace(Arc::new(snapshot));
        state.reads += 1;
    }

    async fn read_slow(&self) -> Result<SlowNumbers, Error> {
        let inspect = &self.inspect;
        let mut standing = inspect.status_counts().await?;
        let (queued, is_complete) = inspect.queued_counts().await?;
        standing.extend(queued);
        Ok(SlowNumbers {
            standing,
            is_queued_capped: !is_complete,
            workers: inspect.workers().await?,
            troubles: inspect.failure_groups().await?,
            edges: inspect.edges().await?,
            findings: inspect.findings().await?,
        })
    }

    async fn read(&self, state: &mut ReadState, before: &Snapshot) -> Result<Snapshot, Error> {
        let inspect = &self.inspect;
        let estimate = inspect.estimate().await?;
        let now = estimate.now.as_second();
        let from = state
            .second
            .map_or(now - KEPT_SECONDS, |second| second - LATE_SECONDS)
            .max(now - KEPT_SECONDS);
        let since = Timestamp::from_second(from).unwrap_or(estimate.now);
        let settled = inspect.settled(since).await?;
        // Keeps one entry of `seen` that is at least `LATE_SECONDS` old. The task counts all
        // instances with an id above the id of that entry again, because the commit of an enqueue
        // may become visible after the commit of an enqueue with a higher id.
        while state
            .seen
            .get(1)
            .is_some_and(|(second, _)| *second < now - LATE_SECONDS)
        {
            state.seen.pop_front();
        }
        let (arrived_from, after) = state
            .seen
            .front()
            .map_or((now - KEPT_SECONDS, 0), |(second, id)| (second - 1, *id));
        let arrived = inspect.arrived(after).await?;
        let backlog = inspect.backlog().await?;
        let limits = inspect.limit_counts().await?;
        let is_slow = state.reads.is_multiple_of(SLOW_EVERY) || before.trouble.is_some();
        let slow = match is_slow {
            true => self.read_slow().await?,
            false => SlowNumbers::of(before),
        };
        let newest = arrived
            .iter()
            .map(|row| row.newest_id)
            .max()
            .unwrap_or(after);
        state.seen.push_back((now, newest.max(after)));
        state.second = Some(now);
        self.limit_series
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(now, &limits);
        let (chart, minute) = {
            let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
            series.settled(from, settled);
            // Ignores the arrivals of the first second, because that count is incomplete: the read
            // began with an instance id in the middle of the second.
            series.arrived(arrived_from + 1, &arrived);
            series.trim(now);
            state.add_settled(&series, now - LATE_SECONDS);
            (
                series.show(now, CHART_SECONDS, 1),
                series.sums(now - 60, now),
            )
        };
        Ok(Snapshot {
            now: Some(estimate.now),
            taken: None,
            estimate: Some(estimate),
            backlog,
            limits,
            standing: slow.standing,
            is_queued_capped: slow.is_queued_capped,
            edges: slow.edges,
            workers: slow.workers,
            troubles: slow.troubles,
            findings: slow.findings,
            chart,
            minute,
            settled: state.settled,
            trouble: None,
            trouble_since: None,
            text: "".into(),
        })
    }
}

async fn read_while_requested(pulse: Weak<Pulse>) {
    let mut state = ReadState::default();
    loop {
        let began = Instant::now();
        {
            let Some(pulse) = pulse.upgrade() else { return };
            if pulse.is_requested() {
                pulse.refresh(&mut state).await;
            } else {
                // Limits the wait to `EVERY`, because the task holds a strong reference to `pulse`
                // while it waits, and the task must end after the drop of the router.
                let _ = tokio::time::timeout(EVERY, pulse.wake.notified()).await;
                continue;
            }
        }
        tokio::time::sleep(EVERY.saturating_sub(began.elapsed())).await;
    }
}
