//! Lanes that a worker leads: who follows there runs without a claim of its own, and nobody is the worse for it.

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

/// What ran, in the order in which it began, with its attempt; and the doors at which some of them wait.
#[derive(Default, Clone)]
struct Site {
    begun: Arc<Mutex<Vec<(u64, u32)>>>,
    doors: Arc<Mutex<HashMap<u64, Arc<Semaphore>>>>,
}

impl Site {
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
        eventually("it has begun", async || {
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
    type App = Site;
    type Output = u64;
    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("dock", self.dock))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u64, StepError> {
        cx.app.pass(self.n, cx.attempt).await;
        Ok(self.n)
    }
}

/// Three steps, each committed before the next begins.
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
    type App = Site;
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

fn start(pool: &Pool, site: &Site, settings: Settings) -> Running {
    let engine = Engine::builder(pool.clone(), site.clone())
        .register::<Load>()
        .register::<Haul>()
        .settings(settings);
    Running::start(engine.build().unwrap())
}

/// So many, of which the second waits at its door.
async fn loads(pool: &Pool, site: &Site, count: u64) -> (Vec<i64>, Arc<Semaphore>) {
    let door = site.shut(1);
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
    eventually("all are done", async || {
        sql.query_one(&text, &[&ids])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == count
    })
    .await;
}

async fn is_seen_to_execute(client: &Client, id: i64) {
    eventually("it is seen to execute", async || {
        let row = client.inspect().show(id).await.unwrap().unwrap();
        row.status == Status::Executing && row.locked_by.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_job_in_a_lane_is_written_once() {
    let (pool, site) = (live().await, Site::default());
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
    let running = start(&pool, &site, Settings::default());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(site.begun(), (0..50).map(|n| (n, 0)).collect::<Vec<_>>());
    let once = format!(
        "select count(*) from (select from {schema}.written group by id having count(*) = 1) once"
    );
    // All but the first; and one that took long enough to be seen, on a machine that does other things.
    let once: i64 = sql.query_one(&once, &[]).await.unwrap().get(0);
    assert!(once >= 45, "only {once} of 50 were written once");
}

#[tokio::test]
async fn one_that_lasts_is_seen_to_execute_and_ends_as_every_other() {
    let (pool, site) = (live().await, Site::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &site, 4).await;
    let running = start(&pool, &site, Settings::default());
    site.has_begun(1).await;
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
    is_seen_to_execute(&client, ids[1]).await;
    assert_eq!(site.begun(), [(0, 0), (1, 0)]);
    door.add_permits(1);
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(site.begun(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[tokio::test]
async fn one_that_is_cancelled_while_it_runs_there_lets_the_lane_go_on_when_it_has_ended() {
    let (pool, site) = (live().await, Site::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &site, 3).await;
    let running = start(&pool, &site, Settings::default());
    site.has_begun(1).await;
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
        (row.status, row.in_lane, row.arrival),
        (Status::Cancelled, false, None)
    );
    assert_eq!(site.begun(), [(0, 0), (1, 0), (2, 0)]);
}

#[tokio::test]
async fn whoever_stops_gives_back_what_runs_there() {
    let (pool, site) = (live().await, Site::default());
    let (ids, door) = loads(&pool, &site, 3).await;
    let running = start(&pool, &site, quick());
    site.has_begun(1).await;
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
        "it holds nothing, and is gone"
    );
    door.add_permits(1);
    let running = start(&pool, &site, quick());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(site.begun(), [(0, 0), (1, 0), (1, 0), (2, 0)]);
}

/// As a worker leaves it that dies in a lane: the head is queued, and the worker leads the lane.
async fn led_by(pool: &Pool, worker: &str, head: i64) {
    let schema = pool.schema();
    let text = format!(
        "select {schema}.place(0, 1000);
         update {schema}.instances set status = 'queued' where id = {head};
         update {schema}.lanes set led_by = '{worker}'"
    );
    sql().await.batch_execute(&text).await.unwrap();
}

const GONE: &str = "00000000-0000-0000-0000-00000000000d";

#[tokio::test]
async fn what_the_dead_ran_in_a_lane_runs_again_and_they_are_blamed_for_it() {
    let (pool, site) = (live().await, Site::default());
    let (ids, door) = loads(&pool, &site, 3).await;
    door.add_permits(1);
    led_by(&pool, GONE, ids[0]).await;
    dies(&pool, GONE).await;
    let running = start(&pool, &site, mourning());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        site.begun(),
        [(0, 1), (1, 0), (2, 0)],
        "its process died once"
    );
}

/// Its commit may be on its way when the reaper comes: then it is not forgotten before somebody has seen what became of it.
#[tokio::test]
async fn the_dead_are_not_buried_while_somebody_holds_what_they_ran() {
    let (pool, site) = (live().await, Site::default());
    let (ids, door) = loads(&pool, &site, 3).await;
    door.add_permits(1);
    led_by(&pool, GONE, ids[0]).await;
    dies(&pool, GONE).await;
    let (holder, watch, schema) = (sql().await, sql().await, pool.schema());
    let hold = format!(
        "begin; select from {schema}.instances where id = {} for update",
        ids[0]
    );
    holder.batch_execute(&hold).await.unwrap();
    let running = start(&pool, &site, mourning());
    // One who dies after it is buried after it: the reaper has been there.
    let later = "f0000000-0000-0000-0000-00000000000d";
    let is_gone = format!("select not exists (select from {schema}.workers where id = '{later}')");
    for _ in 0..2 {
        dies(&pool, later).await;
        eventually("another one is buried", async || {
            watch.query_one(&is_gone, &[]).await.unwrap().get(0)
        })
        .await;
    }
    holder.batch_execute("commit").await.unwrap();
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        site.begun(),
        [(0, 1), (1, 0), (2, 0)],
        "its process died once"
    );
}

async fn dies(pool: &Pool, worker: &str) {
    let dead = format!(
        "insert into {}.workers (id, lease_expires_at, host, pid, queues, machines)
         values ('{worker}', statement_timestamp() - interval '1 hour', 'h', 1, '{{}}', '{{}}')
         -- A running engine may have adopted it.
         on conflict (id) do update set lease_expires_at = excluded.lease_expires_at",
        pool.schema()
    );
    sql().await.batch_execute(&dead).await.unwrap();
}

/// Nobody is reaped for one lease after a worker began: a short one.
fn mourning() -> Settings {
    Settings {
        lease: SECOND,
        heartbeat: SECOND / 4,
        ..quick()
    }
}

#[tokio::test]
async fn a_lane_that_nobody_leads_any_more_goes_on() {
    let (pool, site) = (live().await, Site::default());
    let (ids, door) = loads(&pool, &site, 3).await;
    door.add_permits(1);
    led_by(&pool, GONE, ids[0]).await;
    let running = start(&pool, &site, Settings::default());
    all_done(&pool, &ids).await;
    running.stop().await;
}

/// As it is when the answer to a commit is lost, or somebody deletes the head by hand.
#[tokio::test]
async fn a_head_that_its_leader_does_not_know_is_given_back() {
    let (pool, site) = (live().await, Site::default());
    let running = start(&pool, &site, quick());
    let (sql, schema) = (sql().await, pool.schema());
    let (ids, door) = loads(&pool, &site, 4).await;
    site.has_begun(1).await;
    let gone = format!("delete from {schema}.instances where id = {}", ids[1]);
    sql.batch_execute(&gone).await.unwrap();
    all_done(&pool, &ids[2..]).await;
    door.add_permits(1);
    running.stop().await;
    assert_eq!(site.begun(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[tokio::test]
async fn machines_of_many_steps_follow_one_another() {
    let (pool, site) = (live().await, Site::default());
    let made = Client::new(pool.clone())
        .enqueue_all((0..5).map(|n| Haul { n }))
        .await
        .unwrap();
    let ids: Vec<i64> = made.iter().map(|one| one.id.raw()).collect();
    let running = start(&pool, &site, Settings::default());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        site.begun(),
        (0..5).flat_map(|n| [(n, 0); 3]).collect::<Vec<_>>()
    );
}

/// A cancel in a caller's transaction holds the lane of a head that runs without a claim. Whoever enqueues waits for nobody.
#[tokio::test]
async fn a_cancel_that_stays_open_keeps_neither_its_lane_nor_others_from_being_entered() {
    let (pool, site) = (live().await, Site::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &site, 3).await;
    let running = start(&pool, &site, quick());
    site.has_begun(1).await;
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
    assert_eq!(site.begun(), [(0, 0), (1, 0), (4, 0), (2, 0), (3, 0)]);
}

/// One that this worker ran when it died, in a lane of its own.
async fn held_by(pool: &Pool, worker: &str, n: u64) -> Id<Load> {
    let id = Client::new(pool.clone())
        .enqueue(Load { n, dock: n })
        .after(HOUR)
        .await
        .unwrap()
        .id;
    let held = format!(
        "update {}.instances set status = 'executing', locked_by = '{worker}', claim_epoch = claim_epoch + 1, in_lane = true,
         lane_position = 1, arrival = null, eligible_at = now() where id = {id}",
        pool.schema()
    );
    assert_eq!(sql().await.execute(&held, &[]).await.unwrap(), 1);
    id
}

#[tokio::test]
async fn what_is_refused_of_one_of_the_dead_keeps_nothing_that_the_others_held() {
    let (pool, site) = (live().await, Site::default());
    let (client, schema) = (Client::new(pool.clone()), pool.schema());
    let (refused, other) = ("00000000-0000-0000-0000-00000000000e", GONE);
    let stays = held_by(&pool, refused, 7).await;
    let comes = held_by(&pool, other, 8).await;
    let refuse = format!(
        "create function {schema}.refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$;
         create trigger refuse before update on {schema}.instances for each row when (old.id = {stays})
         execute function {schema}.refuse()"
    );
    sql().await.batch_execute(&refuse).await.unwrap();
    // The oldest lease comes first.
    dies(&pool, refused).await;
    dies(&pool, other).await;
    let running = start(&pool, &site, mourning());
    assert_eq!(
        client
            .settled(comes, SOON)
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
            .show(stays.raw())
            .await
            .unwrap()
            .unwrap()
            .status,
        Status::Executing
    );
}

/// A caller's transaction may hold the lane of a head that another runs by now, where a lead of the dead was left over.
#[tokio::test]
async fn what_the_dead_held_comes_back_while_somebody_holds_a_lane_that_they_led() {
    let (pool, site) = (live().await, Site::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &site, 3).await;
    let running = start(&pool, &site, mourning());
    site.has_begun(1).await;
    is_seen_to_execute(&client, ids[1]).await;
    let (holder, schema) = (sql().await, pool.schema());
    let held = format!("update {schema}.lanes set led_by = '{GONE}' where key = 'dock:1'");
    assert_eq!(holder.execute(&held, &[]).await.unwrap(), 1);
    let cancel = format!(
        "begin; select {schema}.cancel({}, null, null, null, 'not needed')",
        ids[1]
    );
    holder.batch_execute(&cancel).await.unwrap();
    let elsewhere = held_by(&pool, GONE, 9).await;
    dies(&pool, GONE).await;
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
    assert_eq!(site.begun(), [(0, 0), (1, 0), (9, 1), (2, 0)]);
}

/// Somebody deleted the head of a lane that is led, and who is next there has a partition key under which another has the turn.
async fn next_has_a_key(pool: &Pool, site: &Site, leader: &str) -> (Vec<i64>, i64) {
    let client = Client::new(pool.clone());
    site.shut(9);
    let other = client
        .enqueue(Load { n: 9, dock: 2 })
        .await
        .unwrap()
        .id
        .raw();
    site.has_begun(9).await;
    let (ids, schema) = (loads(pool, site, 3).await.0, pool.schema());
    site.has_begun(1).await;
    let keyed = format!(
        "begin;
         insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines)
         values ('{leader}', statement_timestamp() - interval '1 hour', 'h', 1, '{{}}', '{{}}') on conflict do nothing;
         update {schema}.instances set partition_key = 'key' where id in ({other}, {});
         update {schema}.lanes set led_by = '{leader}' where key = 'dock:1';
         delete from {schema}.instances where id = {};
         commit",
        ids[2], ids[1]
    );
    sql().await.batch_execute(&keyed).await.unwrap();
    (ids, other)
}

/// It waits until the other has ended, and then runs.
async fn waits_for_its_turn(pool: &Pool, site: &Site, ids: &[i64], other: i64) {
    let client = Client::new(pool.clone());
    eventually("it waits for its turn", async || {
        let row = client.inspect().show(ids[2]).await.unwrap().unwrap();
        (row.status, row.held_back) == (Status::Runnable, true)
    })
    .await;
    site.shut(9).add_permits(1);
    site.shut(1).add_permits(1);
    all_done(pool, &[ids[0], ids[2], other]).await;
}

#[tokio::test]
async fn one_that_is_given_back_to_its_lane_waits_for_its_turn_under_its_key() {
    let (pool, site) = (live().await, Site::default());
    let running = start(&pool, &site, quick());
    let (sql, schema) = (sql().await, pool.schema());
    let worker = format!("select id::text from {schema}.workers");
    let mut leader = None;
    eventually("there is a worker", async || {
        leader = sql
            .query_opt(&worker, &[])
            .await
            .unwrap()
            .map(|row| row.get::<_, String>(0));
        leader.is_some()
    })
    .await;
    let (ids, other) = next_has_a_key(&pool, &site, &leader.unwrap()).await;
    waits_for_its_turn(&pool, &site, &ids, other).await;
    running.stop().await;
}

#[tokio::test]
async fn one_that_the_dead_led_waits_for_its_turn_under_its_key() {
    let (pool, site) = (live().await, Site::default());
    let running = start(&pool, &site, mourning());
    let (ids, other) = next_has_a_key(&pool, &site, GONE).await;
    waits_for_its_turn(&pool, &site, &ids, other).await;
    running.stop().await;
}

/// Its snapshot is older than the hand-over, of which nothing is in the row of who follows.
#[tokio::test]
async fn a_cancel_that_cannot_see_who_runs_is_refused_and_may_be_tried_again() {
    let (pool, site) = (live().await, Site::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &site, 6).await;
    site.shut(2);
    let running = start(&pool, &site, quick());
    site.has_begun(1).await;
    is_seen_to_execute(&client, ids[1]).await;
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
    site.has_begun(2).await;
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
    // Its worker writes its row no more until it ends.
    is_seen_to_execute(&client, ids[2]).await;
    caller.batch_execute(begin).await.unwrap();
    assert_eq!(
        caller
            .query_one(&cancel(ids[2]), &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    // One that is behind, in the same transaction.
    assert_eq!(
        caller
            .query_one(&cancel(ids[4]), &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    caller.batch_execute("commit").await.unwrap();
    site.shut(2).add_permits(1);
    all_done(&pool, &[ids[0], ids[1], ids[3], ids[5]]).await;
    running.stop().await;
    assert_eq!(site.begun(), [(0, 0), (1, 0), (2, 0), (3, 0), (5, 0)]);
}
