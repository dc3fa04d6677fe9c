//! Tests of workers that share their polls: which workers count as one group, and what a worker
//! writes about itself.

use std::sync::Arc;

use gen_durable::{Client, Context, Engine, Id, Job, Pool, Settings, StepError};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Running, SOON, eventually, live, sql, url};

/// A job that ends when the test adds a permit.
#[derive(Serialize, Deserialize)]
struct Held;
impl Job for Held {
    const NAME: &'static str = "held";
    type App = Arc<Semaphore>;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        if let Ok(permit) = cx.app().acquire().await {
            permit.forget();
        }
        Ok(())
    }
}

fn start(pool: &Pool, gate: &Arc<Semaphore>) -> Running {
    let settings = Settings {
        concurrency: 1,
        ..Settings::default()
    };
    let engine = Engine::builder(pool.clone(), gate.clone()).register::<Held>();
    Running::start(engine.settings(settings).build().unwrap())
}

#[tokio::test]
async fn a_group_counts_live_workers_with_room_that_can_claim_the_same_instances() {
    let pool = live().await;
    let (sql, schema) = (sql().await, pool.schema());
    // The columns are the last digit of the id, the seconds that the lease is still valid, the
    // queues, the machines, and whether the worker has room.
    let rows = "(1, 60, array['a'], array['m/1'], true), (2, 60, array['b', 'a'], array['n/1', 'm/1'], true),
        (3, -1, array['a'], array['m/1'], true), (4, 60, array['a'], array['m/1'], false),
        (5, 60, array['b'], array['m/1'], true), (6, 60, array['a'], array['m/2'], true),
        (7, 60, array['a'], array['m/1'], true)";
    let insert = format!(
        "insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines, polls)
         select ('00000000-0000-0000-0000-00000000000' || id)::uuid, statement_timestamp() + make_interval(secs => left_seconds), 'h', 1,
             queues, machines, polls
         from (values {rows}) as w(id, left_seconds, queues, machines, polls)"
    );
    sql.batch_execute(&insert).await.unwrap();
    let count = async |worker: i32| {
        let text = format!("select {schema}._fleet('00000000-0000-0000-0000-00000000000{worker}')");
        sql.query_one(&text, &[])
            .await
            .unwrap()
            .get::<_, Vec<i32>>(0)[..2]
            .to_vec()
    };
    assert_eq!(count(1).await, [3, 0], "workers 1, 2 and 7");
    assert_eq!(count(7).await, [3, 2]);
    assert_eq!(count(4).await, [4, 2], "a worker counts itself");
    assert_eq!(count(2).await, [1, 0], "no other worker serves b and n");
    assert_eq!(count(9).await, [0, 0], "it has no row");
}

