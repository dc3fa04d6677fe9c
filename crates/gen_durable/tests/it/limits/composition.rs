//! Tests of limits together with lanes, partition keys, children, waits, retries and crashes.

use std::time::Duration;

use gen_durable::{
    Client, Context, Engine, MINUTE, Machine, Policy, SECOND, Signal,
    inspect::{HistoryOutcome, Status},
    machine::{Limit, Limits},
    prelude::*,
    testing::Lab,
};
use serde::{Deserialize, Serialize};

use super::{Calls, Fetch, add, fetch, gated, start, until_use};
use crate::support::{Running, SOON, eventually, history, live, sql};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_keep_their_order_and_partition_keys_their_exclusion_under_a_limit() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let limits = [Limit::new("api").at_once(2)];
    let engines = [0, 1].map(|_| start(&pool, &calls, &limits));
    let jobs = (0..120).map(|n| {
        let key = n % 3;
        Fetch {
            lane: (n % 2 == 0).then(|| format!("lane {key}")),
            partition: (n % 2 == 1).then(|| format!("partition {key}")),
            ..fetch(
                &format!("{} {key}", ["lane", "partition"][n as usize % 2]),
                n,
            )
        }
    });
    for made in client.enqueue_all(jobs).await.unwrap() {
        client.settled(made.id, SOON).await.unwrap().unwrap();
    }
    let (most, most_of_a_key) = calls.most();
    assert!(most <= 2, "{most} steps ran at once");
    assert_eq!(
        most_of_a_key, 1,
        "two steps of a lane or a partition ran at once"
    );
    for lane in 0..3 {
        let key = format!("lane {lane}");
        let order: Vec<u64> = calls
            .starts()
            .into_iter()
            .filter_map(|(found, n)| (found == key).then_some(n))
            .collect();
        assert_eq!(order.len(), 20);
        assert!(order.is_sorted(), "{order:?}");
    }
    for engine in engines {
        engine.stop().await;
    }
}

/// The commit that ends the head of a lane may claim the successor, but not one that takes limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_in_a_lane_begins_only_if_its_own_limits_have_room() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let limits = [Limit::new("api").per_key(1)];
    let engines = [0, 1].map(|_| start(&pool, &calls, &limits));
    let jobs = (0..200).map(|n| Fetch {
        lane: Some(format!("lane {}", n % 4)),
        ..fetch(["acme", "globex"][(n / 4) as usize % 2], n)
    });
    for made in client.enqueue_all(jobs).await.unwrap() {
        client.settled(made.id, SOON).await.unwrap().unwrap();
    }
    assert_eq!(calls.most_of_a_key(), 1);
    for engine in engines {
        engine.stop().await;
    }
}

/// A machine with steps that take the limit "api", except `Prepare` and `Wait`.
#[derive(Serialize, Deserialize, Default)]
struct Order {
    children: u32,
}

#[derive(Serialize, Deserialize, Default)]
enum At {
    #[default]
    Prepare,
    Split,
    Join,
    Wait,
    Late,
    Twice,
}

#[derive(Serialize, Deserialize)]
struct Paid;

impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}

impl Machine for Order {
    const NAME: &'static str = "order";
    type App = Calls;
    type Step = At;
    type Output = ();
    fn limits(&self, at: &At) -> Limits {
        match at {
            At::Prepare | At::Wait => Limits::none(),
            _ => Limits::of("api").key("acme"),
        }
    }
    fn policy(&self, _: &At) -> Policy {
        Policy {
            backoff_first: SECOND,
            ..Policy::default()
        }
    }
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Prepare => Ok(next(At::Split)),
            At::Split => {
                cx.app().enter("split", 0);
                tokio::task::yield_now().await;
                cx.app().leave("split");
                if self.children > 0 {
                    let children = (0..self.children).map(|n| fetch("acme", n.into()));
                    return Ok(spawn(children).then(At::Join).forever());
                }
                Ok(next(At::Wait))
            }
            At::Wait => Ok(wait_for::<Paid>().then(At::Join).or_after(MINUTE, At::Late)),
            At::Join => Ok(next(At::Twice)),
            At::Twice if cx.attempt() == 0 => Err("not yet".into()),
            At::Late | At::Twice => {
                cx.app().enter("end", 0);
                cx.app().leave("end");
                Ok(done(()))
            }
        }
    }
}

async fn lab(calls: &Calls, limit: Limit) -> Lab<Calls> {
    Lab::new(calls.clone())
        .await
        .register::<Fetch>()
        .register::<Order>()
        .limit(limit)
}

#[tokio::test]
async fn a_parent_that_waits_for_children_with_its_own_limit_holds_no_slot() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").at_once(1)).await;
    let order = lab.enqueue(Order { children: 3 }).await.unwrap();
    lab.skip(MINUTE).await;
    assert_eq!(lab.status_of(order.id).await, Status::Done);
    assert_eq!(calls.most().0, 1);
}

