//! A Postgres that goes away for longer than the lease, and comes back. Its workers lived.

use std::time::Duration;

use super::{
    machines::{Gated, Way},
    place::Place,
    server::{Frozen, own_cluster},
    worker::Worker,
};

/// How long the outages here take: longer than the lease of a second and a half, by the server's clock too.
const OUTAGE: Duration = Duration::from_millis(3_500);
/// How many steps each of the two workers is in the middle of.
const EACH: usize = 10;

#[tokio::test]
async fn after_a_crash_of_postgres_no_step_of_a_living_worker_runs_twice() {
    let mut cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let workers = in_the_middle(&place).await;
    cluster.crash().unwrap();
    sit_out(&place, &workers).await;
    cluster.start_again().unwrap();
    reapers_have_looked(&place, 2).await;
    nothing_ran_twice(&place).await;
}

#[tokio::test]
async fn after_postgres_stood_still_no_step_of_a_living_worker_runs_twice() {
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let workers = in_the_middle(&place).await;
    let frozen = Frozen::freeze(&cluster);
    sit_out(&place, &workers).await;
    frozen.thaw();
    reapers_have_looked(&place, 2).await;
    nothing_ran_twice(&place).await;
}

#[tokio::test]
async fn after_an_outage_only_what_a_worker_that_died_in_it_held_runs_again() {
    let mut cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let [dead, living] = in_the_middle(&place).await;
    cluster.crash().unwrap();
    let dead_pid = dead.pid();
    dead.kill();
    tokio::time::sleep(OUTAGE).await;
    cluster.start_again().unwrap();

    // The dead one's steps, once each, and nobody else's.
    place.until_done("begin", 3 * EACH).await;
    let begun = place.done("begin");
    let (first, again) = begun.split_at(2 * EACH);
    let mut held: Vec<i64> = first
        .iter()
        .filter(|effect| effect.pid == dead_pid)
        .map(|effect| effect.instance)
        .collect();
    let mut taken: Vec<i64> = again.iter().map(|effect| effect.instance).collect();
    held.sort_unstable();
    taken.sort_unstable();
    assert_eq!(taken, held);
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

/// Two workers, each in the middle of steps: half of those can end during the outage, half only after it.
async fn in_the_middle(place: &Place) -> [Worker; 2] {
    let mut plan = place.plan();
    let mut started = Vec::new();
    for number in 1..=2 {
        let gates = ["during", "after"].into_iter().cycle().take(EACH);
        place
            .client
            .enqueue_all(gates.map(|gate| Gated::new(gate, Way::Done)))
            .await
            .unwrap();
        // The first has room for its own, the second could take over everything.
        plan.slots = number * EACH;
        started.push(plan.start());
        place.until_done("begin", number * EACH).await;
    }
    started.try_into().unwrap_or_else(|_| unreachable!())
}

/// The outage: its length is what is tried, so it is not cut short.
async fn sit_out(place: &Place, workers: &[Worker]) {
    tokio::time::sleep(OUTAGE).await;
    for worker in workers {
        worker.says("the lease ran out by our own clock", 1).await;
    }
    place.open("during", 0);
    place.until_done("end", EACH).await;
}

/// Wait until every worker has been back for longer than a reaper keeps still after an outage.
async fn reapers_have_looked(place: &Place, workers: i64) {
    let back = &place.sql("select statement_timestamp()").await[0][0];
    let renewed = format!(
        "select count(*) from %.workers where renewed_at > timestamptz '{back}' + interval '2.3 s'"
    );
    place.until_count(&renewed, workers).await;
}

/// Those that ended during the outage are committed, those that could not yet end are still where they were, and none
/// was begun a second time, reaped or blamed.
async fn nothing_ran_twice(place: &Place) {
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
