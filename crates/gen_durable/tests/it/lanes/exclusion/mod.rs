//! Tests mutual exclusion in a lane or under a partition key while the step of a cancelled instance
//! still runs. The next step in the lane or under the key begins only when the cancelled step has
//! ended or the lease of its worker has expired.

mod released;
mod steps;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gen_durable::{
    Client, Context, Engine, Id, Job, Lane, Pool, SECOND, Settings, StepError,
    engine::Health,
    inspect::{Blocker, Explanation},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Running, SOON, eventually};

/// The record that all steps of a test share: the steps in the order in which they began, the
/// semaphores for which some of them wait, and the largest number of steps that ran at the same
/// time under one name.
#[derive(Default, Clone)]
struct StepTracker(Arc<Mutex<Tracked>>);

#[derive(Default)]
struct Tracked {
    begun: Vec<u64>,
    running: HashMap<String, usize>,
    most: usize,
    gates: HashMap<u64, Arc<Semaphore>>,
}

impl StepTracker {
    fn gate(&self, n: u64) -> Arc<Semaphore> {
        self.0
            .lock()
            .unwrap()
            .gates
            .entry(n)
            .or_insert_with(|| Arc::new(Semaphore::new(0)))
            .clone()
    }
    fn begun(&self) -> Vec<u64> {
        self.0.lock().unwrap().begun.clone()
    }
    fn most(&self) -> usize {
        self.0.lock().unwrap().most
    }
    async fn has_begun(&self, n: u64) {
        eventually("the step has begun", async || self.begun().contains(&n)).await;
    }
}

/// A guard that counts its step as running until the guard is dropped, which happens however the
/// step ends.
struct RunningStep<'a>(&'a StepTracker, &'a str);

impl<'a> RunningStep<'a> {
    fn start(tracker: &'a StepTracker, name: &'a str, n: u64) -> RunningStep<'a> {
        let mut tracked = tracker.0.lock().unwrap();
        tracked.begun.push(n);
        let count = tracked.running.entry(name.to_owned()).or_default();
        *count += 1;
        let count = *count;
        tracked.most = tracked.most.max(count);
        RunningStep(tracker, name)
    }
}

impl Drop for RunningStep<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap().running.get_mut(self.1).unwrap() -= 1;
    }
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
enum By {
    Lane,
    Key,
    Both,
}

#[derive(Serialize, Deserialize)]
struct KeyedJob {
    n: u64,
    name: String,
    by: By,
    /// If set, the step first waits until its instance is cancelled. It then ends, unless the test
    /// has created a semaphore for the step.
    ends_on_cancel: bool,
}

impl Job for KeyedJob {
    const NAME: &'static str = "keyed_job";
    type App = StepTracker;
    type Output = u64;
    fn lane(&self) -> Option<Lane> {
        (self.by != By::Key).then(|| Lane::new("lane", &self.name))
    }
    fn partition(&self) -> Option<String> {
        (self.by != By::Lane).then(|| self.name.clone())
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u64, StepError> {
        let cancelled = self.ends_on_cancel.then(|| cx.cancelled());
        let _running = RunningStep::start(cx.app(), &self.name, self.n);
        if let Some(cancelled) = cancelled {
            cancelled.await;
        }
        let gate = cx.app().0.lock().unwrap().gates.get(&self.n).cloned();
        if let Some(gate) = gate {
            drop(gate.acquire().await);
        }
        Ok(self.n)
    }
}

fn keyed_job(by: By, n: u64) -> KeyedJob {
    KeyedJob {
        n,
        name: format!("{by:?}"),
        by,
        ends_on_cancel: false,
    }
}

fn quick() -> Settings {
    let short = Duration::from_millis(100);
    Settings {
        reap_every: short,
        drain_timeout: short,
        statement_timeout: SECOND,
        ..Settings::default()
    }
}

/// Returns settings with a short lease, because an engine reaps expired workers only one lease
/// after it has started.
fn reaping() -> Settings {
    Settings {
        lease: SECOND,
        heartbeat: SECOND / 4,
        ..quick()
    }
}

fn start(pool: &Pool, tracker: &StepTracker, settings: Settings) -> (Running, Health) {
    let engine = Engine::builder(pool.clone(), tracker.clone())
        .register::<KeyedJob>()
        .settings(settings)
        .build()
        .unwrap();
    let health = engine.health();
    (Running::start(engine), health)
}

/// Enqueues one instance for each of the numbers, in one batch.
async fn enqueue_jobs(client: &Client, by: By, numbers: std::ops::Range<u64>) -> Vec<Id<KeyedJob>> {
    let made = client
        .enqueue_all(numbers.map(|n| keyed_job(by, n)))
        .await
        .unwrap();
    made.iter().map(|one| one.id).collect()
}

/// Runs a few unrelated instances through enqueue, placement, pick and commit. The picks that claim
/// these instances would have claimed the successor of the cancelled instance too, if the successor
/// were allowed to run.
async fn picks_pass(client: &Client) {
    for by in [By::Lane, By::Key, By::Lane] {
        let job = KeyedJob {
            name: "elsewhere".into(),
            ..keyed_job(by, 1_000)
        };
        let one = client.enqueue(job).await.unwrap();
        client.settled(one.id, SOON).await.unwrap().unwrap();
    }
}

async fn done(client: &Client, id: Id<KeyedJob>) {
    assert!(
        client
            .settled(id, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .is_ok()
    );
}

/// Returns the explanation of the lane head or partition holder that the explained instance waits
/// for.
fn holder(explanation: &Explanation) -> &Explanation {
    match &explanation.blockers[0] {
        Blocker::Queued { head, .. } => head,
        Blocker::PartitionWaiting { holder, .. } => holder,
        other => panic!("it waits for no other instance: {other:?}"),
    }
}
