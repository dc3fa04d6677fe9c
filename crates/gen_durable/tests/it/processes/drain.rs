//! Workers that are told to go.

use std::time::{Duration, Instant};

use gen_durable::{HOUR, MINUTE};

use super::{
    machines::{Five, FiveStep, Gated, Patient, Way},
    place::{Place, until},
};

#[tokio::test]
async fn a_worker_told_to_go_under_load_leaves_nothing_that_a_lease_must_free() {
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
        // In the middle of it: many have begun and many have not.
        let begun = place.done("begin").len();
        place.until_done("begin", begun + 200).await;
        worker.terminate();
        assert!(worker.ends().await.success());
    }
    let left = place
        .sql("select status, max(attempt), max(crash_count) from %.instances where finished_at is null group by 1")
        .await;
    assert_eq!(left, [["runnable", "0", "0"]]);
    assert_eq!(place.count("select count(*) from %.workers").await, 0);

    // The next one finds all of it at once: no lease of a minute has to run out.
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
        "a step that was let end ran again"
    );
}

#[tokio::test]
async fn a_step_longer_than_the_drain_is_given_back_unblamed() {
    let place = Place::new().await;
    place
        .client
        .enqueue_all([Gated::new("gate", Way::Done), Gated::new("gate", Way::Done)])
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
async fn a_step_that_asks_is_told_of_the_drain() {
    let place = Place::new().await;
    let id = place.client.enqueue(Patient { parts: 0 }).await.unwrap().id;
    let mut worker = place.plan().lease(60_000).start();
    place.until_done("begin", 1).await;
    worker.terminate();
    assert!(worker.ends().await.success());
    // It kept how far it had come, and nothing was blamed.
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
async fn what_is_claimed_while_a_worker_goes_is_given_back() {
    let place = Place::new().await;
    place.open("gate", 0);
    // Something lies there for later, so that the sweep has reason to look.
    place
        .client
        .enqueue(Five::default())
        .after(HOUR)
        .await
        .unwrap();
    let mut worker = place.plan().lease(60_000).start().runs().await;
    let shut = place
        .hold("lock table %.queues in access exclusive mode")
        .await;
    place
        .client
        .enqueue_all((0..20).map(|_| Gated::new("gate", Way::Done)))
        .await
        .unwrap();
    // Both who claim are in the middle of it: the picker, who will find nothing, and the sweep, who will.
    place.until_claims_wait(2).await;
    worker.terminate();
    worker.says("draining", 1).await;
    drop(shut);
    assert!(worker.ends().await.success());
    // What began before the worker heard of it has ended; everything else is where it was.
    let held =
        "select count(*) from %.instances where status not in ('runnable', 'done') or attempt > 0";
    assert_eq!(place.count(held).await, 0);
    assert_eq!(place.count("select count(*) from %.workers").await, 0);
}

#[tokio::test]
async fn a_worker_told_to_go_when_it_has_nothing_to_do_goes_at_once() {
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
    until("its row is gone", async || {
        place.count("select count(*) from %.workers").await == 0
    })
    .await;
}
