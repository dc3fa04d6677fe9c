//! Tests of steps that block every thread of the Tokio runtime of their worker process.

use gen_durable::MINUTE;

use super::{
    machines::{Blocking, FirstRun, Five, Gated},
    place::Place,
};

#[tokio::test]
async fn a_worker_with_a_blocked_tokio_runtime_keeps_its_lease() {
    let place = Place::new().await;
    let plan = place.plan();
    // The test enqueues more blocking steps than the Tokio runtime of the worker has threads. Each
    // step blocks its thread for two and a half lease periods.
    let blocking = plan.threads * 2;
    let steps = (0..blocking).map(|_| Blocking {
        milliseconds: 5 * plan.lease_ms / 2,
    });
    place.client.enqueue_all(steps).await.unwrap();
    let _blocked = plan.start();
    place.until_done("begin", plan.threads).await;
    // The test starts another worker, which reaps expired workers ten times a second.
    let _other = plan.start();
    place.until_all_settled().await;
    let ended = place
        .sql("select distinct status, attempt, crash_count from %.instances")
        .await;
    assert_eq!(ended, [["done", "0", "0"]]);
    assert_eq!(place.done("begin").len(), blocking);
}

#[tokio::test]
async fn a_busy_worker_releases_claimed_instances_that_would_wait_behind_a_long_step() {
    let place = Place::new().await;
    let mut plan = place.plan().lease(60_000);
    plan.slots = 1;
    let _busy = plan.start();
    // The test runs quick steps first: after quick steps a worker claims more instances than it has
    // free slots.
    let quick = place.client.enqueue(Five::default()).await.unwrap().id;
    place.client.settled(quick, MINUTE).await.unwrap().unwrap();
    place
        .client
        .enqueue(Gated::new("gate", FirstRun::Done))
        .await
        .unwrap();
    place.until_done("begin", 6).await;
    let behind = place.client.enqueue(Five::default()).await.unwrap().id;
    let claimed =
        format!("select count(*) from %.instances where id = {behind} and status = 'executing'");
    place.until_count(&claimed, 1).await;
    // The busy worker releases the claim of the instance `behind` and does not claim that instance
    // a second time, so that a worker with a free slot can claim it.
    let released =
        format!("select count(*) from %.instances where id = {behind} and status = 'runnable'");
    place.until_count(&released, 1).await;
    let epoch = format!("select claim_epoch from %.instances where id = {behind}");
    let epoch_after_release = place.count(&epoch).await;
    // The test starts a worker with a free slot while the long step of the busy worker still runs.
    let _idle = plan.start();
    assert_eq!(
        place
            .client
            .settled(behind, MINUTE / 3)
            .await
            .unwrap()
            .map(|settled| settled.result),
        Some(Ok(5))
    );
    // A claim and a step result each increment `claim_epoch` by one.
    assert_eq!(
        place.count(&epoch).await,
        epoch_after_release + 2,
        "the instance was claimed once more, by the worker with a free slot"
    );
    assert_eq!(
        place
            .count("select count(*) from %.instances where attempt > 0")
            .await,
        0
    );
}