#[tokio::test]
async fn an_instance_that_waits_or_is_retried_holds_no_slot_and_a_deadline_step_takes_its_limits() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").at_once(1)).await;
    let paid = lab.enqueue(Order::default()).await.unwrap();
    let late = lab.enqueue(Order::default()).await.unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(paid.id).await, Status::AwaitingSignal);
    assert_eq!(lab.status_of(late.id).await, Status::AwaitingSignal);
    lab.signal(paid.id, Paid).await.unwrap();
    // The first run of the last step fails, and the instance waits for its next attempt.
    lab.drain().await;
    assert_eq!(lab.status_of(paid.id).await, Status::Runnable);
    let meanwhile = lab.enqueue(fetch("acme", 7)).await.unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(meanwhile.id).await, Status::Done);
    lab.operate().pause_limit("api").await.unwrap();
    lab.skip(MINUTE).await;
    // The deadline has passed. Its step takes a limit, which is paused.
    assert_eq!(lab.status_of(late.id).await, Status::AwaitingLimit);
    assert_eq!(lab.status_of(paid.id).await, Status::AwaitingLimit);
    lab.operate().resume_limit("api").await.unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(late.id).await, Status::Done);
    assert_eq!(lab.status_of(paid.id).await, Status::Done);
    let outcomes = history(&lab, late.id.raw()).await;
    assert!(
        outcomes
            .iter()
            .any(|entry| entry.outcome == HistoryOutcome::Limit && entry.attempt == 0),
        "{outcomes:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_does_not_run_ahead_into_a_step_that_takes_a_limit() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let engines = [0, 1].map(|_| {
        let builder = Engine::builder(pool.clone(), calls.clone());
        let builder = builder.register::<Order>().register::<Fetch>();
        Running::start(builder.limit(Limit::new("api").at_once(1)).build().unwrap())
    });
    let orders = client.enqueue_all((0..40).map(|_| Order { children: 1 }));
    for made in orders.await.unwrap() {
        client.settled(made.id, SOON).await.unwrap().unwrap();
    }
    assert_eq!(calls.most().0, 1);
    for engine in engines {
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_crashed_worker_leaves_its_slot_with_its_claim() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").at_once(1)).await;
    let jobs = lab
        .enqueue_all((0..3).map(|n| fetch("acme", n)))
        .await
        .unwrap();
    lab.step().await;
    lab.crash_before_commit().await;
    lab.drain().await;
    for job in &jobs {
        assert_eq!(lab.status_of(job.id).await, Status::Done);
    }
    assert_eq!(calls.most().0, 1);
}

#[tokio::test]
async fn an_instance_enqueued_by_sql_waits_for_the_limits_that_its_worker_computes() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &calls, &[Limit::new("api").at_once(1)]);
    add(&client, gated("acme", 0)).await;
    calls.has_begun(0).await;
    let state = serde_json::to_string(&fetch("acme", 1)).unwrap();
    let text = format!(
        "select id from {}.enqueue_all(jsonb_build_array(jsonb_build_object('machine', 'fetch', 'step', 'run', 'state', $1::text::jsonb)))",
        pool.schema()
    );
    let row = sql().await.query_one(&text, &[&state]).await.unwrap();
    until_use(&client, "api", 1, 1).await;
    calls.open(0);
    calls.has_begun(1).await;
    let id: i64 = row.get(0);
    let outcomes = history(&client, id).await;
    assert!(
        outcomes.iter().all(|entry| entry.attempt == 0),
        "{outcomes:?}"
    );
    engine.stop().await;
}

#[tokio::test]
async fn an_instance_at_an_unknown_step_holds_nothing_and_keeps_others_from_nothing() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &calls, &[Limit::new("api").at_once(1)]);
    add(&client, gated("acme", 0)).await;
    calls.has_begun(0).await;
    let unknown = add(&client, fetch("acme", 1)).await;
    until_use(&client, "api", 1, 1).await;
    let text = format!(
        "update {}.instances set step = 'unknown' where id = {unknown}",
        pool.schema()
    );
    sql().await.batch_execute(&text).await.unwrap();
    add(&client, fetch("acme", 2)).await;
    calls.open(0);
    calls.has_begun(2).await;
    until_use(&client, "api", 0, 1).await;
    engine.stop().await;
}

#[tokio::test]
async fn each_attempt_takes_new_tokens_also_after_a_crash_and_a_released_claim() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").rate(2, MINUTE).burst(2)).await;
    let order = lab.enqueue(Order::default()).await.unwrap();
    // Split takes one token. Join takes the second one, and `Twice` waits for half a minute.
    lab.drain().await;
    lab.signal(order.id, Paid).await.unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(order.id).await, Status::AwaitingLimit);
    lab.skip(Duration::from_secs(30)).await;
    // The first attempt of `Twice` has failed, and the second one takes another token.
    assert_eq!(lab.status_of(order.id).await, Status::Runnable);
    lab.advance(Duration::from_secs(29)).await;
    lab.drain().await;
    assert_eq!(lab.status_of(order.id).await, Status::AwaitingLimit);
    lab.advance(Duration::from_secs(1)).await;
    // The worker crashes, and the next one needs a token too.
    lab.crash_before_commit().await;
    lab.drain().await;
    assert_eq!(lab.status_of(order.id).await, Status::AwaitingLimit);
    lab.skip(Duration::from_secs(30)).await;
    assert_eq!(lab.status_of(order.id).await, Status::Done);
}

#[tokio::test]
async fn a_waiting_instance_that_the_database_refuses_is_set_aside_and_the_others_begin() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &calls, &[Limit::new("api").at_once(1)]);
    add(&client, gated("acme", 0)).await;
    calls.has_begun(0).await;
    let refused = add(&client, fetch("acme", 1)).await;
    add(&client, fetch("acme", 2)).await;
    until_use(&client, "api", 1, 2).await;
    let (schema, id) = (pool.schema(), refused.raw());
    let text = format!(
        "create function {schema}.refuses() returns trigger language plpgsql as
            'begin raise exception ''not this one''; end';
         create trigger refuses before update on {schema}.instances for each row
            when (new.id = {id} and new.status = 'executing') execute function {schema}.refuses()"
    );
    sql().await.batch_execute(&text).await.unwrap();
    calls.open(0);
    calls.has_begun(2).await;
    eventually("the instance is stuck", async || {
        let row = client.inspect().show(id).await.unwrap().unwrap();
        row.status == Status::Stuck
    })
    .await;
    until_use(&client, "api", 0, 0).await;
    engine.stop().await;
}
