//! Tests in which Postgres is unavailable for longer than the lease of the workers, and then
//! available again. The worker processes keep running during the outage.

use std::time::Duration;

use super::{
    machines::{FirstRun, Gated},
    place::Place,
    server::{Frozen, own_cluster},
    worker::Worker,
};

/// The length of an outage of Postgres, which is longer than the lease of 1.5 s by the clock of the
/// worker and by the clock of the server.
const OUTAGE: Duration = Duration::from_millis(3_500);
/// The number of steps that each of the two workers runs when the outage begins.
const EACH: usize = 10;

#[tokio::test]
async fn after_a_crash_of_postgres_no_step_of_a_live_worker_runs_twice() {
    let mut cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let workers = workers_in_the_middle_of_steps(&place).await;
    cluster.crash().unwrap();
    wait_out_the_outage(&place, &workers).await;
    cluster.start_again().unwrap();
    wait_until_reapers_may_reap(&place, 2).await;
    assert_nothing_ran_twice(&place).await;
}

#[tokio::test]
async fn after_a_suspension_of_postgres_no_step_of_a_live_worker_runs_twice() {
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let workers = workers_in_the_middle_of_steps(&place).await;
    let frozen = Frozen::freeze(&cluster);
    wait_out_the_outage(&place, &workers).await;
    frozen.thaw();
    wait_until_reapers_may_reap(&place, 2).await;
    assert_nothing_ran_twice(&place).await;
}

#[tokio::test]
async fn after_an_outage_of_postgres_only_the_steps_of_a_worker_killed_during_the_outage_run_again()
{
    let mut cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let [killed, living] = workers_in_the_middle_of_steps(&place).await;
    cluster.crash().unwrap();
    let killed_pid = killed.pid();
    killed.kill();
    tokio::time::sleep(OUTAGE).await;
    cluster.start_again().unwrap();

    // Each step of the killed worker runs a second time, and no other step runs a second time.
    place.until_done("begin", 3 * EACH).await;
    let begun = place.done("begin");
    let (first, again) = begun.split_at(2 * EACH);
    let mut held: Vec<i64> = first
        .iter()
        .filter(|effect| effect.pid == killed_pid)
        .map(|effect| effect.instance)
        .collect();
    let mut reaped: Vec<i64> = again.iter().map(|effect| effect.instance).collect();
    held.sort_unstable();
    reaped.sort_unstable();
    assert_eq!(reaped, held);
    assert!(again.iter().all(|effect| effect.attempt == 1), "{again:?}");
    for (gate, attempt) in [("during", 0), ("during", 1), ("after", 0), ("after", 1)] {
        place.open(gate, attempt);
    }
    place.until_all_settled().await;
    assert_eq!(place.done("begin").len(), 3 * EACH);
    let ended = place
        .sql("select status, attempt, crash_count, count(*)::int from %.instances group by 1, 2, 3 order by 2")
        .await;
    let each = EACH.to_string();
    assert_eq!(
        ended,
        [["done", "0", "0", &each], ["done", "1", "0", &each]]
    );
    drop(living);
}

/// Starts two workers and waits until each worker is in the middle of steps. Half of the steps can
/// end during the outage, the other half only after the outage.
async fn workers_in_the_middle_of_steps(place: &Place) -> [Worker; 2] {
    let mut plan = place.plan();
    let mut started = Vec::new();
    for number in 1..=2 {
        let gates = ["during", "after"].into_iter().cycle().take(EACH);
        place
            .client
            .enqueue_all(gates.map(|gate| Gated::new(gate, FirstRun::Done)))
            .await
            .unwrap();
        // The first worker has slots only for its own steps. The second worker has slots for the
        // steps of both workers.
        plan.slots = number * EACH;
        started.push(plan.start());
        place.until_done("begin", number * EACH).await;
    }
    started.try_into().unwrap_or_else(|_| unreachable!())
}

/// Waits for the length of the outage, which is longer than the lease, and then lets half of the
/// steps end during the outage.
async fn wait_out_the_outage(place: &Place, workers: &[Worker]) {
    tokio::time::sleep(OUTAGE).await;
    for worker in workers {
        worker
            .says("the lease has expired by the local clock", 1)
            .await;
    }
    place.open("during", 0);
    place.until_done("end", EACH).await;
}

/// Waits until every worker has renewed its lease for longer than the time for which a reaper
/// pauses after an outage.
async fn wait_until_reapers_may_reap(place: &Place, workers: i64) {
    let back = &place.sql("select statement_timestamp()").await[0][0];
    let renewed = format!(
        "select count(*) from %.workers where renewed_at > timestamptz '{back}' + interval '2.3 s'"
    );
    place.until_count(&renewed, workers).await;
}

/// Asserts that the workers have committed the steps that ended during the outage, that the other
/// steps still run, that no step began a second time, that no reaper took a claim, and that no
/// instance counts an attempt.
async fn assert_nothing_ran_twice(place: &Place) {
    place
        .until_count(
            "select count(*) from %.instances where status = 'done'",
            EACH as i64,
        )
        .await;
    place.open("after", 0);
    place.until_all_settled().await;
    assert_eq!(place.done("begin").len(), 2 * EACH);
    assert_eq!(place.done("end").len(), 2 * EACH);
    let ended = place
        .sql("select distinct status, attempt, crash_count from %.instances")
        .await;
    assert_eq!(ended, [["done", "0", "0"]]);
}