#[tokio::test]
async fn a_full_worker_leaves_the_group_and_a_worker_with_room_claims_the_next_job() {
    let (pool, gate) = (live().await, Arc::new(Semaphore::new(0)));
    let client = Client::new(pool.clone());
    let (sql, schema) = (sql().await, pool.schema());
    let polling = format!("select count(*) from {schema}.workers where polls");
    let workers = async |wanted: i64, what: &str| {
        eventually(what, async || {
            sql.query_one(&polling, &[]).await.unwrap().get::<_, i64>(0) == wanted
        })
        .await;
    };
    let first = start(&pool, &gate);
    workers(1, "the first worker polls").await;
    let held = client.enqueue(Held).await.unwrap().id;
    workers(0, "the first worker is full").await;
    let second = start(&pool, &gate);
    workers(1, "the second worker polls").await;
    let next = client.enqueue(Held).await.unwrap().id;
    workers(0, "both workers are full").await;
    gate.add_permits(2);
    for id in [held, next] {
        assert!(client.settled(id, SOON).await.unwrap().is_some());
    }
    workers(2, "both workers poll again").await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a_worker_with_a_rare_machine_does_not_share_its_polls_with_workers_that_lack_the_machine()
{
    let (pool, gate) = (live().await, Arc::new(Semaphore::new(1)));
    let (sql, schema) = (sql().await, pool.schema());
    let engine = start(&pool, &gate);
    let worker = format!("select id::text from {schema}.workers where host <> 'other'");
    eventually("the worker has a row", async || {
        !sql.query(&worker, &[]).await.unwrap().is_empty()
    })
    .await;
    let others = format!(
        "insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines)
         select lpad(n::text, 32, '0')::uuid, w.lease_expires_at, 'other', 0, w.queues, array['other/1']
         from {schema}.workers w, generate_series(1, 99) as n"
    );
    sql.batch_execute(&others).await.unwrap();
    let id: String = sql.query_one(&worker, &[]).await.unwrap().get(0);
    let group = format!("select {schema}._fleet('{id}')");
    let group: Vec<i32> = sql.query_one(&group, &[]).await.unwrap().get(0);
    assert_eq!(group[..2], [1, 0]);
    let client = Client::new(Pool::connect_to(&url(), schema).await.unwrap());
    let job = client.enqueue(Held).await.unwrap().id;
    assert!(client.settled(job, SOON).await.unwrap().is_some());
    engine.stop().await;
}

#[tokio::test]
async fn a_worker_with_a_paused_queue_leaves_the_group_and_runs_jobs_after_the_queue_is_resumed() {
    let (pool, gate) = (live().await, Arc::new(Semaphore::new(1)));
    let (sql, schema) = (sql().await, pool.schema());
    // This client shares no pool with the engine, so that it does not wake the engine.
    let client = Client::new(Pool::connect_to(&url(), schema).await.unwrap());
    let engine = start(&pool, &gate);
    let polls = format!("select bool_and(polls) from {schema}.workers");
    let polls = async |wanted: bool, what: &str| {
        eventually(what, async || {
            let row = sql.query_one(&polls, &[]).await.unwrap();
            row.get::<_, Option<bool>>(0) == Some(wanted)
        })
        .await;
    };
    polls(true, "the worker polls").await;
    client.pause_queue("default", "test").await.unwrap();
    polls(false, "the worker holds no share").await;
    let job = client.enqueue(Held).await.unwrap().id;
    client.resume_queue("default").await.unwrap();
    assert!(client.settled(job, SOON).await.unwrap().is_some());
    polls(true, "the worker polls again").await;
    engine.stop().await;
}

/// A picker at rest asks `_next_claim` when a pick may claim or place anything. Whatever a pick
/// finds, the answer is a time that has passed, but for suspects: they wait for the next pick that
/// counts the group.
#[tokio::test]
async fn a_worker_at_rest_learns_of_everything_that_a_pick_would_find() {
    let pool = live().await;
    let (sql, schema) = (sql().await, pool.schema());
    let ranges =
        "array['default'], array[0::smallint], array['epoch'::timestamptz], array[0::bigint]";
    let may_pick = async |placed_to: i64, limited: bool| {
        let probe = format!(
            "select coalesce(at <= now(), false), at > now() + interval '50 min'
             from {schema}._next_claim(array['default'], {ranges}, {placed_to}, {limited}) at"
        );
        let row = sql.query_one(&probe, &[]).await.unwrap();
        (row.get::<_, bool>(0), row.get::<_, Option<bool>>(1))
    };
    // Returns how many instances a pick claimed, and the number up to which all were placed before.
    let pick = format!(
        "select count(id), max(predecessor_id) filter (where id is null)
         from {schema}._pick(array['default'], array[100], {ranges}, array['m/1'], gen_random_uuid(), 60, 1)"
    );
    let pick = async || {
        let row = sql.query_one(&pick, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, Option<i64>>(1))
    };
    let instance = |columns: &str, values: &str| {
        format!(
            "insert into {schema}.instances (machine, step, state{columns}) select 'm', 'run', '{{}}'{values}"
        )
    };
    assert_eq!(may_pick(0, true).await, (false, None), "an empty table");

    let later = instance(
        ", eligible_at",
        ", statement_timestamp() + interval '1 hour'",
    );
    sql.batch_execute(&later).await.unwrap();
    assert_eq!(may_pick(0, true).await, (false, Some(true)), "in an hour");
    assert_eq!(pick().await, (0, Some(0)));

    let elsewhere = instance(", queue", ", 'other'");
    sql.batch_execute(&elsewhere).await.unwrap();
    assert_eq!(may_pick(0, true).await, (false, Some(true)), "elsewhere");

    sql.batch_execute(&instance("", "")).await.unwrap();
    assert!(may_pick(0, false).await.0, "an instance is due");
    assert_eq!(pick().await.0, 1);
    assert!(!may_pick(0, true).await.0, "it is claimed");

    // A lane: its second instance becomes claimable when a pick has placed it.
    let enqueue = |count: i64| {
        format!(
            "select {schema}.enqueue_all(jsonb_build_array(jsonb_build_object('machine', 'm', 'step', 'run', 'state', '{{}}'::jsonb, 'lane', 'l')))
             from generate_series(1, {count})"
        )
    };
    // A transaction that has drawn an arrival number and stays open.
    let caller = crate::support::sql().await;
    caller.batch_execute("begin").await.unwrap();
    caller.batch_execute(&enqueue(2)).await.unwrap();
    sql.batch_execute(&enqueue(2)).await.unwrap();
    assert!(may_pick(0, false).await.0, "instances have entered a lane");
    assert_eq!(pick().await, (1, Some(0)), "one of the lane at a time");
    caller.batch_execute("commit").await.unwrap();
    assert!(may_pick(0, false).await.0, "an earlier arrival committed");
    assert_eq!(pick().await, (0, Some(0)));
    let left = format!("select count(*) from {schema}.instances where arrival_no is not null");
    let left: i64 = sql.query_one(&left, &[]).await.unwrap().get(0);
    assert_eq!(left, 0, "both picks have placed their arrivals");

    // The watermark of placement rises above the number of a transaction that stays open. No number
    // is then a watermark for the probe, until that transaction has ended.
    caller.batch_execute("begin").await.unwrap();
    caller.batch_execute(&enqueue(1)).await.unwrap();
    sql.batch_execute(&enqueue(200)).await.unwrap();
    pick().await;
    pick().await;
    assert_eq!(pick().await, (0, None), "an open transaction drew a number");
    caller.batch_execute("commit").await.unwrap();
    pick().await;
    let (_, placed_to) = pick().await;
    assert!(placed_to > Some(200), "{placed_to:?}");
    assert!(!may_pick(placed_to.unwrap(), true).await.0, "all is placed");

    let waiting = format!(
        "insert into {schema}.limit_backlog (queue, limit_group, names) values ('default', 'g', array['g'])"
    );
    sql.batch_execute(&waiting).await.unwrap();
    assert!(may_pick(placed_to.unwrap(), true).await.0, "a group waits");
}

#[tokio::test]
async fn a_worker_of_a_large_group_finds_an_instance_that_committed_long_after_its_due_time() {
    let (pool, gate) = (live().await, Arc::new(Semaphore::new(3)));
    let (sql, schema) = (sql().await, pool.schema());
    let client = Client::new(Pool::connect_to(&url(), schema).await.unwrap());
    let engine = start(&pool, &gate);
    let first = client.enqueue(Held).await.unwrap().id;
    assert!(client.settled(first, SOON).await.unwrap().is_some());
    // The other workers of the group never run. A worker that swept only once in the intervals of
    // all of them would sweep every few minutes.
    let others = format!(
        "insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines)
         select lpad(n::text, 32, '0')::uuid, 'infinity', 'other', 0, w.queues, w.machines
         from {schema}.workers w, generate_series(1, 300) as n"
    );
    sql.batch_execute(&others).await.unwrap();
    let later = client.enqueue(Held).after(SOON).await.unwrap().id;
    let late = format!(
        "insert into {schema}.instances (machine, step, state, eligible_at)
         select machine, step, state, statement_timestamp() - interval '1 hour'
         from {schema}.instances where id = {} returning id",
        first.raw()
    );
    // The sweep that finds the first one may have been due before the worker counted the group.
    for _ in 0..2 {
        let id: i64 = sql.query_one(&late, &[]).await.unwrap().get(0);
        let settled = client.settled(Id::<Held>::from_raw(id), SOON).await;
        assert!(settled.unwrap().is_some());
    }
    client.cancel(later, "test").await.unwrap();
    engine.stop().await;
}
