//! Tests of the shutdown of worker processes after SIGTERM.

use std::time::{Duration, Instant};

use gen_durable::{HOUR, MINUTE};

use super::{
    machines::{DrainAware, FirstRun, Five, FiveStep, Gated},
    place::{Place, until},
};

#[tokio::test]
async fn a_worker_that_drains_under_load_releases_all_claims_before_it_ends() {
    let place = Place::new().await;
    let instances = 300;
    place
        .client
        .enqueue_all((0..instances).map(|_| Five::default()))
        .await
        .unwrap();
    let mut plan = place.plan().lease(60_000);
    (plan.slots, plan.pause_ms) = (16, 20);
    let mut workers = [plan.start(), plan.start()];
    for worker in &mut workers {
        // The test terminates the worker when many steps have begun and many have not.
        let begun = place.done("begin").len();
        place.until_done("begin", begun + 200).await;
        worker.terminate();
        assert!(worker.ends().await.success());
    }
    let left = place
        .sql("select status, max(attempt), max(crash_count) from %.instances where settled_at is null group by 1")
        .await;
    assert_eq!(left, [["runnable", "0", "0"]]);
    assert_eq!(place.count("select count(*) from %.workers").await, 0);

    // The next worker can claim all unsettled instances at once: it need not wait until a lease of
    // a minute has expired.
    let begun = Instant::now();
    let _next = plan.start();
    place.until_all_settled().await;
    assert!(begun.elapsed() < MINUTE / 2, "{:?}", begun.elapsed());
    assert_eq!(
        place
            .count("select count(*) from %.instances where result = '5' and attempt = 0")
            .await,
        instances
    );
    let steps = instances as usize * FiveStep::NAMES.len();
    assert_eq!(
        place.done("begin").len(),
        steps,
        "a step that ended during the drain ran again"
    );
}

#[tokio::test]
async fn the_claim_of_a_step_that_outlasts_the_drain_is_released_without_a_counted_attempt() {
    let place = Place::new().await;
    place
        .client
        .enqueue_all([
            Gated::new("gate", FirstRun::Done),
            Gated::new("gate", FirstRun::Done),
        ])
        .await
        .unwrap();
    let mut plan = place.plan().lease(60_000);
    plan.drain_ms = 200;
    let mut worker = plan.start();
    place.until_done("begin", 2).await;
    worker.terminate();
    assert!(worker.ends().await.success());
    let left = place
        .sql("select status, attempt, crash_count, claim_epoch, step_seq from %.instances")
        .await;
    assert_eq!(left, [["runnable", "0", "0", "2", "0"]; 2]);
    assert_eq!(place.count("select count(*) from %.workers").await, 0);

    place.open("gate", 0);
    let _next = plan.start();
    place.until_all_settled().await;
    assert_eq!(
        place
            .count("select count(*) from %.instances where result = '1' and attempt = 0")
            .await,
        2
    );
}

#[tokio::test]
async fn a_step_can_observe_that_its_engine_drains_and_commit_its_progress() {
    let place = Place::new().await;
    let id = place
        .client
        .enqueue(DrainAware { parts: 0 })
        .await
        .unwrap()
        .id;
    let mut worker = place.plan().lease(60_000).start();
    place.until_done("begin", 1).await;
    worker.terminate();
    assert!(worker.ends().await.success());
    // The step has committed its progress during the shutdown, and the engine counted no attempt.
    let left = place
        .sql("select status, attempt, state from %.instances")
        .await;
    assert_eq!(left, [["runnable", "0", "{\"parts\": 1}"]]);
    let mut next = place.plan().lease(60_000).start();
    place.until_done("begin", 2).await;
    next.terminate();
    assert!(next.ends().await.success());
    let row = place
        .client
        .inspect()
        .show(id.raw())
        .await
        .unwrap()
        .unwrap();
    assert!(row.state.contains('2'), "{}", row.state);
}

#[tokio::test]
async fn a_worker_releases_instances_that_it_claimed_while_it_drained() {
    let place = Place::new().await;
    place.open("gate", 0);
    // The test enqueues an instance that is due in an hour, so that the sweep of the worker polls.
    place
        .client
        .enqueue(Five::default())
        .after(HOUR)
        .await
        .unwrap();
    let mut worker = place.plan().lease(60_000).start().runs().await;
    let lock = place
        .hold("lock table %.limit_locks in access exclusive mode")
        .await;
    place
        .client
        .enqueue_all((0..20).map(|_| Gated::new("gate", FirstRun::Done)))
        .await
        .unwrap();
    // The statements of the picker and of the sweep both wait for the table `limit_locks`, on which
    // the test holds an `access exclusive` lock. The picker will claim no instance, and the sweep
    // will claim instances.
    place.until_claims_wait(2).await;
    worker.terminate();
    worker.says("draining", 1).await;
    drop(lock);
    assert!(worker.ends().await.success());
    // The steps that began before the worker noticed SIGTERM have ended. The worker has released
    // all other claims, so the other instances are runnable.
    let held =
        "select count(*) from %.instances where status not in ('runnable', 'done') or attempt > 0";
    assert_eq!(place.count(held).await, 0);
    assert_eq!(place.count("select count(*) from %.workers").await, 0);
}

#[tokio::test]
async fn an_idle_worker_ends_at_once_on_sigterm() {
    let place = Place::new().await;
    let mut worker = place.plan().lease(60_000).start().runs().await;
    worker.terminate();
    let begun = Instant::now();
    assert!(worker.ends().await.success());
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    until("the row of the worker is deleted", async || {
        place.count("select count(*) from %.workers").await == 0
    })
    .await;
}
