//! Tests lane workers. A lane worker promotes each successor in its lane and runs it without a
//! claim. Cancels, shutdowns and crashes have the same outcome for it as for a claimed instance.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gen_durable::{
    Blocker, Client, Context, Engine, Enqueued, HOUR, Id, Job, Lane, Machine, Outcome, Pool,
    SECOND, Settings, Status, StepError, done, next,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Running, SOON, eventually, live, sql};

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
        cx.app.pass(self.n, cx.attempt).await;
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
        cx.app.pass(self.n, 0).await;
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

#[tokio::test]
async fn a_lane_worker_writes_the_row_of_a_job_only_once() {
    let (pool, gates) = (live().await, Gates::default());
    let sql = sql().await;
    let schema = pool.schema();
    let watch = format!(
        "create table {schema}.written (id bigint);
         create function {schema}.write() returns trigger language plpgsql as $$
         begin insert into {schema}.written values (new.id); return null; end $$;
         create trigger written after update on {schema}.instances for each row execute function {schema}.write()"
    );
    sql.batch_execute(&watch).await.unwrap();
    let made = Client::new(pool.clone())
        .enqueue_all((0..50).map(|n| Load { n, dock: 1 }))
        .await
        .unwrap();
    let ids: Vec<i64> = made.iter().map(|one| one.id.raw()).collect();
    let running = start(&pool, &gates, Settings::default());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(gates.begun(), (0..50).map(|n| (n, 0)).collect::<Vec<_>>());
    let once = format!(
        "select count(*) from (select from {schema}.written group by id having count(*) = 1) once"
    );
    // The claim of the first instance by the picker is a further write of its row. On a busy host
    // the lane worker claims a few more instances: those with a step that runs for long.
    let once: i64 = sql.query_one(&once, &[]).await.unwrap().get(0);
    assert!(once >= 45, "only {once} of 50 were written once");
}

#[tokio::test]
async fn a_lane_worker_claims_an_instance_with_a_long_step_and_inspect_reports_it_as_executing() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 4).await;
    let running = start(&pool, &gates, Settings::default());
    gates.has_begun(1).await;
    let explained = client.inspect().explain(ids[1]).await.unwrap().unwrap();
    assert!(
        matches!(
            explained.blockers[0],
            Blocker::Executing { alive: true, .. }
        ),
        "{explained:?}"
    );
    let lane = client
        .inspect()
        .lane(Lane::new("dock", 1))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((lane.depth, lane.head.unwrap().instance.id), (3, ids[1]));
    is_reported_as_executing(&client, ids[1]).await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0)]);
    door.add_permits(1);
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[tokio::test]
async fn a_lane_continues_when_the_step_of_a_cancelled_instance_has_ended() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 3).await;
    let running = start(&pool, &gates, Settings::default());
    gates.has_begun(1).await;
    let cancel = format!(
        "select {}.cancel({}, null, null, null, 'not needed')",
        pool.schema(),
        ids[1]
    );
    assert_eq!(
        sql()
            .await
            .query_one(&cancel, &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    door.add_permits(1);
    all_done(&pool, &ids[2..]).await;
    running.stop().await;
    let row = client.inspect().show(ids[1]).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.in_lane, row.arrival_no),
        (Status::Cancelled, false, None)
    );
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (2, 0)]);
}

#[tokio::test]
async fn a_lane_worker_that_shuts_down_releases_the_instance_that_runs_in_the_lane() {
    let (pool, gates) = (live().await, Gates::default());
    let (ids, door) = loads(&pool, &gates, 3).await;
    let running = start(&pool, &gates, quick());
    gates.has_begun(1).await;
    running.stop().await;
    let row = Client::new(pool.clone())
        .inspect()
        .show(ids[1])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (row.status, row.in_lane, row.crash_count),
        (Status::Runnable, true, 0)
    );
    let workers = format!("select count(*) from {}.workers", pool.schema());
    assert_eq!(
        sql()
            .await
            .query_one(&workers, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0,
        "the worker holds no claim, and its row is deleted"
    );
    door.add_permits(1);
    let running = start(&pool, &gates, quick());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (1, 0), (2, 0)]);
}

/// Changes the rows of a lane as a crash of the lane worker leaves them: the head has the status
/// `queued`, and `lanes.worker_id` names the crashed worker.
async fn crashed_lane_worker(pool: &Pool, worker: &str, head: i64) {
    let schema = pool.schema();
    let text = format!(
        "select {schema}._place(0, 1000);
         update {schema}.instances set status = 'queued' where id = {head};
         update {schema}.lanes set worker_id = '{worker}'"
    );
    sql().await.batch_execute(&text).await.unwrap();
}

