//! Workers that are killed, as by `kill -9` or by the kernel.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{
    machines::{Gated, Way},
    place::Place,
    torture::Torture,
};

#[tokio::test]
async fn what_a_dead_worker_held_runs_again_within_a_lease_and_a_reap() {
    let place = Place::new().await;
    let plan = place.plan();
    place
        .client
        .enqueue_all((0..8).map(|_| Gated::new("gate", Way::Done)))
        .await
        .unwrap();
    let dead = plan.start();
    place.until_done("begin", 8).await;
    let living = plan.start();
    // A worker reaps nobody before it has itself been in contact for a lease.
    let in_contact = format!(
        "select count(*) from %.workers where pid = {} and renewed_at > started_at + interval '{} ms'",
        living.pid(),
        plan.lease_ms + 200
    );
    place.until_count(&in_contact, 1).await;

    let died_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    dead.kill();
    place.until_done("begin", 16).await;
    let again = place
        .done("begin")
        .iter()
        .filter(|effect| effect.pid == living.pid())
        .map(|effect| effect.unix_ms)
        .max();
    let took_ms = again.unwrap() - died_ms;
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

/// By command, the full measure: `DURABLE_KILLS=200 DURABLE_INSTANCES=20000`.
#[tokio::test]
async fn instances_survive_the_killing_of_their_workers() {
    let number =
        |name: &str, usual: usize| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let place = Place::new().await;
    // Longer than a living worker is ever silent on a busy machine: a lease lost without a death would count as one.
    let mut plan = place.plan().lease(3_000);
    (plan.slots, plan.pause_ms) = (16, 5);
    let torture = Torture {
        instances: number("DURABLE_INSTANCES", 2_000),
        kills: number("DURABLE_KILLS", 20),
        workers: 4,
    };
    let report = torture.run(&place, &plan).await;
    println!("{report}");
    assert!(
        report.executions > report.transitions,
        "no kill hit a step: {report:?}"
    );
}
