//! Steps that block every thread of the host's runtime.

use super::{machines::Blocking, place::Place};

#[tokio::test]
async fn a_blocked_runtime_loses_no_lease() {
    let place = Place::new().await;
    let plan = place.plan();
    // More of them than there are threads, each for five leases.
    let blocking = plan.threads * 2;
    let steps = (0..blocking).map(|_| Blocking { milliseconds: 5 * plan.lease_ms / 2 });
    place.client.enqueue_all(steps).await.unwrap();
    let _blocked = plan.start();
    place.until_done("begin", plan.threads).await;
    // Somebody who looks for the dead ten times a second.
    let _other = plan.start();
    place.until_all_settled().await;
    let ended = place.sql("select distinct status, attempt, crash_count, claim_epoch from %.instances").await;
    assert_eq!(ended, [["done", "0", "0", "2"]]);
    assert_eq!(place.done("begin").len(), blocking);
}