const LOST_WORKER: &str = "00000000-0000-0000-0000-00000000000d";

#[tokio::test]
async fn an_instance_that_an_expired_lane_worker_ran_runs_again_and_counts_the_crash() {
    let (pool, gates) = (live().await, Gates::default());
    let (ids, door) = loads(&pool, &gates, 3).await;
    door.add_permits(1);
    crashed_lane_worker(&pool, LOST_WORKER, ids[0]).await;
    expire_worker(&pool, LOST_WORKER).await;
    let running = start(&pool, &gates, short_lease());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        gates.begun(),
        [(0, 1), (1, 0), (2, 0)],
        "the first instance counts one crash"
    );
}

/// The last commit of an expired worker may be in flight when the reaper runs. The reaper keeps the
/// row in `workers` until it has locked the row of the head and read the outcome of that commit.
#[tokio::test]
async fn the_reaper_keeps_the_row_of_an_expired_worker_while_an_instance_that_it_ran_is_locked() {
    let (pool, gates) = (live().await, Gates::default());
    let (ids, door) = loads(&pool, &gates, 3).await;
    door.add_permits(1);
    crashed_lane_worker(&pool, LOST_WORKER, ids[0]).await;
    expire_worker(&pool, LOST_WORKER).await;
    let (holder, watch, schema) = (sql().await, sql().await, pool.schema());
    let hold = format!(
        "begin; select from {schema}.instances where id = {} for update",
        ids[0]
    );
    holder.batch_execute(&hold).await.unwrap();
    let running = start(&pool, &gates, short_lease());
    // The reaper processes expired workers in the order of their leases. Once the reaper has
    // removed the worker `later`, it has processed `LOST_WORKER`, which expired earlier.
    let later = "f0000000-0000-0000-0000-00000000000d";
    let is_removed =
        format!("select not exists (select from {schema}.workers where id = '{later}')");
    for _ in 0..2 {
        expire_worker(&pool, later).await;
        eventually("the reaper has removed the other worker", async || {
            watch.query_one(&is_removed, &[]).await.unwrap().get(0)
        })
        .await;
    }
    holder.batch_execute("commit").await.unwrap();
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        gates.begun(),
        [(0, 1), (1, 0), (2, 0)],
        "the first instance counts one crash"
    );
}

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

#[tokio::test]
async fn a_lane_continues_when_its_lane_worker_has_no_lease_row() {
    let (pool, gates) = (live().await, Gates::default());
    let (ids, door) = loads(&pool, &gates, 3).await;
    door.add_permits(1);
    crashed_lane_worker(&pool, LOST_WORKER, ids[0]).await;
    let running = start(&pool, &gates, Settings::default());
    all_done(&pool, &ids).await;
    running.stop().await;
}

/// A lane worker does not know the head of its lane if it lost the answer to the commit that
/// promoted the head, or if an operator deleted the previous head.
#[tokio::test]
async fn a_head_of_a_lane_that_its_lane_worker_does_not_know_is_released_and_runs() {
    let (pool, gates) = (live().await, Gates::default());
    let running = start(&pool, &gates, quick());
    let (sql, schema) = (sql().await, pool.schema());
    let (ids, door) = loads(&pool, &gates, 4).await;
    gates.has_begun(1).await;
    let delete = format!("delete from {schema}.instances where id = {}", ids[1]);
    sql.batch_execute(&delete).await.unwrap();
    all_done(&pool, &ids[2..]).await;
    door.add_permits(1);
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[tokio::test]
async fn instances_with_several_steps_run_one_after_the_other_in_a_lane() {
    let (pool, gates) = (live().await, Gates::default());
    let made = Client::new(pool.clone())
        .enqueue_all((0..5).map(|n| Haul { n }))
        .await
        .unwrap();
    let ids: Vec<i64> = made.iter().map(|one| one.id.raw()).collect();
    let running = start(&pool, &gates, Settings::default());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        gates.begun(),
        (0..5).flat_map(|n| [(n, 0); 3]).collect::<Vec<_>>()
    );
}

