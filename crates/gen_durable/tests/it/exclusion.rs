//! Exclusion of a lane or a partition key while the step of a cancelled instance still runs: the next step there begins only when that
//! one has ended, or when the lease of its worker is over.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gen_durable::{
    Blocker, Client, Context, Engine, Explanation, Health, Id, Job, Lab, Lane, Pool, SECOND,
    Settings, Status, StepError,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Barrier, Semaphore};

use crate::support::{Running, SOON, eventually, live, sql};

/// Steps that run, in the order in which they began; the gates at which some of them wait; and the most steps that ever ran at once
/// under one name.
#[derive(Default, Clone)]
struct Floor(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    begun: Vec<u64>,
    running: HashMap<String, usize>,
    most: usize,
    gates: HashMap<u64, Arc<Semaphore>>,
}

impl Floor {
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

/// A step that runs; dropped with its step, however that ends.
struct Entered<'a>(&'a Floor, &'a str);

impl<'a> Entered<'a> {
    fn enter(floor: &'a Floor, name: &'a str, n: u64) -> Entered<'a> {
        let mut inside = floor.0.lock().unwrap();
        inside.begun.push(n);
        let count = inside.running.entry(name.to_owned()).or_default();
        *count += 1;
        let count = *count;
        inside.most = inside.most.max(count);
        Entered(floor, name)
    }
}

impl Drop for Entered<'_> {
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
struct Visit {
    n: u64,
    name: String,
    by: By,
    /// Ends when it is cancelled, instead of at its gate.
    listens: bool,
}

