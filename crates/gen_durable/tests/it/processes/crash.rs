//! Steps that take their process with them.

use gen_durable::MINUTE;

use super::{
    machines::{Five, Gated, Killer, Way},
    place::{Place, until},
};

#[tokio::test]
async fn a_step_that_kills_its_worker_is_set_aside_after_three_deaths_and_all_others_settle() {
    let place = Place::new().await;
    let innocents = 150;
    let killer = place.client.enqueue(Killer).await.unwrap().id;
    place
        .client
        .enqueue_all((0..innocents).map(|_| Five::default()))
        .await
        .unwrap();
    let mut plan = place.plan();
    plan.pause_ms = 20;
    let mut workers: Vec<_> = (0..4).map(|_| plan.start()).collect();
    let mut deaths = 0;
    until("every instance has settled or is set aside", async || {
        for worker in &mut workers {
            if worker.ended().is_some() {
                deaths += 1;
                // A supervisor does not ask why.
                *worker = plan.start();
            }
        }
        assert!(deaths <= 3, "{deaths} deaths");
        place
            .count("select count(*) from %.instances where status not in ('done', 'stuck')")
            .await
            == 0
    })
    .await;
    assert_eq!(deaths, 3);
    let ended = place
        .sql(
            "select fsm, status, last_error, count(*) from %.instances group by 1, 2, 3 order by 1",
        )
        .await;
    let died = "its worker died 3 times while it ran".to_owned();
    assert_eq!(
        ended[0],
        [
            "five".into(),
            "done".into(),
            "null".into(),
            innocents.to_string()
        ]
    );
    assert_eq!(
        ended[1..],
        [["killer".into(), "stuck".into(), died, "1".to_owned()]]
    );
    // An operator's retry begins the count anew.
    let operate = place.client.operate();
    drop(workers);
    operate.retry(killer.raw(), None).await.unwrap();
    let again = place
        .sql("select attempt, crash_count from %.instances where fsm = 'killer'")
        .await;
    assert_eq!(again, [["0", "0"]]);
}

#[tokio::test]
async fn a_row_that_had_not_begun_when_its_worker_was_killed_is_returned_without_blame() {
    let place = Place::new().await;
    place
        .client
        .enqueue(Gated::new("gate", Way::Done))
        .await
        .unwrap();
    // A worker has died with it before, so that the beginning of its step is recorded. The record waits for a lock.
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
async fn workers_that_each_die_before_they_are_one_lease_old_take_back_what_a_dead_worker_held() {
    let place = Place::new().await;
    let plan = place.plan().lease(4_000);
    place
        .client
        .enqueue_all((0..8).map(|_| Gated::new("gate", Way::Done)))
        .await
        .unwrap();
    let dead = plan.start();
    place.until_done("begin", 8).await;
    dead.kill();
    let reaped = "select count(*) from %.instances where attempt > 0";
    until("a short-lived worker has reaped", async || {
        let worker = plan.start().runs().await;
        let age = format!(
            "select count(*) from %.workers where pid = {} and {}",
            worker.pid(),
            "clock_timestamp() - started_at > interval '1.5 s'"
        );
        until("it is old enough to die", async || {
            place.count(&age).await == 1 || place.count(reaped).await == 8
        })
        .await;
        worker.kill();
        place.count(reaped).await == 8
    })
    .await;
}

#[tokio::test]
async fn an_instance_that_fails_for_good_is_logged_with_its_machine_step_attempt_and_error() {
    let place = Place::new().await;
    let worker = place.plan().start();
    place.open("gate", 0);
    let id = place
        .client
        .enqueue(Gated::new("gate", Way::Stop))
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
async fn two_suspects_never_share_a_process() {
    let place = Place::new().await;
    // Two that were each there when a process died, twice; one of them did it.
    place
        .client
        .enqueue(Gated::new("gate", Way::Done))
        .await
        .unwrap();
    place.client.enqueue(Killer).await.unwrap();
    place
        .sql("update %.instances set crash_count = 2, attempt = 2")
        .await;
    let mut worker = place.plan().start();
    place.until_done("begin", 1).await;
    // Others go on beside the suspect, so the worker has looked for more; the second suspect has not begun.
    let other = place.client.enqueue(Five::default()).await.unwrap().id;
    place.client.settled(other, MINUTE).await.unwrap().unwrap();
    assert!(
        place
            .done("begin")
            .iter()
            .all(|effect| effect.step != "run"),
        "two suspects run beside each other"
    );
    // It does when the first has ended, so its death is its own.
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
        .sql("select fsm, status, attempt from %.instances where fsm <> 'five' order by id")
        .await;
    assert_eq!(ended, [["gated", "done", "2"], ["killer", "stuck", "3"]]);
}