/// A caller cancels a head that a lane worker runs without a claim, and keeps the transaction open.
/// The transaction locks the row of the lane. Enqueues into that lane do not wait for the lock.
#[tokio::test]
async fn an_uncommitted_cancel_of_a_head_does_not_block_enqueues_into_its_lane_or_other_lanes() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 3).await;
    let running = start(&pool, &gates, quick());
    gates.has_begun(1).await;
    let holder = sql().await;
    let cancel = format!(
        "begin; select {}.cancel({}, null, null, null, 'not needed')",
        pool.schema(),
        ids[1]
    );
    holder.batch_execute(&cancel).await.unwrap();
    let behind = client.enqueue(Load { n: 3, dock: 1 }).await.unwrap();
    let elsewhere = client.enqueue(Load { n: 4, dock: 2 }).await.unwrap();
    assert_eq!(
        client
            .settled(elsewhere.id, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        4
    );
    holder.batch_execute("commit").await.unwrap();
    door.add_permits(1);
    assert_eq!(
        client
            .settled(behind.id, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        3
    );
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (4, 0), (2, 0), (3, 0)]);
}

/// Enqueues an instance into a lane of its own and sets the instance to `executing` in `worker`, as
/// a crash of `worker` leaves it.
async fn executing_in(pool: &Pool, worker: &str, n: u64) -> Id<Load> {
    let id = Client::new(pool.clone())
        .enqueue(Load { n, dock: n })
        .after(HOUR)
        .await
        .unwrap()
        .id;
    let held = format!(
        "update {}.instances set status = 'executing', locked_by = '{worker}', claim_epoch = claim_epoch + 1, in_lane = true,
         lane_position = 1, arrival_no = null, eligible_at = now() where id = {id}",
        pool.schema()
    );
    assert_eq!(sql().await.execute(&held, &[]).await.unwrap(), 1);
    id
}

#[tokio::test]
async fn an_error_while_one_expired_worker_is_reaped_does_not_block_the_reap_of_other_workers() {
    let (pool, gates) = (live().await, Gates::default());
    let (client, schema) = (Client::new(pool.clone()), pool.schema());
    let (refused, other) = ("00000000-0000-0000-0000-00000000000e", LOST_WORKER);
    let refused_id = executing_in(&pool, refused, 7).await;
    let reaped = executing_in(&pool, other, 8).await;
    let refuse = format!(
        "create function {schema}.refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$;
         create trigger refuse before update on {schema}.instances for each row when (old.id = {refused_id})
         execute function {schema}.refuse()"
    );
    sql().await.batch_execute(&refuse).await.unwrap();
    // The reaper begins with the expired worker of the oldest lease, which is `refused`.
    expire_worker(&pool, refused).await;
    expire_worker(&pool, other).await;
    let running = start(&pool, &gates, short_lease());
    assert_eq!(
        client
            .settled(reaped, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        8
    );
    running.stop().await;
    assert_eq!(
        client
            .inspect()
            .show(refused_id.raw())
            .await
            .unwrap()
            .unwrap()
            .status,
        Status::Executing
    );
}

/// A caller's transaction may lock the row of a lane in which `worker_id` still names an expired
/// worker, although another worker already runs the head of that lane.
#[tokio::test]
async fn the_reaper_reaps_claims_of_an_expired_worker_while_a_lane_that_it_ran_is_locked() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 3).await;
    let running = start(&pool, &gates, short_lease());
    gates.has_begun(1).await;
    is_reported_as_executing(&client, ids[1]).await;
    let (holder, schema) = (sql().await, pool.schema());
    let held =
        format!("update {schema}.lanes set worker_id = '{LOST_WORKER}' where key = 'dock:1'");
    assert_eq!(holder.execute(&held, &[]).await.unwrap(), 1);
    let cancel = format!(
        "begin; select {schema}.cancel({}, null, null, null, 'not needed')",
        ids[1]
    );
    holder.batch_execute(&cancel).await.unwrap();
    let elsewhere = executing_in(&pool, LOST_WORKER, 9).await;
    expire_worker(&pool, LOST_WORKER).await;
    assert_eq!(
        client
            .settled(elsewhere, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        9
    );
    holder.batch_execute("commit").await.unwrap();
    door.add_permits(1);
    all_done(&pool, &ids[2..]).await;
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (9, 1), (2, 0)]);
}

/// Deletes the head of a lane that names `lane_worker` in `worker_id`. The successor of the head
/// has a partition key, and an instance of another lane is the partition holder.
async fn delete_head_before_keyed_successor(
    pool: &Pool,
    gates: &Gates,
    lane_worker: &str,
) -> (Vec<i64>, i64) {
    let client = Client::new(pool.clone());
    gates.shut(9);
    let other = client
        .enqueue(Load { n: 9, dock: 2 })
        .await
        .unwrap()
        .id
        .raw();
    gates.has_begun(9).await;
    let (ids, schema) = (loads(pool, gates, 3).await.0, pool.schema());
    gates.has_begun(1).await;
    let keyed = format!(
        "begin;
         insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines)
         values ('{lane_worker}', statement_timestamp() - interval '1 hour', 'h', 1, '{{}}', '{{}}') on conflict do nothing;
         update {schema}.instances set partition_key = 'key' where id in ({other}, {});
         update {schema}.lanes set worker_id = '{lane_worker}' where key = 'dock:1';
         delete from {schema}.instances where id = {};
         commit",
        ids[2], ids[1]
    );
    sql().await.batch_execute(&keyed).await.unwrap();
    (ids, other)
}