impl Job for Visit {
    const NAME: &'static str = "visit";
    type App = Floor;
    type Output = u64;
    fn lane(&self) -> Option<Lane> {
        (self.by != By::Key).then(|| Lane::new("room", &self.name))
    }
    fn partition(&self) -> Option<String> {
        (self.by != By::Lane).then(|| self.name.clone())
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u64, StepError> {
        let cancelled = self.listens.then(|| cx.cancelled());
        let _inside = Entered::enter(cx.app, &self.name, self.n);
        if let Some(cancelled) = cancelled {
            cancelled.await;
        }
        let gate = cx.app.0.lock().unwrap().gates.get(&self.n).cloned();
        if let Some(gate) = gate {
            drop(gate.acquire().await);
        }
        Ok(self.n)
    }
}

fn visit(by: By, n: u64) -> Visit {
    Visit {
        n,
        name: format!("{by:?}"),
        by,
        listens: false,
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

/// Workers are reaped one lease after an engine has started: a short one.
fn reaping() -> Settings {
    Settings {
        lease: SECOND,
        heartbeat: SECOND / 4,
        ..quick()
    }
}

fn start(pool: &Pool, floor: &Floor, settings: Settings) -> (Running, Health) {
    let engine = Engine::builder(pool.clone(), floor.clone())
        .register::<Visit>()
        .settings(settings)
        .build()
        .unwrap();
    let health = engine.health();
    (Running::start(engine), health)
}

/// Enqueues instances one after the other.
async fn visits(client: &Client, by: By, numbers: std::ops::Range<u64>) -> Vec<Id<Visit>> {
    let made = client
        .enqueue_all(numbers.map(|n| visit(by, n)))
        .await
        .unwrap();
    made.iter().map(|one| one.id).collect()
}

/// Work elsewhere has been enqueued, placed, picked and committed a few times: every pick since would have begun what may begin.
async fn picks_pass(client: &Client) {
    for by in [By::Lane, By::Key, By::Lane] {
        let job = Visit {
            name: "elsewhere".into(),
            ..visit(by, 1_000)
        };
        let one = client.enqueue(job).await.unwrap();
        client.settled(one.id, SOON).await.unwrap().unwrap();
    }
}

async fn done(client: &Client, id: Id<Visit>) {
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

/// The explanation of the instance that this one waits for.
fn holder(explanation: &Explanation) -> &Explanation {
    match &explanation.blockers[0] {
        Blocker::Queued { head, .. } => head,
        Blocker::HeldBack { holder, .. } => holder,
        other => panic!("it waits for no other: {other:?}"),
    }
}

#[tokio::test]
async fn the_next_step_of_a_lane_or_key_begins_only_after_a_cancelled_step_has_ended() {
    for by in [By::Lane, By::Key, By::Both] {
        let (pool, floor) = (live().await, Floor::default());
        let client = Client::new(pool.clone());
        let gate = floor.gate(0);
        let (running, health) = start(&pool, &floor, Settings::default());
        let ids = visits(&client, by, 0..2).await;
        floor.has_begun(0).await;
        assert!(client.cancel(ids[0], "not needed").await.unwrap());
        let settled = client.settled(ids[0], SOON).await.unwrap().unwrap();
        assert_eq!(
            settled.result.unwrap_err().message,
            "not needed",
            "callers see the cancel at once"
        );
        picks_pass(&client).await;
        assert!(
            !floor.begun().contains(&1),
            "{by:?}: the next step began while the cancelled one ran"
        );
        let waits = client
            .inspect()
            .explain(ids[1].raw())
            .await
            .unwrap()
            .unwrap();
        let held = holder(&waits);
        assert_eq!(
            (held.instance.id, held.instance.locked_by.clone()),
            (ids[0].raw(), health.worker_id())
        );
        assert!(
            matches!(
                &held.blockers[..],
                [
                    Blocker::Settled { .. },
                    Blocker::CancelledStepRunning { alive: true, .. }
                ]
            ),
            "{by:?}: {held:?}"
        );
        gate.add_permits(1);
        done(&client, ids[1]).await;
        running.stop().await;
        assert_eq!(floor.most(), 1, "{by:?}");
        let row = client.inspect().show(ids[0].raw()).await.unwrap().unwrap();
        assert_eq!(
            (row.status, row.in_lane, row.locked_by, row.arrival),
            (Status::Cancelled, false, None, None)
        );
    }
}

#[tokio::test]
async fn the_next_step_of_a_lane_that_a_worker_leads_begins_only_after_a_cancelled_step_has_ended()
{
    let (pool, floor) = (live().await, Floor::default());
    let client = Client::new(pool.clone());
    let gate = floor.gate(1);
    let ids = visits(&client, By::Lane, 0..4).await;
    let (running, _) = start(&pool, &floor, Settings::default());
    floor.has_begun(1).await;
    assert!(client.cancel(ids[1], "not needed").await.unwrap());
    // An instance that waits behind it leaves the lane at once.
    assert!(client.cancel(ids[2], "nor this").await.unwrap());
    picks_pass(&client).await;
    assert!(
        !floor.begun().contains(&3),
        "the next step began while the cancelled one ran"
    );
    gate.add_permits(1);
    done(&client, ids[3]).await;
    running.stop().await;
    assert_eq!(floor.most(), 1);
}

#[tokio::test]
async fn a_cancelled_step_that_listens_ends_and_lets_the_next_begin() {
    let (pool, floor) = (live().await, Floor::default());
    let client = Client::new(pool.clone());
    let (running, _) = start(&pool, &floor, Settings::default());
    for by in [By::Lane, By::Key] {
        let first = client
            .enqueue(Visit {
                listens: true,
                ..visit(by, 0)
            })
            .await
            .unwrap();
        let second = client.enqueue(visit(by, 1)).await.unwrap();
        eventually("it has begun", async || {
            client
                .inspect()
                .show(first.id.raw())
                .await
                .unwrap()
                .unwrap()
                .locked_by
                .is_some()
        })
        .await;
        assert!(client.cancel_subtree(first.id, "not needed").await.unwrap());
        done(&client, second.id).await;
    }
    running.stop().await;
    assert_eq!(floor.most(), 1);
}

#[tokio::test]
async fn a_worker_that_stops_releases_what_its_cancelled_steps_held() {
    for by in [By::Lane, By::Key] {
        let (pool, floor) = (live().await, Floor::default());
        let client = Client::new(pool.clone());
        let gate = floor.gate(0);
        let (running, _) = start(&pool, &floor, quick());
        let ids = visits(&client, by, 0..2).await;
        floor.has_begun(0).await;
        assert!(client.cancel(ids[0], "not needed").await.unwrap());
        running.stop().await;
        let row = client.inspect().show(ids[0].raw()).await.unwrap().unwrap();
        assert_eq!((row.in_lane, row.locked_by), (false, None), "{by:?}");
        let workers = format!("select count(*) from {}.workers", pool.schema());
        assert_eq!(
            sql()
                .await
                .query_one(&workers, &[])
                .await
                .unwrap()
                .get::<_, i64>(0),
            0,
            "it holds nothing"
        );
        let (running, _) = start(&pool, &floor, quick());
        done(&client, ids[1]).await;
        gate.add_permits(1);
        running.stop().await;
    }
}

const EXPIRED: &str = "00000000-0000-0000-0000-00000000000d";

/// A worker whose process was killed while it ran this instance, which was cancelled before.
async fn cancelled_on(pool: &Pool, worker: &str, id: Id<Visit>) {
    let schema = pool.schema();
    let cancelled = format!(
        "select {schema}.place(0, 1000);
         update {schema}.instances set status = 'executing', locked_by = '{worker}', claim_epoch = claim_epoch + 1,
             held_back = false where id = {id};
         select {schema}.cancel({id}, null, null, null, 'not needed')"
    );
    sql().await.batch_execute(&cancelled).await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_lease_releases_what_a_cancelled_step_of_that_worker_held() {
    for by in [By::Lane, By::Key, By::Both] {
        let (pool, floor) = (live().await, Floor::default());
        let client = Client::new(pool.clone());
        let ids = visits(&client, by, 0..2).await;
        cancelled_on(&pool, EXPIRED, ids[0]).await;
        let schema = pool.schema();
        let worker = |lease: &str| {
            format!(
                "insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines)
                 values ('{EXPIRED}', {lease}, 'h', 1, '{{}}', '{{}}')
                 on conflict (id) do update set lease_expires_at = excluded.lease_expires_at"
            )
        };
        let sql = sql().await;
        sql.batch_execute(&worker("statement_timestamp() + interval '1 hour'"))
            .await
            .unwrap();
        let (running, _) = start(&pool, &floor, reaping());
        picks_pass(&client).await;
        assert!(!floor.begun().contains(&1), "{by:?}: its lease is not over");
        sql.batch_execute(&worker("statement_timestamp() - interval '1 hour'"))
            .await
            .unwrap();
        done(&client, ids[1]).await;
        let is_gone =
            format!("select not exists (select from {schema}.workers where id = '{EXPIRED}')");
        eventually("it is buried", async || {
            sql.query_one(&is_gone, &[]).await.unwrap().get(0)
        })
        .await;
        running.stop().await;
    }
}

/// The row of the worker may be gone as well: an engine grants it one lease and then reaps it.
#[tokio::test]
async fn a_cancelled_step_of_a_worker_without_a_lease_is_released() {
    let (pool, floor) = (live().await, Floor::default());
    let client = Client::new(pool.clone());
    let ids = visits(&client, By::Lane, 0..2).await;
    cancelled_on(&pool, EXPIRED, ids[0]).await;
    let (running, _) = start(&pool, &floor, reaping());
    done(&client, ids[1]).await;
    running.stop().await;
}

/// The worker lives and does not know of it: the answer of a release was lost, or of the commit that let it begin.
#[tokio::test]
async fn a_cancelled_step_that_its_worker_does_not_know_is_released() {
    for by in [By::Lane, By::Key] {
        let (pool, floor) = (live().await, Floor::default());
        let client = Client::new(pool.clone());
        let (running, health) = start(&pool, &floor, quick());
        eventually("the engine runs", async || health.is_ready()).await;
        // In a queue that the engine does not work, so that only the release brings it on.
        let ids = visits(&client, By::Lane, 0..1).await;
        done(&client, ids[0]).await;
        let gate = floor.gate(1);
        let ids = visits(&client, by, 1..3).await;
        floor.has_begun(1).await;
        assert!(client.cancel(ids[0], "not needed").await.unwrap());
        // As if another had asked for it: the epoch that the worker knows is not the one before the cancel.
        let other = format!(
            "update {}.instances set claim_epoch = claim_epoch + 5 where id = {}",
            pool.schema(),
            ids[0]
        );
        sql().await.batch_execute(&other).await.unwrap();
        done(&client, ids[1]).await;
        gate.add_permits(1);
        running.stop().await;
    }
}

#[tokio::test]
async fn a_cancelled_instance_is_not_retried_nor_collected_while_its_step_runs() {
    let (pool, floor) = (live().await, Floor::default());
    let client = Client::new(pool.clone());
    let gate = floor.gate(0);
    let kept = Some(Duration::ZERO);
    let settings = Settings {
        retention: kept,
        failed_retention: kept,
        collect_every: SECOND / 100,
        ..quick()
    };
    let (running, _) = start(&pool, &floor, settings);
    let ids = visits(&client, By::Lane, 0..2).await;
    floor.has_begun(0).await;
    assert!(client.cancel(ids[0], "not needed").await.unwrap());
    let refused = client
        .operate()
        .retry(ids[0].raw(), None)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("has not ended"), "{refused}");
    let other = client
        .enqueue(Visit {
            name: "elsewhere".into(),
            ..visit(By::Lane, 9)
        })
        .await
        .unwrap()
        .id
        .raw();
    eventually("another is collected", async || {
        client.inspect().show(other).await.unwrap().is_none()
    })
    .await;
    assert!(client.inspect().show(ids[0].raw()).await.unwrap().is_some());
    gate.add_permits(1);
    eventually("it is collected", async || {
        client.inspect().show(ids[0].raw()).await.unwrap().is_none()
    })
    .await;
    eventually("the next has run", async || floor.begun().contains(&1)).await;
    running.stop().await;
}

#[tokio::test]
async fn a_lab_releases_what_a_step_held_that_was_cancelled_while_it_ran() {
    let floor = Floor::default();
    let lab = Lab::new(floor.clone()).await.register::<Visit>();
    for by in [By::Lane, By::Key] {
        let ids = visits(&lab, by, 0..2).await;
        let gate = floor.gate(0);
        let cancel = async {
            eventually("it runs", async || {
                lab.row_of(ids[0]).await.status == Status::Executing
            })
            .await;
            assert!(lab.cancel(ids[0], "not needed").await.unwrap());
            gate.add_permits(1);
        };
        tokio::join!(lab.drain(), cancel);
        lab.drain().await;
        assert_eq!(lab.status_of(ids[1]).await, Status::Done, "{by:?}");
        gate.forget_permits(1);
    }
    assert_eq!(floor.most(), 1);
}

/// Ends only when the steps of two lanes and of two partition keys are all inside.
#[derive(Serialize, Deserialize)]
struct Meet {
    lane: Option<u64>,
    key: Option<u64>,
}

impl Job for Meet {
    const NAME: &'static str = "meet";
    type App = Arc<Barrier>;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        self.lane.map(|lane| Lane::new("meet", lane))
    }
    fn partition(&self) -> Option<String> {
        self.key.map(|key| format!("meet {key}"))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app.wait().await;
        Ok(())
    }
}

#[tokio::test]
async fn two_lanes_and_two_keys_run_at_the_same_time() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let engine = Engine::builder(pool.clone(), Arc::new(Barrier::new(4)))
        .register::<Meet>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let lane = |n| Meet {
        lane: Some(n),
        key: None,
    };
    let key = |n| Meet {
        lane: None,
        key: Some(n),
    };
    let made = client
        .enqueue_all((0..6).flat_map(|_| [lane(1), lane(2), key(1), key(2)]))
        .await
        .unwrap();
    for one in made {
        client
            .settled(one.id, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap();
    }
    running.stop().await;
}
