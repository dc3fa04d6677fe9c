//! Workers that slept through something: a restart of Postgres, the sleep of the whole machine, their own burial.

use std::time::Duration;

use gen_durable::MINUTE;

use super::{
    machines::{Five, Gated, Way},
    place::Place,
    server::{Frozen, own_cluster},
    worker::Worker,
};

/// Longer than the lease of a second and a half.
const SLEEP: Duration = Duration::from_millis(2_500);
/// A lease that outlasts it.
const LONG_LEASE_MS: u64 = 5_000;

#[tokio::test]
async fn after_the_whole_machine_slept_the_first_to_wake_does_not_rob_the_others() {
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let (mut slow, mut quick) = two(&place, 1_500).await;
    slow.stop();
    quick.stop();
    let frozen = Frozen::freeze(&cluster);
    // The length of the sleep is what is tried.
    tokio::time::sleep(SLEEP).await;
    frozen.thaw();
    wake_one_after_the_other(&place, slow, quick).await;
}

#[tokio::test]
async fn a_reaper_whose_own_lease_outlasted_an_outage_gives_the_others_time() {
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let (mut slow, quick) = two(&place, LONG_LEASE_MS).await;
    // In this order: who is silent while the clock runs is dead, rightly.
    let frozen = Frozen::freeze(&cluster);
    slow.stop();
    tokio::time::sleep(SLEEP).await;
    quick.says("could not renew the lease", 1).await;
    frozen.thaw();
    assert_eq!(quick.said("the lease ran out"), 0);
    wake_one_after_the_other(&place, slow, quick).await;
}

#[tokio::test]
async fn a_reaper_that_slept_through_a_restart_of_postgres_gives_everybody_time() {
    let mut cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let (mut slow, mut quick) = two(&place, LONG_LEASE_MS).await;
    slow.stop();
    quick.stop();
    cluster.crash().unwrap();
    tokio::time::sleep(SLEEP).await;
    cluster.start_again().unwrap();
    wake_one_after_the_other(&place, slow, quick).await;
}

#[tokio::test]
async fn a_worker_that_was_buried_claims_nothing_before_its_lease_is_renewed() {
    let place = Place::new().await;
    let mut buried = place.plan().start();
    // Its first claim needs a connection, which takes a moment between the look at the lease and the claim.
    let quick = place.client.enqueue(Five::default()).await.unwrap().id;
    place.client.settled(quick, MINUTE).await.unwrap().unwrap();
    buried.stop();
    // As a reaper does when the lease has run out and nothing is held.
    tokio::time::sleep(SLEEP).await;
    place.sql("delete from %.workers").await;
    let shut = place.hold("lock table %.workers in share mode").await;
    buried.resume();
    // It cannot renew. A claim that was on its way when it fell asleep has found nothing; from now on none may be sent,
    // however often it could look for work.
    buried.says("could not renew the lease", 2).await;
    place
        .client
        .enqueue(Gated::new("gate", Way::Done))
        .await
        .unwrap();
    let tried = buried.said("could not renew the lease");
    buried.says("could not renew the lease", tried + 3).await;
    assert_eq!(
        place
            .count("select count(*) from %.instances where status = 'executing'")
            .await,
        0
    );
    drop(shut);
    place.open("gate", 0);
    place.until_all_settled().await;
}

#[tokio::test]
async fn what_was_claimed_for_a_worker_after_its_burial_is_found_again() {
    let place = Place::new().await;
    let mut doomed = place.plan().start().runs().await;
    place.until_count("select count(*) from %.workers", 1).await;
    // Its claim is under way, and it sleeps; it is thought dead and is buried, since it holds nothing.
    let shut = place
        .hold("lock table %.queues in access exclusive mode")
        .await;
    place
        .client
        .enqueue_all((0..8).map(|_| Gated::new("gate", Way::Done)))
        .await
        .unwrap();
    place.until_claims_wait(1).await;
    doomed.stop();
    place.sql("delete from %.workers").await;
    // Now the claim succeeds, for somebody who is not there and never will be.
    drop(shut);
    place
        .until_count(
            "select count(*) from %.instances where status = 'executing'",
            8,
        )
        .await;
    doomed.kill();
    let _living = place.plan().start();
    place.open("gate", 1);
    place.until_all_settled().await;
    let ended = place
        .sql("select distinct status, attempt, claim_epoch from %.instances")
        .await;
    assert_eq!(ended, [["done", "1", "4"]]);
}

/// Two workers. The first is in the middle of steps; the second has been there for long enough to judge who is dead.
async fn two(place: &Place, lease_ms: u64) -> (Worker, Worker) {
    place
        .client
        .enqueue_all((0..8).map(|_| Gated::new("gate", Way::Done)))
        .await
        .unwrap();
    let first = place.plan().start();
    place.until_done("begin", 8).await;
    let second = place.plan().lease(lease_ms).start();
    let long_there = format!(
        "select count(*) from %.workers where pid = {} and renewed_at > started_at + interval '{} ms'",
        second.pid(),
        lease_ms + 200
    );
    place.until_count(&long_there, 1).await;
    (first, second)
}

/// The quick one is back, and looks for the dead several times, before the slow one has drawn a breath. A lease after
/// that, nobody was taken for dead.
async fn wake_one_after_the_other(place: &Place, mut slow: Worker, mut quick: Worker) {
    let woke = place.sql("select statement_timestamp()").await[0][0].clone();
    let since = |pid: u32, after: &str| {
        format!(
            "select count(*) from %.workers where pid = {pid} and renewed_at > timestamptz '{woke}' + interval '{after}'"
        )
    };
    quick.resume();
    place.until_count(&since(quick.pid(), "0.3 s"), 1).await;
    slow.resume();
    place.until_count(&since(slow.pid(), "2.5 s"), 1).await;
    place.open("gate", 0);
    place.open("gate", 1);
    place.until_all_settled().await;
    let ended = place
        .sql("select distinct status, attempt, crash_count from %.instances")
        .await;
    assert_eq!(ended, [["done", "0", "0"]]);
    assert_eq!(place.done("begin").len(), 8);
}
