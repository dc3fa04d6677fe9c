//! Tests of changes of limits while workers run: other bounds, tiers, pause and resume.

use gen_durable::{
    Client, SECOND,
    inspect::Blocker,
    machine::Limit,
    operate::{LimitChange, LimitKeyBounds},
};

use super::{Calls, OTHER, add, add_to, fetch, gated, start, until_use};
use crate::support::{eventually, live};

fn at_once(steps: Option<u32>) -> LimitChange {
    LimitChange {
        at_once: Some(steps),
        ..LimitChange::default()
    }
}

#[tokio::test]
async fn a_lower_bound_interrupts_no_step_and_a_higher_one_lets_waiting_instances_begin() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let operate = client.operate();
    let engine = start(&pool, &calls, &[Limit::new("api").at_once(3)]);
    for n in 0..6 {
        add(&client, gated("acme", n)).await;
    }
    until_use(&client, "api", 3, 3).await;
    operate.set_limit("api", at_once(Some(1))).await.unwrap();
    let running = calls.begun();
    for (n, left) in running.iter().zip([2, 1]) {
        calls.open(*n);
        until_use(&client, "api", left, 3).await;
    }
    assert_eq!(calls.count(), 3, "one step still runs");
    calls.open(running[2]);
    until_use(&client, "api", 1, 2).await;
    operate.set_limit("api", at_once(None)).await.unwrap();
    until_use(&client, "api", 3, 0).await;
    (0..6).for_each(|n| calls.open(n));
    until_use(&client, "api", 0, 0).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_key_with_bounds_of_its_own_ignores_those_of_the_limit_for_each_key() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let (inspect, operate) = (client.inspect(), client.operate());
    let engine = start(&pool, &calls, &[Limit::new("api").per_key(1)]);
    eventually("the limit is declared", async || {
        inspect.limit("api").await.unwrap().is_some()
    })
    .await;
    let tier = |steps| {
        Some(LimitKeyBounds {
            at_once: Some(steps),
            ..LimitKeyBounds::default()
        })
    };
    operate.set_limit_key("api", "acme", tier(3)).await.unwrap();
    for n in 0..5 {
        add(&client, gated("acme", n)).await;
        add(&client, gated("globex", 10 + n)).await;
    }
    until_use(&client, "api", 4, 6).await;
    let keys = inspect.limit_keys("api").await.unwrap();
    let found: Vec<_> = keys
        .iter()
        .map(|key| (&*key.key, key.at_once, key.is_own, key.running, key.waiting))
        .collect();
    assert_eq!(
        found,
        [
            ("globex", Some(1), false, 1, 4),
            ("acme", Some(3), true, 3, 2)
        ]
    );
    // A tier of zero lets no step with the key begin, and no tier is the bound of each key again.
    operate
        .set_limit_key("api", "globex", tier(0))
        .await
        .unwrap();
    calls.open(10);
    until_use(&client, "api", 3, 6).await;
    operate.set_limit_key("api", "globex", None).await.unwrap();
    calls.has_begun(11).await;
    until_use(&client, "api", 4, 5).await;
    (0..20).for_each(|n| calls.open(n));
    until_use(&client, "api", 0, 0).await;
    engine.stop().await;
}

#[tokio::test]
async fn changed_bounds_and_a_pause_stay_in_force_over_a_restart_until_a_reset() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let (inspect, operate) = (client.inspect(), client.operate());
    let engine = start(&pool, &calls, &[Limit::new("api").at_once(5)]);
    eventually("the limit is declared", async || {
        inspect.limit("api").await.unwrap().is_some()
    })
    .await;
    operate.set_limit("api", at_once(Some(2))).await.unwrap();
    operate.pause_limit("api").await.unwrap();
    for n in 0..3 {
        add(&client, gated("acme", n)).await;
    }
    until_use(&client, "api", 0, 3).await;
    engine.stop().await;

    let engine = start(&pool, &calls, &[Limit::new("api").at_once(6)]);
    eventually("the new declaration is stored", async || {
        inspect.limit("api").await.unwrap().unwrap().declared["at_once"] == 6
    })
    .await;
    let limit = inspect.limit("api").await.unwrap().unwrap();
    assert_eq!(limit.at_once, Some(2));
    assert!(limit.paused_at.is_some() && limit.changed_at.is_some());
    assert_eq!(calls.count(), 0);
    operate.resume_limit("api").await.unwrap();
    until_use(&client, "api", 2, 1).await;
    operate.reset_limit("api").await.unwrap();
    until_use(&client, "api", 3, 0).await;
    let limit = inspect.limit("api").await.unwrap().unwrap();
    assert_eq!((limit.at_once, limit.changed_at), (Some(6), None));
    (0..3).for_each(|n| calls.open(n));
    engine.stop().await;
}

#[tokio::test]
async fn waiting_instances_of_a_paused_queue_hold_nothing() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &calls, &[Limit::new("api").at_once(1)]);
    add(&client, gated("acme", 0)).await;
    calls.has_begun(0).await;
    add_to(&client, OTHER, fetch("acme", 1)).await;
    until_use(&client, "api", 1, 1).await;
    client.pause_queue("other", "test").await.unwrap();
    add(&client, fetch("acme", 2)).await;
    until_use(&client, "api", 1, 2).await;
    calls.open(0);
    calls.has_begun(2).await;
    until_use(&client, "api", 0, 1).await;
    client.resume_queue("other").await.unwrap();
    calls.has_begun(1).await;
    assert_eq!(calls.begun(), [0, 2, 1]);
    engine.stop().await;
}

#[tokio::test]
async fn an_explanation_names_the_limits_of_a_waiting_instance_and_their_use() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let limit = Limit::new("api").per_key(1).rate(1_000, SECOND);
    let engine = start(&pool, &calls, &[limit]);
    add(&client, gated("acme", 0)).await;
    calls.has_begun(0).await;
    let waiting = add(&client, fetch("acme", 1)).await;
    until_use(&client, "api", 1, 1).await;
    let explanation = client
        .inspect()
        .explain(waiting.raw())
        .await
        .unwrap()
        .unwrap();
    let [Blocker::AwaitingLimit { limits, .. }] = &explanation.blockers[..] else {
        panic!("{explanation:?}");
    };
    let [whole, key] = &limits[..] else {
        panic!("{limits:?}");
    };
    assert_eq!((&*whole.limit, &*whole.key), ("api", ""));
    assert!(!whole.is_full() && whole.rate.is_some());
    assert_eq!((&*key.limit, &*key.key), ("api", "acme"));
    assert_eq!((key.at_once, key.running), (Some(1), 1));
    assert!(key.is_full());
    client.operate().pause_limit("api").await.unwrap();
    let explanation = client
        .inspect()
        .explain(waiting.raw())
        .await
        .unwrap()
        .unwrap();
    let [Blocker::AwaitingLimit { limits, .. }] = &explanation.blockers[..] else {
        panic!("{explanation:?}");
    };
    assert!(limits[0].paused && limits[0].is_full());
    calls.open(0);
    engine.stop().await;
}
