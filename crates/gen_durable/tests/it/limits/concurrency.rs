//! Tests of limits of concurrency: a bound in total and one for each key.

use std::{sync::Arc, time::Duration};

use gen_durable::{Engine, Limit, inspect::Status, testing::Lab};

use super::{Calls, Fetch, fetch};

/// Starts engines that share a limit, enqueues jobs, and waits until all of them are done.
async fn run_all(engines: usize, limit: Limit, jobs: Vec<Fetch>) -> Calls {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone()).await;
    let stop = Arc::new(tokio::sync::Notify::new());
    let running: Vec<_> = (0..engines)
        .map(|_| {
            let engine = Engine::builder(lab.pool().clone(), calls.clone())
                .register::<Fetch>()
                .limit(limit.clone())
                .build()
                .unwrap();
            let stop = stop.clone();
            tokio::spawn(engine.run(async move { stop.notified().await }))
        })
        .collect();
    for made in lab.enqueue_all(jobs).await.unwrap() {
        lab.settled(made.id, Duration::from_secs(60))
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap();
    }
    stop.notify_waiters();
    for engine in running {
        engine.await.unwrap().unwrap();
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_two_engines_stay_within_the_total_and_the_bound_of_each_key() {
    let jobs = (0..300).map(|n| fetch(["acme", "globex", "initech"][n as usize % 3], n));
    let limit = Limit::new("api").at_once(5).per_key(2);
    let calls = run_all(2, limit, jobs.collect()).await;
    assert_eq!(calls.count(), 300);
    let (most, most_of_a_key) = calls.most();
    assert!(most <= 5, "{most} steps ran at once");
    assert!(
        most_of_a_key <= 2,
        "{most_of_a_key} steps of a key ran at once"
    );
    assert!(most > 1, "the steps ran one after the other");
}

#[tokio::test]
async fn a_full_key_does_not_delay_other_keys_and_its_waiting_instances_run_in_order() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone())
        .await
        .register::<Fetch>()
        .limit(Limit::new("api").at_once(100).per_key(1));
    let jobs = (0..5).map(|n| fetch("acme", n)).chain([fetch("globex", 0)]);
    let ids: Vec<_> = lab.enqueue_all(jobs).await.unwrap();
    // The first pick begins one step of each key. The other instances wait for the limit.
    lab.step().await;
    let statuses = async || {
        let mut statuses = Vec::new();
        for made in &ids {
            statuses.push(lab.status_of(made.id).await);
        }
        statuses
    };
    let waiting = statuses().await;
    assert_eq!(
        waiting
            .iter()
            .filter(|status| **status == Status::AwaitingLimit)
            .count(),
        4,
        "{waiting:?}"
    );
    lab.drain().await;
    assert!(
        statuses()
            .await
            .iter()
            .all(|status| *status == Status::Done)
    );
    let starts = calls.starts();
    let acme: Vec<u64> = starts
        .iter()
        .filter(|(key, _)| key == "acme")
        .map(|(_, n)| *n)
        .collect();
    assert_eq!(acme, [0, 1, 2, 3, 4]);
}
