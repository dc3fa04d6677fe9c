//! Tests of limits of concurrency: a bound in total and one for each key.

use gen_durable::{Client, SECOND, machine::Limit};

use super::{Calls, Fetch, add, fetch, gated, start, until_use};
use crate::support::{SOON, live};

/// Starts engines that share a limit, enqueues jobs, and waits until all of them are done.
async fn run_all(engines: usize, limits: &[Limit], jobs: Vec<Fetch>) -> Calls {
    let calls = Calls::default();
    let pool = live().await;
    let client = Client::new(pool.clone());
    let running: Vec<_> = (0..engines).map(|_| start(&pool, &calls, limits)).collect();
    for made in client.enqueue_all(jobs).await.unwrap() {
        let settled = client.settled(made.id, SOON).await.unwrap();
        settled.unwrap().result.unwrap();
    }
    for engine in running {
        engine.stop().await;
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_two_engines_stay_within_the_total_and_the_bound_of_each_key() {
    let jobs = (0..300).map(|n| fetch(["acme", "globex", "initech"][n as usize % 3], n));
    let limit = Limit::new("api").at_once(5).per_key(2);
    let calls = run_all(2, &[limit], jobs.collect()).await;
    assert_eq!(calls.count(), 300);
    let (most, most_of_a_key) = calls.most();
    assert!(most <= 5, "{most} steps ran at once");
    assert!(
        most_of_a_key <= 2,
        "{most_of_a_key} steps of a key ran at once"
    );
    assert!(most > 1, "the steps ran one after the other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_two_engines_stay_within_each_of_their_limits() {
    let limits = [Limit::new("api").per_key(3), Limit::new("gpu").at_once(2)];
    let jobs = (0..200).map(|n| Fetch {
        also: vec!["gpu".into()],
        ..fetch(["acme", "globex", "initech"][n as usize % 3], n)
    });
    let calls = run_all(2, &limits, jobs.collect()).await;
    assert_eq!(calls.count(), 200);
    assert!(calls.most().0 <= 2, "{:?} steps ran at once", calls.most());
}

#[tokio::test]
async fn a_full_key_delays_no_other_key_and_its_waiting_instances_begin_in_order() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &calls, &[Limit::new("api").per_key(1)]);
    for n in 0..4 {
        add(&client, gated("acme", n)).await;
    }
    until_use(&client, "api", 1, 3).await;
    add(&client, gated("globex", 10)).await;
    until_use(&client, "api", 2, 3).await;
    for n in 0..4 {
        calls.has_begun(n).await;
        calls.open(n);
    }
    until_use(&client, "api", 1, 0).await;
    assert_eq!(calls.begun(), [0, 10, 1, 2, 3]);
    calls.open(10);
    engine.stop().await;
}

#[tokio::test]
async fn an_instance_takes_all_of_its_limits_or_none_while_one_of_them_is_full() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let limits = [Limit::new("api").at_once(2), Limit::new("gpu").at_once(1)];
    let engine = start(&pool, &calls, &limits);
    let with_gpu = |n| Fetch {
        also: vec!["gpu".into()],
        ..gated("acme", n)
    };
    add(&client, with_gpu(0)).await;
    calls.has_begun(0).await;
    add(&client, with_gpu(1)).await;
    until_use(&client, "gpu", 1, 1).await;
    // Instance 1 waits for "gpu" and holds nothing of "api".
    add(&client, gated("acme", 2)).await;
    calls.has_begun(2).await;
    until_use(&client, "api", 2, 1).await;
    // The end of instance 2 frees "api" and not "gpu"; the end of instance 0 frees both.
    calls.open(2);
    until_use(&client, "api", 1, 1).await;
    assert_eq!(calls.begun(), [0, 2]);
    calls.open(0);
    calls.has_begun(1).await;
    calls.open(1);
    until_use(&client, "gpu", 0, 0).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_waiting_instance_that_is_cancelled_frees_nothing_and_a_running_one_when_its_step_ends() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &calls, &[Limit::new("api").at_once(1)]);
    let running = add(&client, gated("acme", 0)).await;
    calls.has_begun(0).await;
    let waiting = add(&client, gated("acme", 1)).await;
    add(&client, fetch("acme", 2)).await;
    until_use(&client, "api", 1, 2).await;
    client.cancel(waiting, "no longer wanted").await.unwrap();
    until_use(&client, "api", 1, 1).await;
    // The step of the cancelled instance still runs, so it keeps its slot.
    client.cancel(running, "no longer wanted").await.unwrap();
    until_use(&client, "api", 1, 1).await;
    assert_eq!(calls.begun(), [0]);
    calls.open(0);
    calls.has_begun(2).await;
    assert_eq!(calls.most().0, 1);
    engine.stop().await;
}

#[tokio::test]
async fn a_stopping_worker_leaves_its_slots_to_the_others_at_once() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let limits = [Limit::new("api").at_once(1)];
    let first = start(&pool, &calls, &limits);
    add(&client, gated("acme", 0)).await;
    calls.has_begun(0).await;
    add(&client, fetch("acme", 1)).await;
    until_use(&client, "api", 1, 1).await;
    let stopping = tokio::spawn(first.stop());
    let second = start(&pool, &calls, &limits);
    calls.open(0);
    calls.has_begun(1).await;
    stopping.await.unwrap();
    second.stop().await;
}

#[tokio::test]
async fn a_step_of_an_undeclared_limit_is_set_aside_with_an_explanation() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &calls, &[]);
    let id = add(&client, fetch("acme", 0)).await;
    crate::support::eventually("the instance is stuck", async || {
        let row = client.inspect().show(id.raw()).await.unwrap().unwrap();
        let why = row.last_error.unwrap_or_default();
        why.contains("the limit \"api\", which this engine has not registered")
    })
    .await;
    assert_eq!(calls.count(), 0);
    engine.stop().await;
    let unknown = client.operate().pause_limit("api").await.unwrap_err();
    assert!(unknown.to_string().contains("api"), "{unknown}");
    let unknown = client.limit("api").close_for(SECOND).await.unwrap_err();
    assert!(unknown.to_string().contains("api"), "{unknown}");
}
