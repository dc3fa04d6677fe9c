//! Steps that block every thread of the host's runtime.

use gen_durable::MINUTE;

use super::{
    machines::{Blocking, Five, Gated, Way},
    place::Place,
};

#[tokio::test]
async fn a_blocked_runtime_loses_no_lease() {
    let place = Place::new().await;
    let plan = place.plan();
    // More of them than there are threads, each for five leases.
    let blocking = plan.threads * 2;
    let steps = (0..blocking).map(|_| Blocking {
        milliseconds: 5 * plan.lease_ms / 2,
    });
    place.client.enqueue_all(steps).await.unwrap();
    let _blocked = plan.start();
    place.until_done("begin", plan.threads).await;
    // Somebody who looks for the dead ten times a second.
    let _other = plan.start();
    place.until_all_settled().await;
    let ended = place
        .sql("select distinct status, attempt, crash_count from %.instances")
        .await;
    assert_eq!(ended, [["done", "0", "0"]]);
    assert_eq!(place.done("begin").len(), blocking);
}

#[tokio::test]
async fn what_was_claimed_ahead_does_not_wait_behind_a_step_that_takes_long() {
    let place = Place::new().await;
    let mut plan = place.plan().lease(60_000);
    plan.slots = 1;
    let _busy = plan.start();
    // Quick ones first: then a worker claims ahead of its free places.
    let quick = place.client.enqueue(Five::default()).await.unwrap().id;
    place.client.settled(quick, MINUTE).await.unwrap().unwrap();
    place
        .client
        .enqueue(Gated::new("gate", Way::Done))
        .await
        .unwrap();
    place.until_done("begin", 6).await;
    let behind = place.client.enqueue(Five::default()).await.unwrap().id;
    let claimed =
        format!("select count(*) from %.instances where id = {behind} and status = 'executing'");
    place.until_count(&claimed, 1).await;
    // It goes back, and the busy one leaves it where it is: somebody with room could come at any time.
    let given_back =
        format!("select count(*) from %.instances where id = {behind} and status = 'runnable'");
    place.until_count(&given_back, 1).await;
    let epoch = format!("select claim_epoch from %.instances where id = {behind}");
    let epoch_given_back = place.count(&epoch).await;
    // He comes. The long step still runs.
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
    // A claim and an end count one each.
    assert_eq!(
        place.count(&epoch).await,
        epoch_given_back + 2,
        "it was claimed once more, by who had room"
    );
    assert_eq!(
        place
            .count("select count(*) from %.instances where attempt > 0")
            .await,
        0
    );
}
