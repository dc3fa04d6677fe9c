//! Tests of steps that crash their worker process.

use gen_durable::MINUTE;

use super::{
    machines::{FirstRun, Five, Gated, Killer},
    place::{Place, until},
};

#[tokio::test]
async fn an_instance_that_crashes_its_worker_is_stuck_after_three_crashes_and_all_others_settle() {
    let place = Place::new().await;
    let others = 150;
    let killer = place.client.enqueue(Killer).await.unwrap().id;
    place
        .client
        .enqueue_all((0..others).map(|_| Five::default()))
        .await
        .unwrap();
    let mut plan = place.plan();
    plan.pause_ms = 20;
    let mut workers: Vec<_> = (0..4).map(|_| plan.start()).collect();
    let mut crashes = 0;
    until("every instance is done or stuck", async || {
        for worker in &mut workers {
            if worker.ended().is_some() {
                crashes += 1;
                // The test starts a new worker after each crash, as a supervisor does.
                *worker = plan.start();
            }
        }
        assert!(crashes <= 3, "{crashes} crashes");
        place
            .count("select count(*) from %.instances where status not in ('done', 'stuck')")
            .await
            == 0
    })
    .await;
    assert_eq!(crashes, 3);
    let ended = place
        .sql(
            "select machine, status, last_error, count(*) from %.instances group by 1, 2, 3 order by 1",
        )
        .await;
    let error = "the worker crashed 3 times while it ran the step".to_owned();
    assert_eq!(
        ended[0],
        [
            "five".into(),
            "done".into(),
            "null".into(),
            others.to_string()
        ]
    );
    assert_eq!(
        ended[1..],
        [["killer".into(), "stuck".into(), error, "1".to_owned()]]
    );
    // A retry by an operator resets `crash_count` of the instance.
    let operate = place.client.operate();
    drop(workers);
    operate.retry(killer.raw()).await.unwrap();
    let again = place
        .sql("select attempt, crash_count from %.instances where machine = 'killer'")
        .await;
    assert_eq!(again, [["0", "0"]]);
}

#[tokio::test]
async fn an_instance_counts_no_crash_if_its_step_had_not_begun_when_the_worker_was_killed() {
    let place = Place::new().await;
    place
        .client
        .enqueue(Gated::new("gate", FirstRun::Done))
        .await
        .unwrap();
    // A worker has crashed with this instance before, so the engine writes `begun_epoch` when the
    // step begins. A trigger makes this write wait for an advisory lock that the test holds.
    place
        .sql("update %.instances set crash_count = 1, attempt = 1")
        .await;
    place
        .sql(
            "create function %.waits() returns trigger language plpgsql as
                'begin perform pg_advisory_xact_lock(hashtext(tg_table_schema)); return new; end';
             create trigger waits before update of begun_epoch on %.instances for each row execute function %.waits()",
        )
        .await;
    let held = place
        .hold("select pg_advisory_xact_lock(hashtext('%'))")
        .await;
    let killed = place.plan().start();
    let waiting =
        "from pg_stat_activity where wait_event = 'advisory' and position('%.' in query) > 0";
    place
        .until_count(&format!("select count(*) {waiting}"), 1)
        .await;
    killed.kill();
    place
        .sql(&format!("select pg_terminate_backend(pid) {waiting}"))
        .await;
    place
        .until_count(&format!("select count(*) {waiting}"), 0)
        .await;
    place.sql("drop trigger waits on %.instances").await;
    drop(held);
    assert!(place.done("begin").is_empty());

    let _living = place.plan().start();
    place.until_done("begin", 1).await;
    let row = place
        .sql("select attempt, crash_count, begun_epoch = claim_epoch from %.instances")
        .await;
    assert_eq!(row, [["1", "1", "t"]]);
    place.open("gate", 1);
    place.until_all_settled().await;
}

#[tokio::test]
async fn an_expired_worker_is_reaped_even_if_every_other_worker_crashes_within_one_lease_period() {
    let place = Place::new().await;
    let plan = place.plan().lease(4_000);
    place
        .client
        .enqueue_all((0..8).map(|_| Gated::new("gate", FirstRun::Done)))
        .await
        .unwrap();
    let expired = plan.start();
    place.until_done("begin", 8).await;
    expired.kill();
    let reaped = "select count(*) from %.instances where attempt > 0";
    until("a short-lived worker has reaped", async || {
        let worker = plan.start().runs().await;
        let age = format!(
            "select count(*) from %.workers where pid = {} and {}",
            worker.pid(),
            "clock_timestamp() - started_at > interval '1.5 s'"
        );
        until("the worker has lived for 1.5 s or has reaped", async || {
            place.count(&age).await == 1 || place.count(reaped).await == 8
        })
        .await;
        worker.kill();
        place.count(reaped).await == 8
    })
    .await;
}

#[tokio::test]
async fn a_worker_logs_a_failed_instance_with_its_machine_step_attempt_and_error() {
    let place = Place::new().await;
    let worker = place.plan().start();
    place.open("gate", 0);
    let id = place
        .client
        .enqueue(Gated::new("gate", FirstRun::Fail))
        .await
        .unwrap()
        .id;
    worker
        .says(
            &format!("instance {id} of gated failed for good at step wait: the first run said so"),
            1,
        )
        .await;
    let fields = format!(
        "machine=\"gated\" id={id} step=\"wait\" attempt=0 error=\"the first run said so\""
    );
    assert_eq!(worker.said(&fields), 1);
}

#[tokio::test]
async fn a_worker_never_runs_two_suspect_instances_at_the_same_time() {
    let place = Place::new().await;
    // The test sets both instances to suspects, with two crashes each. Only the step of `Killer`
    // causes crashes.
    place
        .client
        .enqueue(Gated::new("gate", FirstRun::Done))
        .await
        .unwrap();
    place.client.enqueue(Killer).await.unwrap();
    place
        .sql("update %.instances set crash_count = 2, attempt = 2")
        .await;
    let mut worker = place.plan().start();
    place.until_done("begin", 1).await;
    // The worker claims and runs a third instance while the first suspect runs. So the worker has
    // picked since the first suspect began, and it has not begun the second suspect.
    let other = place.client.enqueue(Five::default()).await.unwrap().id;
    place.client.settled(other, MINUTE).await.unwrap().unwrap();
    assert!(
        place
            .done("begin")
            .iter()
            .all(|effect| effect.step != "run"),
        "two suspects run concurrently"
    );
    // The worker begins the second suspect when the first suspect has settled, so a crash during
    // the second suspect counts only for the second suspect.
    place.open("gate", 2);
    place
        .until_count("select count(*) from %.instances where status = 'done'", 2)
        .await;
    worker.ends().await;
    let _next = place.plan().start();
    place
        .until_count("select count(*) from %.instances where status = 'stuck'", 1)
        .await;
    let ended = place
        .sql("select machine, status, attempt from %.instances where machine <> 'five' order by id")
        .await;
    assert_eq!(ended, [["gated", "done", "2"], ["killer", "stuck", "3"]]);
}
