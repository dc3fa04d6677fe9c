//! Tests of workers that the test kills with SIGKILL, as `kill -9` or the kernel does.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{
    kill_test::KillTest,
    machines::{FirstRun, Gated},
    place::Place,
};

#[tokio::test]
async fn instances_claimed_by_a_killed_worker_run_again_within_one_lease_and_one_reap_interval() {
    let place = Place::new().await;
    let plan = place.plan();
    place
        .client
        .enqueue_all((0..8).map(|_| Gated::new("gate", FirstRun::Done)))
        .await
        .unwrap();
    let killed = plan.start();
    place.until_done("begin", 8).await;
    let living = plan.start();
    // The test waits until the live worker has held its lease for one lease period. The reaper of a
    // younger worker also requires that the workers together were in contact with the database for
    // one lease period.
    let in_contact = format!(
        "select count(*) from %.workers where pid = {} and renewed_at > started_at + interval '{} ms'",
        living.pid(),
        plan.lease_ms + 200
    );
    place.until_count(&in_contact, 1).await;

    let killed_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    killed.kill();
    place.until_done("begin", 16).await;
    let again = place
        .done("begin")
        .iter()
        .filter(|effect| effect.pid == living.pid())
        .map(|effect| effect.unix_ms)
        .max();
    let took_ms = again.unwrap() - killed_ms;
    let slack_ms = 1_000;
    assert!(
        took_ms <= plan.lease_ms + plan.reap_ms + slack_ms,
        "{took_ms} ms"
    );

    place.open("gate", 1);
    place.until_all_settled().await;
    let ended = place
        .sql("select distinct status, attempt, claim_epoch, step_seq from %.instances")
        .await;
    assert_eq!(ended, [["done", "1", "4", "1"]]);
}

/// The test runs at a reduced size. For the full size set `DURABLE_KILLS=200
/// DURABLE_INSTANCES=20000`.
#[tokio::test]
async fn all_instances_settle_with_each_step_committed_once_while_workers_are_killed() {
    let number = |name: &str, default: usize| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let place = Place::new().await;
    // The lease is longer than any pause of a live worker on a busy computer: if the lease of a
    // live worker expired, the reaper would count a crash.
    let mut plan = place.plan().lease(3_000);
    (plan.slots, plan.pause_ms) = (16, 5);
    let kill_test = KillTest {
        instances: number("DURABLE_INSTANCES", 2_000),
        kills: number("DURABLE_KILLS", 20),
        workers: 4,
    };
    let report = kill_test.run(&place, &plan).await;
    println!("{report}");
    assert!(
        report.executions > report.commits,
        "no kill hit a step: {report:?}"
    );
}