/// Asserts that the successor `ids[2]` runs only after the partition holder `other` settled.
async fn assert_waits_for_its_partition(pool: &Pool, gates: &Gates, ids: &[i64], other: i64) {
    let client = Client::new(pool.clone());
    eventually("the instance waits for its partition", async || {
        let row = client.inspect().show(ids[2]).await.unwrap().unwrap();
        (row.status, row.partition_waiting) == (Status::Runnable, true)
    })
    .await;
    gates.shut(9).add_permits(1);
    gates.shut(1).add_permits(1);
    all_done(pool, &[ids[0], ids[2], other]).await;
}

#[tokio::test]
async fn a_successor_that_a_lane_worker_releases_runs_only_when_its_partition_is_free() {
    let (pool, gates) = (live().await, Gates::default());
    let running = start(&pool, &gates, quick());
    let (sql, schema) = (sql().await, pool.schema());
    let worker = format!("select id::text from {schema}.workers");
    let mut lane_worker = None;
    eventually("there is a worker", async || {
        lane_worker = sql
            .query_opt(&worker, &[])
            .await
            .unwrap()
            .map(|row| row.get::<_, String>(0));
        lane_worker.is_some()
    })
    .await;
    let (ids, other) =
        delete_head_before_keyed_successor(&pool, &gates, &lane_worker.unwrap()).await;
    assert_waits_for_its_partition(&pool, &gates, &ids, other).await;
    running.stop().await;
}

#[tokio::test]
async fn a_successor_reaped_from_an_expired_lane_worker_runs_only_when_its_partition_is_free() {
    let (pool, gates) = (live().await, Gates::default());
    let running = start(&pool, &gates, short_lease());
    let (ids, other) = delete_head_before_keyed_successor(&pool, &gates, LOST_WORKER).await;
    assert_waits_for_its_partition(&pool, &gates, &ids, other).await;
    running.stop().await;
}

/// The snapshot of a cancel is older than the promotion of a successor in a lane. The promotion
/// does not write the successor's row, so the cancel cannot detect that the successor's step runs.
#[tokio::test]
async fn a_cancel_fails_if_its_snapshot_is_older_than_the_promotion_and_can_be_retried() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 6).await;
    gates.shut(2);
    let running = start(&pool, &gates, quick());
    gates.has_begun(1).await;
    is_reported_as_executing(&client, ids[1]).await;
    let caller = sql().await;
    let begin = "begin isolation level repeatable read; select 1 from pg_class limit 1";
    let cancel = |id: i64| {
        format!(
            "select {}.cancel({id}, null, null, null, 'not needed')",
            pool.schema()
        )
    };
    caller.batch_execute(begin).await.unwrap();
    door.add_permits(1);
    gates.has_begun(2).await;
    let refused = caller.query_one(&cancel(ids[2]), &[]).await.unwrap_err();
    assert_eq!(
        refused.code().map(|code| code.code()),
        Some("40001"),
        "{refused}"
    );
    caller.batch_execute("rollback").await.unwrap();
    let explained = client.inspect().explain(ids[2]).await.unwrap().unwrap();
    assert!(
        matches!(
            explained.blockers[0],
            Blocker::Executing { alive: true, .. }
        ),
        "{explained:?}"
    );
    // When the lane worker has claimed the instance, it writes the row of the instance next when
    // the step ends. So a cancel at `repeatable read` sees the newest version of the row.
    is_reported_as_executing(&client, ids[2]).await;
    caller.batch_execute(begin).await.unwrap();
    assert_eq!(
        caller
            .query_one(&cancel(ids[2]), &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    // The transaction that cancelled the head cancels an instance `queued` behind the head.
    assert_eq!(
        caller
            .query_one(&cancel(ids[4]), &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    caller.batch_execute("commit").await.unwrap();
    gates.shut(2).add_permits(1);
    all_done(&pool, &[ids[0], ids[1], ids[3], ids[5]]).await;
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (2, 0), (3, 0), (5, 0)]);
}
