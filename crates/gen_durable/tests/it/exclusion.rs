//! Tests mutual exclusion in a lane or under a partition key while the step of a cancelled instance
//! still runs. The next step in the lane or under the key begins only when the cancelled step has
//! ended or the lease of its worker has expired.

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
        let _running = RunningStep::start(cx.app, &self.name, self.n);
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

#[tokio::test]
async fn the_next_step_in_a_lane_or_partition_begins_only_after_a_cancelled_step_has_ended() {
    for by in [By::Lane, By::Key, By::Both] {
        let (pool, tracker) = (live().await, StepTracker::default());
        let client = Client::new(pool.clone());
        let gate = tracker.gate(0);
        let (running, health) = start(&pool, &tracker, Settings::default());
        let ids = enqueue_jobs(&client, by, 0..2).await;
        tracker.has_begun(0).await;
        assert!(client.cancel(ids[0], "not needed").await.unwrap());
        let settled = client.settled(ids[0], SOON).await.unwrap().unwrap();
        assert_eq!(
            settled.result.unwrap_err().message,
            "not needed",
            "callers see the cancel at once"
        );
        picks_pass(&client).await;
        assert!(
            !tracker.begun().contains(&1),
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
        assert_eq!(tracker.most(), 1, "{by:?}");
        let row = client.inspect().show(ids[0].raw()).await.unwrap().unwrap();
        assert_eq!(
            (row.status, row.in_lane, row.locked_by, row.arrival_no),
            (Status::Cancelled, false, None, None)
        );
    }
}

#[tokio::test]
async fn a_lane_worker_begins_the_next_step_only_after_a_cancelled_step_of_its_lane_has_ended() {
    let (pool, tracker) = (live().await, StepTracker::default());
    let client = Client::new(pool.clone());
    let gate = tracker.gate(1);
    let ids = enqueue_jobs(&client, By::Lane, 0..4).await;
    let (running, _) = start(&pool, &tracker, Settings::default());
    tracker.has_begun(1).await;
    assert!(client.cancel(ids[1], "not needed").await.unwrap());
    // A cancelled instance that waits in the lane behind the running instance leaves the lane at
    // once.
    assert!(client.cancel(ids[2], "nor this").await.unwrap());
    picks_pass(&client).await;
    assert!(
        !tracker.begun().contains(&3),
        "the next step began while the cancelled one ran"
    );
    gate.add_permits(1);
    done(&client, ids[3]).await;
    running.stop().await;
    assert_eq!(tracker.most(), 1);
}

#[tokio::test]
async fn a_step_that_ends_when_it_is_cancelled_lets_the_successor_of_its_instance_begin() {
    let (pool, tracker) = (live().await, StepTracker::default());
    let client = Client::new(pool.clone());
    let (running, _) = start(&pool, &tracker, Settings::default());
    for by in [By::Lane, By::Key] {
        let first = client
            .enqueue(KeyedJob {
                ends_on_cancel: true,
                ..keyed_job(by, 0)
            })
            .await
            .unwrap();
        let second = client.enqueue(keyed_job(by, 1)).await.unwrap();
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
    assert_eq!(tracker.most(), 1);
}

#[tokio::test]
async fn a_stopping_worker_releases_the_lanes_and_partitions_of_its_cancelled_steps() {
    for by in [By::Lane, By::Key] {
        let (pool, tracker) = (live().await, StepTracker::default());
        let client = Client::new(pool.clone());
        let gate = tracker.gate(0);
        let (running, _) = start(&pool, &tracker, quick());
        let ids = enqueue_jobs(&client, by, 0..2).await;
        tracker.has_begun(0).await;
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
            "the stopped worker has no row"
        );
        let (running, _) = start(&pool, &tracker, quick());
        done(&client, ids[1]).await;
        gate.add_permits(1);
        running.stop().await;
    }
}

const EXPIRED: &str = "00000000-0000-0000-0000-00000000000d";

/// Makes the row look as if `worker` had claimed the instance, a caller had cancelled the instance,
/// and the process of the worker had been killed while the step ran.
async fn cancelled_on(pool: &Pool, worker: &str, id: Id<KeyedJob>) {
    let schema = pool.schema();
    let cancelled = format!(
        "select {schema}._place(0, 1000);
         update {schema}.instances set status = 'executing', locked_by = '{worker}', claim_epoch = claim_epoch + 1,
             partition_waiting = false where id = {id};
         select {schema}.cancel({id}, null, null, null, 'not needed')"
    );
    sql().await.batch_execute(&cancelled).await.unwrap();
}

#[tokio::test]
async fn the_reaper_releases_the_lanes_and_partitions_of_cancelled_steps_of_an_expired_worker() {
    for by in [By::Lane, By::Key, By::Both] {
        let (pool, tracker) = (live().await, StepTracker::default());
        let client = Client::new(pool.clone());
        let ids = enqueue_jobs(&client, by, 0..2).await;
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
        let (running, _) = start(&pool, &tracker, reaping());
        picks_pass(&client).await;
        assert!(
            !tracker.begun().contains(&1),
            "{by:?}: its lease has not expired"
        );
        sql.batch_execute(&worker("statement_timestamp() - interval '1 hour'"))
            .await
            .unwrap();
        done(&client, ids[1]).await;
        let is_gone =
            format!("select not exists (select from {schema}.workers where id = '{EXPIRED}')");
        eventually("the row of the expired worker is deleted", async || {
            sql.query_one(&is_gone, &[]).await.unwrap().get(0)
        })
        .await;
        running.stop().await;
    }
}

/// The worker may have no row in `workers`. An engine then inserts a row with one lease period for
/// it, and reaps the worker after that period.
#[tokio::test]
async fn the_reaper_releases_the_lane_of_a_cancelled_step_if_its_worker_has_no_lease_row() {
    let (pool, tracker) = (live().await, StepTracker::default());
    let client = Client::new(pool.clone());
    let ids = enqueue_jobs(&client, By::Lane, 0..2).await;
    cancelled_on(&pool, EXPIRED, ids[0]).await;
    let (running, _) = start(&pool, &tracker, reaping());
    done(&client, ids[1]).await;
    running.stop().await;
}

/// The worker is alive and does not know that it holds the claim, because it lost the response to a
/// release or to the commit that promoted the instance.
#[tokio::test]
async fn the_lane_of_a_cancelled_step_is_released_if_the_worker_does_not_know_that_it_holds_the_claim()
 {
    for by in [By::Lane, By::Key] {
        let (pool, tracker) = (live().await, StepTracker::default());
        let client = Client::new(pool.clone());
        let (running, health) = start(&pool, &tracker, quick());
        eventually("the engine runs", async || health.is_ready()).await;
        // Runs one instance to completion first, so that the engine is known to claim and commit.
        let ids = enqueue_jobs(&client, By::Lane, 0..1).await;
        done(&client, ids[0]).await;
        let gate = tracker.gate(1);
        let ids = enqueue_jobs(&client, by, 1..3).await;
        tracker.has_begun(1).await;
        assert!(client.cancel(ids[0], "not needed").await.unwrap());
        // Raises `claim_epoch` beyond the value that the worker knows. The release by the step's
        // own worker would then not match the row, so only the search for lost claims can release
        // the claim.
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
async fn a_cancelled_instance_can_be_neither_retried_nor_deleted_while_its_step_still_runs() {
    let (pool, tracker) = (live().await, StepTracker::default());
    let client = Client::new(pool.clone());
    let gate = tracker.gate(0);
    let kept = Some(Duration::ZERO);
    let settings = Settings {
        retention: kept,
        failed_retention: kept,
        collect_every: SECOND / 100,
        ..quick()
    };
    let (running, _) = start(&pool, &tracker, settings);
    let ids = enqueue_jobs(&client, By::Lane, 0..2).await;
    tracker.has_begun(0).await;
    assert!(client.cancel(ids[0], "not needed").await.unwrap());
    let refused = client
        .operate()
        .retry(ids[0].raw(), None)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("its step still runs"),
        "{refused}"
    );
    let other = client
        .enqueue(KeyedJob {
            name: "elsewhere".into(),
            ..keyed_job(By::Lane, 9)
        })
        .await
        .unwrap()
        .id
        .raw();
    eventually("another instance is collected", async || {
        client.inspect().show(other).await.unwrap().is_none()
    })
    .await;
    assert!(client.inspect().show(ids[0].raw()).await.unwrap().is_some());
    gate.add_permits(1);
    eventually("the cancelled instance is collected", async || {
        client.inspect().show(ids[0].raw()).await.unwrap().is_none()
    })
    .await;
    eventually("the successor has run", async || {
        tracker.begun().contains(&1)
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_lab_releases_the_lane_and_partition_of_a_step_that_was_cancelled_while_it_ran() {
    let tracker = StepTracker::default();
    let lab = Lab::new(tracker.clone()).await.register::<KeyedJob>();
    for by in [By::Lane, By::Key] {
        let ids = enqueue_jobs(&lab, by, 0..2).await;
        let gate = tracker.gate(0);
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
    assert_eq!(tracker.most(), 1);
}

/// A job that ends only when the steps of two lanes and of two partition keys run at the same time.
#[derive(Serialize, Deserialize)]
struct Meeting {
    lane: Option<u64>,
    key: Option<u64>,
}

impl Job for Meeting {
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
async fn steps_of_two_lanes_and_of_two_partition_keys_run_at_the_same_time() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let engine = Engine::builder(pool.clone(), Arc::new(Barrier::new(4)))
        .register::<Meeting>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let lane = |n| Meeting {
        lane: Some(n),
        key: None,
    };
    let key = |n| Meeting {
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
