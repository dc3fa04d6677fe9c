//! Tests of limits: how many steps run at the same time or begin in a period, in all workers.

mod bounds;
mod composition;
mod concurrency;
mod locks;
mod plans;
mod rates;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use gen_durable::{
    Client, Context, Engine, Id, Job, Lane, NewInstance, Pool, Queue, StepError,
    machine::{Limit, Limits},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Running, eventually};

/// The steps that run now, by key; the largest numbers in total and for a key; and all starts.
#[derive(Default, Clone)]
struct Calls(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    running: HashMap<String, usize>,
    most: usize,
    most_of_a_key: usize,
    starts: Vec<(String, u64)>,
    gates: HashMap<u64, Arc<Semaphore>>,
}

impl Calls {
    fn enter(&self, key: &str, n: u64) {
        let mut seen = self.0.lock().unwrap();
        *seen.running.entry(key.to_owned()).or_default() += 1;
        seen.most = seen.most.max(seen.running.values().sum());
        seen.most_of_a_key = seen.most_of_a_key.max(seen.running[key]);
        seen.starts.push((key.to_owned(), n));
    }

    fn leave(&self, key: &str) {
        *self.0.lock().unwrap().running.get_mut(key).unwrap() -= 1;
    }

    /// Returns the largest number of steps that ran at the same time, in total and with one key.
    fn most(&self) -> (usize, usize) {
        let seen = self.0.lock().unwrap();
        (seen.most, seen.most_of_a_key)
    }

    fn most_of_a_key(&self) -> usize {
        self.most().1
    }

    fn starts(&self) -> Vec<(String, u64)> {
        self.0.lock().unwrap().starts.clone()
    }

    /// Returns how many steps have begun.
    fn count(&self) -> usize {
        self.0.lock().unwrap().starts.len()
    }

    /// Returns the numbers of the jobs that have begun, in the order of their starts.
    fn begun(&self) -> Vec<u64> {
        self.starts().into_iter().map(|(_, n)| n).collect()
    }

    async fn has_begun(&self, n: u64) {
        eventually("the step has begun", async || self.begun().contains(&n)).await;
    }

    fn gate(&self, n: u64) -> Arc<Semaphore> {
        let mut seen = self.0.lock().unwrap();
        let gate = seen.gates.entry(n);
        gate.or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }

    /// Lets the gated step of the job `n` end.
    fn open(&self, n: u64) {
        self.gate(n).add_permits(1);
    }
}

/// A call of an API that allows some calls at once in total, and some for each tenant.
#[derive(Serialize, Deserialize)]
struct Fetch {
    tenant: String,
    n: u64,
    weight: u32,
    /// Further limits that the job takes.
    also: Vec<String>,
    /// The step does not end before the test opens its gate.
    gated: bool,
    lane: Option<String>,
    partition: Option<String>,
}

impl Job for Fetch {
    const NAME: &'static str = "fetch";
    type App = Calls;
    type Output = ();
    fn limits(&self) -> Limits {
        let first = Limits::of("api").key(&self.tenant).weight(self.weight);
        let also = self.also.iter().cloned();
        also.fold(first, |limits, name| limits.and(name))
    }
    fn lane(&self) -> Option<Lane> {
        self.lane.as_ref().map(|lane| Lane::new("lane", lane))
    }
    fn partition(&self) -> Option<String> {
        self.partition.clone()
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().enter(&self.tenant, self.n);
        if self.gated {
            cx.app().gate(self.n).acquire().await?.forget();
        }
        // The step yields to other tasks, so that another step could begin now.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        cx.app().leave(&self.tenant);
        Ok(())
    }
}

fn fetch(tenant: &str, n: u64) -> Fetch {
    Fetch {
        tenant: tenant.into(),
        n,
        weight: 1,
        also: Vec::new(),
        gated: false,
        lane: None,
        partition: None,
    }
}

/// Returns a job with a step that ends when the test opens its gate.
fn gated(tenant: &str, n: u64) -> Fetch {
    Fetch {
        gated: true,
        ..fetch(tenant, n)
    }
}

/// Starts an engine with these limits.
fn start(pool: &Pool, calls: &Calls, limits: &[Limit]) -> Running {
    let builder = Engine::builder(pool.clone(), calls.clone())
        .register::<Fetch>()
        .queue(Queue::DEFAULT, 16)
        .queue(OTHER, 16);
    let with_limits = limits
        .iter()
        .fold(builder, |builder, limit| builder.limit(limit.clone()));
    Running::start(with_limits.build().unwrap())
}

/// A second queue that the engines serve.
const OTHER: Queue = Queue::new("other");

/// Enqueues a job and returns its id.
async fn add(client: &Client, job: Fetch) -> Id<Fetch> {
    client.enqueue(job).await.unwrap().id
}

async fn add_to(client: &Client, queue: Queue, job: Fetch) -> Id<Fetch> {
    let new = NewInstance::new(job).queue(queue);
    client.enqueue(new).await.unwrap().id
}

/// Waits until this many steps run and this many instances wait in a limit.
async fn until_use(client: &Client, name: &str, running: i64, waiting: i64) {
    let what = format!("{running} run and {waiting} wait in the limit {name}");
    eventually(&what, async || {
        let found = client.inspect().limit(name).await.unwrap();
        found.is_some_and(|limit| (limit.running, limit.waiting) == (running, waiting))
    })
    .await;
}
