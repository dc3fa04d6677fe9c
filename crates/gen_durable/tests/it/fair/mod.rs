//! Tests of fair queues: their tenants share the workers.

mod plans;
mod settings;
mod sharing;

use std::sync::{Arc, Mutex};

use gen_durable::{
    Client, Context, Engine, Id, Job, NewInstance, Pool, Queue, StepError,
    engine::EngineBuilder,
    machine::{Limit, Limits},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Running, eventually, sql};

/// The fair queue of these tests.
const MAIL: Queue = Queue::new("mail");

/// The steps that have begun, in their order. A step ends when the test lets it.
#[derive(Clone)]
struct Starts(Arc<Inner>);

struct Inner {
    begun: Mutex<Vec<(String, u64)>>,
    may_end: Semaphore,
}

impl Starts {
    fn new() -> Starts {
        Starts(Arc::new(Inner {
            begun: Mutex::default(),
            may_end: Semaphore::new(0),
        }))
    }

    fn tenants(&self) -> Vec<String> {
        let begun = self.0.begun.lock().unwrap();
        begun.iter().map(|(tenant, _)| tenant.clone()).collect()
    }

    fn count(&self) -> usize {
        self.0.begun.lock().unwrap().len()
    }

    /// Returns the numbers of the jobs of a tenant that have begun, in the order of their starts.
    fn of(&self, tenant: &str) -> Vec<u64> {
        let begun = self.0.begun.lock().unwrap();
        let same = begun.iter().filter(|(of, _)| of == tenant);
        same.map(|(_, n)| *n).collect()
    }

    /// Lets steps end.
    fn let_end(&self, steps: usize) {
        self.0.may_end.add_permits(steps);
    }

    /// Lets steps end one at a time until this many have begun.
    async fn until_begun(&self, count: usize) {
        while self.count() < count {
            self.one_more().await;
        }
    }

    /// Lets one step end and waits until another one has begun.
    async fn one_more(&self) {
        let before = self.count();
        self.let_end(1);
        eventually("another step has begun", async || self.count() > before).await;
    }

    /// Lets steps end one at a time until the first of a tenant has begun. Returns how many steps
    /// of others began meanwhile.
    async fn until_first_of(&self, tenant: &str) -> usize {
        let before = self.count();
        while self.of(tenant).is_empty() {
            self.one_more().await;
        }
        self.count() - before - 1
    }
}

#[derive(Serialize, Deserialize)]
struct Letter {
    n: u64,
    /// The job takes the limit "post" with its tenant as key.
    is_limited: bool,
    tenant: String,
}

impl Job for Letter {
    const NAME: &'static str = "letter";
    const QUEUE: Queue = MAIL;
    type App = Starts;
    type Output = ();
    fn limits(&self) -> Limits {
        if self.is_limited {
            Limits::of("post").key(&self.tenant)
        } else {
            Limits::none()
        }
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        let starts = cx.app().0.clone();
        let begun = (self.tenant.clone(), self.n);
        starts.begun.lock().unwrap().push(begun);
        starts.may_end.acquire().await?.forget();
        Ok(())
    }
}

fn letter(tenant: &str, n: u64) -> NewInstance<Letter> {
    let job = Letter {
        n,
        is_limited: false,
        tenant: tenant.to_owned(),
    };
    NewInstance::new(job).tenant(tenant)
}

async fn send(client: &Client, tenant: &str, count: u64) -> Vec<Id<Letter>> {
    let letters = (0..count).map(|n| letter(tenant, n));
    let made = client.enqueue_all(letters).await.unwrap();
    made.into_iter().map(|made| made.id).collect()
}

fn builder(pool: &Pool, starts: &Starts, concurrency: usize) -> EngineBuilder<Starts> {
    Engine::builder(pool.clone(), starts.clone())
        .register::<Letter>()
        .limit(Limit::new("post").per_key(1))
        .queue(MAIL, concurrency)
}

/// Starts an engine that declares the queue as fair.
fn start(pool: &Pool, starts: &Starts, concurrency: usize) -> Running {
    Running::start(
        builder(pool, starts, concurrency)
            .fair(MAIL)
            .build()
            .unwrap(),
    )
}

/// Lets all steps end, waits until all instances have settled or are stuck, and stops the engine.
async fn finish(pool: &Pool, starts: &Starts, engine: Running) {
    starts.let_end(1_000_000);
    let session = sql().await;
    let left = format!(
        "select count(*) from {}.instances where status in ('runnable', 'executing', 'awaiting_limit')",
        pool.schema()
    );
    eventually("every instance has settled", async || {
        session
            .query_one(&left, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    })
    .await;
    engine.stop().await;
}
