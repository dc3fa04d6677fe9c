//! What is shown live: read once a second while somebody looks, however many they are, and written out once for all of them.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use gen_durable::{
    Attention, Backlog, Count, Error, Estimate, Inspect, Pool, Timestamp, Trouble, WorkerInfo,
};
use tokio::sync::{Notify, watch};

use crate::{
    api::json,
    redact::Redaction,
    series::{KEPT_SECONDS, Series, Shown, Sums},
};

/// How often it is read while somebody looks.
const EVERY: Duration = Duration::from_secs(1);
/// What changes slowly, or costs more, is read with every so manieth look.
const SLOW_EVERY: u64 = 3;
/// Somebody looks until so long after the last question.
const ATTENTION: Duration = Duration::from_secs(15);
/// An answer that is older than this is not given: a new one is waited for, so long.
const FRESH: Duration = Duration::from_millis(2500);
const PATIENCE: Duration = Duration::from_secs(4);
/// A commit may show so many seconds after its time.
const LATE_SECONDS: i64 = 5;
/// The chart of the overview: the last so many seconds.
const CHART_SECONDS: i64 = 300;

/// One look, whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// When it was taken, by the schema's clock.
    pub(crate) now: Option<Timestamp>,
    taken: Option<Instant>,
    pub(crate) estimate: Option<Estimate>,
    pub(crate) backlog: Vec<Backlog>,
    pub(crate) standing: Vec<Count>,
    pub(crate) edges: Vec<gen_durable::Edge>,
    pub(crate) workers: Vec<WorkerInfo>,
    pub(crate) troubles: Vec<Trouble>,
    /// Lanes, timers and schedules that a person should see to.
    pub(crate) attention: Attention,
    pub(crate) chart: Shown,
    /// Of the last minute.
    pub(crate) minute: Sums,
    /// Settled since this process began to look: (done, failed).
    pub(crate) settled: (i64, i64),
    /// Why there is nothing newer.
    pub(crate) trouble: Option<String>,
    /// All of it, as it is sent.
    pub(crate) text: Arc<str>,
}

#[derive(Debug)]
pub(crate) struct Pulse {
    inspect: Inspect,
    pool: Pool,
    redaction: Redaction,
    latest: watch::Sender<Arc<Snapshot>>,
    /// When somebody last asked. Guarded for a moment, never over an await.
    asked: Mutex<Option<Instant>>,
    /// Somebody asks after a time in which nobody did.
    wake: Notify,
    series: Mutex<Series>,
}

/// What the next look goes on from.
#[derive(Debug, Default)]
struct Place {
    looks: u64,
    /// The last second that was read.
    second: Option<i64>,
    /// Ids seen, with the second they were seen in: what came in after the oldest is read again.
    seen: std::collections::VecDeque<(i64, i64)>,
    settled: (i64, i64),
    settled_until: Option<i64>,
}

impl Pulse {
    /// Start looking, as soon as somebody asks. It ends when nobody holds it any more.
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
            asked: Mutex::default(),
            wake: Notify::new(),
            series: Mutex::default(),
        });
        tokio::spawn(look_while_asked(Arc::downgrade(&pulse)));
        pulse
    }

    /// The statements that were sent for it, by name.
    pub(crate) fn statements(&self) -> u64 {
        self.pool.statements().values().sum()
    }

    /// Somebody looks.
    pub(crate) fn ask(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.wake.notify_one();
    }

    fn is_asked(&self) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.latest.receiver_count() > 0 || asked.is_some_and(|asked| asked.elapsed() < ATTENTION)
    }

    /// Every look from now on, beginning with the last one if it is fresh.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Snapshot>> {
        let receiver = self.latest.subscribe();
        self.ask();
        receiver
    }

    /// The last look, not older than a moment.
    pub(crate) async fn now(&self) -> Arc<Snapshot> {
        let mut receiver = self.follow();
        let deadline = Instant::now() + PATIENCE;
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

    /// A chart of its own: `window` seconds, `step` to a point.
    pub(crate) fn chart(&self, now: i64, window: i64, step: i64) -> Shown {
        self.series
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .show(now, window, step)
    }

    async fn look(&self, place: &mut Place) {
        let before = self.latest.borrow().clone();
        let mut snapshot = match self.read(place, &before).await {
            Ok(snapshot) => snapshot,
            Err(error) => Snapshot {
                trouble: Some(error.to_string()),
                ..(*before).clone()
            },
        };
        snapshot.taken = Some(Instant::now());
        snapshot.text = json::overview(&snapshot, &self.redaction)
            .to_string()
            .into();
        self.latest.send_replace(Arc::new(snapshot));
        place.looks += 1;
    }

    async fn read(&self, place: &mut Place, before: &Snapshot) -> Result<Snapshot, Error> {
        let inspect = &self.inspect;
        let estimate = inspect.estimate().await?;
        let now = estimate.now.as_second();
        let from = place
            .second
            .map_or(now - KEPT_SECONDS, |second| second - LATE_SECONDS)
            .max(now - KEPT_SECONDS);
        let since = Timestamp::from_second(from).unwrap_or(estimate.now);
        let finished = inspect.finished(since).await?;
        // Everything that came in after what was the newest a few seconds ago.
        while place
            .seen
            .get(1)
            .is_some_and(|(second, _)| *second < now - LATE_SECONDS)
        {
            place.seen.pop_front();
        }
        let (arrived_from, after) = place
            .seen
            .front()
            .map_or((now - KEPT_SECONDS, 0), |(second, id)| (second - 1, *id));
        let arrived = inspect.arrived(after).await?;
        let backlog = inspect.backlog().await?;
        let is_slow = place.looks.is_multiple_of(SLOW_EVERY) || before.trouble.is_some();
        let (standing, workers, troubles, edges) = match is_slow {
            true => (
                inspect.standing().await?,
                inspect.workers().await?,
                inspect.troubles().await?,
                inspect.edges().await?,
            ),
            false => (
                before.standing.clone(),
                before.workers.clone(),
                before.troubles.clone(),
                before.edges.clone(),
            ),
        };
        let attention = if is_slow {
            inspect.attention().await?
        } else {
            before.attention
        };
        let newest = arrived.iter().map(|row| row.newest).max().unwrap_or(after);
        place.seen.push_back((now, newest.max(after)));
        place.second = Some(now);
        let (chart, minute) = {
            let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
            series.settled(from, finished);
            // The first second of what was read is only half there.
            series.arrived(arrived_from + 1, &arrived);
            series.trim(now);
            // What is not over yet, and what may still show late, is not counted for good.
            let sure = now - LATE_SECONDS;
            let sums = series.sums(place.settled_until.unwrap_or(sure), sure);
            place.settled.0 += sums.done;
            place.settled.1 += sums.failed;
            place.settled_until = Some(sure);
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
            standing,
            edges,
            workers,
            troubles,
            attention,
            chart,
            minute,
            settled: place.settled,
            trouble: None,
            text: "".into(),
        })
    }
}

async fn look_while_asked(pulse: Weak<Pulse>) {
    let mut place = Place::default();
    loop {
        let began = Instant::now();
        {
            let Some(pulse) = pulse.upgrade() else { return };
            if pulse.is_asked() {
                pulse.look(&mut place).await;
            } else {
                // Held only for a while: whoever drops the router must not wait for us.
                let _ = tokio::time::timeout(EVERY, pulse.wake.notified()).await;
                continue;
            }
        }
        tokio::time::sleep(EVERY.saturating_sub(began.elapsed())).await;
    }
}
