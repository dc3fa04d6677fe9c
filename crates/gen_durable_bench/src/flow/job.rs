//! The job of a steady flow, and the record of its starts in a worker process.

use std::sync::{Arc, Mutex, PoisonError};

use gen_durable::{Context, Job, Lane, Queue, StepError};
use serde::{Deserialize, Serialize};

use crate::jobs::now_nanos;

/// The number of lanes or partition keys over which a flow spreads its jobs.
const KEYS: u64 = 100;

/// The kind of the jobs of a flow.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Jobs without a lane or partition key.
    Plain,
    /// Jobs in 100 lanes.
    Lane,
    /// Jobs with 100 partition keys.
    Partition,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Plain => "plain",
            Kind::Lane => "lane",
            Kind::Partition => "partition",
        }
    }
}

/// A job of a flow. Its step only records its start.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct FlowJob {
    /// The time just before the enqueue call, in nanoseconds of the wall clock.
    at: u64,
    kind: Kind,
    key: u64,
    payload: String,
}

impl FlowJob {
    /// Creates the n-th job of a flow, with the current time.
    pub(super) fn new(kind: Kind, n: u64, payload: &str) -> FlowJob {
        FlowJob {
            at: now_nanos(),
            kind,
            key: n % KEYS,
            payload: payload.to_owned(),
        }
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }
}

impl Job for FlowJob {
    const NAME: &'static str = "flow";
    type App = Arc<Starts>;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        (self.kind == Kind::Lane).then(|| Lane::new("flow", self.key))
    }
    fn partition(&self) -> Option<String> {
        (self.kind == Kind::Partition).then(|| format!("flow:{}", self.key))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().record(self.at);
        Ok(())
    }
}

/// The time of the enqueue call and the time of the start, for each job that a worker process has
/// run.
#[derive(Debug, Default)]
pub(super) struct Starts(Mutex<Vec<(u64, u64)>>);

impl Starts {
    fn record(&self, at: u64) {
        let now = now_nanos();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((at, now));
    }

    pub(super) fn all(&self) -> Vec<(u64, u64)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }
}

/// Returns the queues of a flow: the default queue, or this number of other queues.
pub(super) fn queues(count: u32) -> Vec<Queue> {
    if count <= 1 {
        return vec![Queue::DEFAULT];
    }
    // The name of a queue is static. A process makes these few names once.
    let named = |n| Queue::new(Box::leak(format!("flow_{n}").into_boxed_str()));
    (0..count).map(named).collect()
}
