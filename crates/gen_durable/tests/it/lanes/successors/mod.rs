//! Tests of successors in a lane, which the commit of their predecessor claims for its own worker.
//! Cancels, shutdowns and crashes have the same outcome for them as for an instance that a pick
//! claimed.

mod expired;
mod released;
mod runs;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gen_durable::{
    Client, Context, Engine, Job, Lane, Machine, Outcome, Pool, SECOND, Settings, StepError,
    client::Enqueued, done, inspect::Status, next,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Running, eventually, sql};

/// The instances that began, in order and with their attempt, and the semaphores for which some
/// instances wait in their step.
#[derive(Default, Clone)]
struct Gates {
    begun: Arc<Mutex<Vec<(u64, u32)>>>,
    doors: Arc<Mutex<HashMap<u64, Arc<Semaphore>>>>,
}

impl Gates {
    fn shut(&self, n: u64) -> Arc<Semaphore> {
        self.doors
            .lock()
            .unwrap()
            .entry(n)
            .or_insert_with(|| Arc::new(Semaphore::new(0)))
            .clone()
    }
    async fn pass(&self, n: u64, attempt: u32) {
        self.begun.lock().unwrap().push((n, attempt));
        let door = self.doors.lock().unwrap().get(&n).cloned();
        if let Some(door) = door {
            drop(door.acquire().await);
        }
    }
    fn begun(&self) -> Vec<(u64, u32)> {
        self.begun.lock().unwrap().clone()
    }
    async fn has_begun(&self, n: u64) {
        eventually("the instance has begun", async || {
            self.begun().iter().any(|(begun, _)| *begun == n)
        })
        .await;
    }
}

#[derive(Serialize, Deserialize)]
struct Load {
    n: u64,
    dock: u64,
}
impl Job for Load {
    const NAME: &'static str = "load";
    type App = Gates;
    type Output = u64;
    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("dock", self.dock))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u64, StepError> {
        cx.app().pass(self.n, cx.attempt()).await;
        Ok(self.n)
    }
}

/// A machine with three steps. The worker commits each step before the next step begins.
#[derive(Serialize, Deserialize)]
struct Haul {
    n: u64,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum HaulStep {
    #[default]
    Out,
    Back,
    Home,
}
impl Machine for Haul {
    const NAME: &'static str = "haul";
    type App = Gates;
    type Step = HaulStep;
    type Output = u64;
    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("dock", 1))
    }
    async fn step(&mut self, at: HaulStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app().pass(self.n, 0).await;
        match at {
            HaulStep::Out => Ok(next(HaulStep::Back)),
            HaulStep::Back => Ok(next(HaulStep::Home)),
            HaulStep::Home => Ok(done(self.n)),
        }
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

fn start(pool: &Pool, gates: &Gates, settings: Settings) -> Running {
    let engine = Engine::builder(pool.clone(), gates.clone())
        .register::<Load>()
        .register::<Haul>()
        .settings(settings);
    Running::start(engine.build().unwrap())
}

/// Enqueues `count` loads into one lane. The step of the second load waits until the test adds a
/// permit to the semaphore that this function returns.
async fn loads(pool: &Pool, gates: &Gates, count: u64) -> (Vec<i64>, Arc<Semaphore>) {
    let door = gates.shut(1);
    let made: Vec<Enqueued<Load>> = Client::new(pool.clone())
        .enqueue_all((0..count).map(|n| Load { n, dock: 1 }))
        .await
        .unwrap();
    (made.iter().map(|one| one.id.raw()).collect(), door)
}

async fn all_done(pool: &Pool, ids: &[i64]) {
    let (sql, text) = (
        sql().await,
        format!(
            "select count(*) from {}.instances where status = 'done' and id = any ($1)",
            pool.schema()
        ),
    );
    let count = i64::try_from(ids.len()).unwrap();
    eventually("all instances are done", async || {
        sql.query_one(&text, &[&ids])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == count
    })
    .await;
}

async fn is_reported_as_executing(client: &Client, id: i64) {
    eventually("the instance is reported as executing", async || {
        let row = client.inspect().show(id).await.unwrap().unwrap();
        row.status == Status::Executing && row.locked_by.is_some()
    })
    .await;
}

/// Changes the rows of a lane as a crash of `worker` leaves them: the head is `executing`, and
/// `locked_by` names the crashed worker.
async fn crashed_with_head(pool: &Pool, worker: &str, head: i64) {
    let schema = pool.schema();
    let text = format!(
        "select {schema}._place(0, 1000);
         update {schema}.instances set status = 'executing', locked_by = '{worker}', claim_epoch = claim_epoch + 1
         where id = {head}"
    );
    sql().await.batch_execute(&text).await.unwrap();
}

const LOST_WORKER: &str = "00000000-0000-0000-0000-00000000000d";

async fn expire_worker(pool: &Pool, worker: &str) {
    let insert = format!(
        "insert into {}.workers (id, lease_expires_at, host, pid, queues, machines)
         values ('{worker}', statement_timestamp() - interval '1 hour', 'h', 1, '{{}}', '{{}}')
         -- A running engine may have inserted a lease row for the worker.
         on conflict (id) do update set lease_expires_at = excluded.lease_expires_at",
        pool.schema()
    );
    sql().await.batch_execute(&insert).await.unwrap();
}

/// Returns settings with a lease of one second. An engine reaps no expired worker during its first
/// lease period, so a short lease makes the test short.
fn short_lease() -> Settings {
    Settings {
        lease: SECOND,
        heartbeat: SECOND / 4,
        ..quick()
    }
}
