//! Tests of a large group of workers of which almost all have ended or stand still, while their
//! leases are still valid: the others share the polls of the group as before, and must find work.

use super::{
    machines::Five,
    place::{Place, until},
    worker::{Plan, Worker},
};

/// The number of rows of workers that no longer run. A worker that polled only once in the poll
/// intervals of so many workers would poll every two minutes.
const ENDED: i64 = 20_000;

/// Starts real workers, and adds rows of ended workers with valid leases that could claim the same
/// instances. Returns after every real worker has counted the group.
async fn start_group(place: &Place, workers: usize) -> Vec<Worker> {
    // The leases stay valid for the whole test.
    let plan = Plan {
        heartbeat_ms: 300,
        ..place.plan().lease(600_000)
    };
    let workers: Vec<Worker> = (0..workers).map(|_| plan.start()).collect();
    let rows = "select count(*) from %.workers";
    place.until_count(rows, workers.len() as i64).await;
    place
        .sql(&format!(
            "insert into %.workers (id, lease_expires_at, host, pid, queues, machines, steps)
             select lpad(n::text, 32, '0')::uuid, w.lease_expires_at, 'ended', 0, w.queues, w.machines, w.steps
             from (select * from %.workers limit 1) w, generate_series(1, {ENDED}) as n"
        ))
        .await;
    // A worker records that it has found work when it counts its group.
    place
        .sql("update %.workers set found_work_at = '-infinity'")
        .await;
    until("all workers have counted the group", async || {
        place.client.enqueue(Five { count: 0 }).await.unwrap();
        let counted = "select count(*) from %.workers where found_work_at > '-infinity'";
        place.count(counted).await == workers.len() as i64
    })
    .await;
    place.until_all_settled().await;
    workers
}

/// Enqueues an instance and waits until it has settled, by the only worker that still runs.
async fn assert_found(place: &Place, workers: usize) {
    place.client.enqueue(Five { count: 0 }).await.unwrap();
    place.until_all_settled().await;
    let valid = "select count(*) from %.workers where lease_expires_at > statement_timestamp()";
    assert_eq!(
        place.count(valid).await,
        ENDED + workers as i64,
        "no lease had to expire"
    );
}

#[tokio::test]
async fn the_last_worker_of_a_group_finds_work_after_all_other_workers_were_killed() {
    let place = Place::new().await;
    let mut workers = start_group(&place, 3).await;
    let last = workers.pop().unwrap();
    workers.into_iter().for_each(Worker::kill);
    assert_found(&place, 3).await;
    drop(last);
}

#[tokio::test]
async fn the_last_worker_of_a_group_finds_work_while_all_other_workers_are_suspended() {
    let place = Place::new().await;
    let mut workers = start_group(&place, 3).await;
    workers[1..].iter_mut().for_each(Worker::stop);
    assert_found(&place, 3).await;
    workers[1..].iter_mut().for_each(Worker::resume);
}
