//! Tests of workers that the test suspends with SIGSTOP. During the suspension the test restarts
//! Postgres, suspends all processes as a suspended computer does, or deletes the row of the worker
//! in `workers`.

use std::time::Duration;

use gen_durable::MINUTE;

use super::{
    machines::{FirstRun, Five, Gated},
    place::Place,
    server::{Frozen, own_cluster},
    worker::Worker,
};

/// The time for which the test suspends a worker, which is longer than the lease of 1.5 s.
const SLEEP: Duration = Duration::from_millis(2_500);
/// A lease that is longer than `SLEEP`.
const LONG_LEASE_MS: u64 = 5_000;

#[tokio::test]
async fn after_a_suspension_of_the_whole_computer_the_first_worker_to_resume_reaps_no_other_worker()
{
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let (mut slow, mut quick) = two(&place, 1_500).await;
    slow.stop();
    quick.stop();
    let frozen = Frozen::freeze(&cluster);
    // The sleep must be longer than the lease, so that the lease of the worker expires.
    tokio::time::sleep(SLEEP).await;
    frozen.thaw();
    wake_one_after_the_other(&place, slow, quick).await;
}

#[tokio::test]
async fn a_worker_with_a_lease_that_outlasted_a_database_outage_waits_before_it_reaps_others() {
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let (mut slow, quick) = two(&place, LONG_LEASE_MS).await;
    // The test suspends the server before the worker `slow`, because a worker that does not renew
    // its lease while the server runs expires.
    let frozen = Frozen::freeze(&cluster);
    slow.stop();
    tokio::time::sleep(SLEEP).await;
    quick.says("could not renew the lease", 1).await;
    frozen.thaw();
    assert_eq!(quick.said("the lease has expired"), 0);
    wake_one_after_the_other(&place, slow, quick).await;
}

#[tokio::test]
async fn a_worker_that_was_suspended_during_a_restart_of_postgres_waits_before_it_reaps_others() {
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
async fn a_worker_with_a_deleted_row_in_workers_claims_no_instance_before_it_renews_its_lease() {
    let place = Place::new().await;
    let mut worker = place.plan().start();
    // The test lets the worker make its first claim before it suspends the worker. The first claim
    // opens a connection, which takes time between the check of the lease and the claim.
    let quick = place.client.enqueue(Five::default()).await.unwrap().id;
    place.client.settled(quick, MINUTE).await.unwrap().unwrap();
    worker.stop();
    // The test deletes the row of the worker in `workers`, as a reaper does when the lease has
    // expired and the worker holds no claims.
    tokio::time::sleep(SLEEP).await;
    place.sql("delete from %.workers").await;
    let lock = place.hold("lock table %.workers in share mode").await;
    worker.resume();
    // The worker cannot renew its lease, because the test holds a `share` lock on the table
    // `workers`. A pick that the worker sent before the test suspended it has found no instance.
    // From now on the worker must not send any pick, however often it could poll.
    worker.says("could not renew the lease", 2).await;
    place
        .client
        .enqueue(Gated::new("gate", FirstRun::Done))
        .await
        .unwrap();
    let tried = worker.said("could not renew the lease");
    worker.says("could not renew the lease", tried + 3).await;
    assert_eq!(
        place
            .count("select count(*) from %.instances where status = 'executing'")
            .await,
        0
    );
    drop(lock);
    place.open("gate", 0);
    place.until_all_settled().await;
}

#[tokio::test]
async fn claims_made_after_the_row_of_their_worker_was_deleted_are_reaped() {
    let place = Place::new().await;
    let mut killed = place.plan().start().runs().await;
    place.until_count("select count(*) from %.workers", 1).await;
    // The pick of the worker waits for the table `limit_locks`, on which the test holds an `access
    // exclusive` lock, while the worker is suspended. The test deletes the row of the worker in
    // `workers`, as a reaper does with an expired worker that holds no claims.
    let lock = place
        .hold("lock table %.limit_locks in access exclusive mode")
        .await;
    place
        .client
        .enqueue_all((0..8).map(|_| Gated::new("gate", FirstRun::Done)))
        .await
        .unwrap();
    place.until_claims_wait(1).await;
    killed.stop();
    place.sql("delete from %.workers").await;
    // The test releases the table lock. The pick succeeds, for a worker that has no row in
    // `workers` and that the test will kill.
    drop(lock);
    place
        .until_count(
            "select count(*) from %.instances where status = 'executing'",
            8,
        )
        .await;
    killed.kill();
    let _living = place.plan().start();
    place.open("gate", 1);
    place.until_all_settled().await;
    let ended = place
        .sql("select distinct status, attempt, claim_epoch from %.instances")
        .await;
    assert_eq!(ended, [["done", "1", "4"]]);
}

/// Starts two workers. The first worker is in the middle of eight steps. The second worker has held
/// its lease for long enough to reap expired workers.
async fn two(place: &Place, lease_ms: u64) -> (Worker, Worker) {
    place
        .client
        .enqueue_all((0..8).map(|_| Gated::new("gate", FirstRun::Done)))
        .await
        .unwrap();
    let first = place.plan().start();
    place.until_done("begin", 8).await;
    let second = place.plan().lease(lease_ms).start();
    let may_reap = format!(
        "select count(*) from %.workers where pid = {} and renewed_at > started_at + interval '{} ms'",
        second.pid(),
        lease_ms + 200
    );
    place.until_count(&may_reap, 1).await;
    (first, second)
}

/// Resumes the worker `quick` first, so that its reaper runs several times before the worker `slow`
/// can renew its lease. Asserts that no reaper reaps a claim of either worker.
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
