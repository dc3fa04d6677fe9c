//! Tests of workers that the test suspends until their lease has expired, and resumes after other
//! workers have reaped their claims.

use std::{sync::atomic::AtomicUsize, time::Duration};

use gen_durable::{Engine, Error, HOUR, MINUTE, Pool, SECOND, Settings};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    machines::{FirstRun, Five, Gated, WorkerApp},
    place::{Place, until},
};

#[tokio::test]
async fn a_result_from_a_reaped_worker_changes_nothing_while_another_worker_runs_the_step() {
    let place = Place::new().await;
    place
        .client
        .enqueue_all(FirstRun::ALL.map(|first_run| Gated::new("gate", first_run)))
        .await
        .unwrap();
    let mut late = place.plan().start();
    place.until_done("begin", 5).await;
    late.stop();
    // The second worker reaps the claims of the suspended worker, claims all five instances and
    // runs their steps.
    let _other = place.plan().start();
    place.until_done("begin", 10).await;
    let held = place.rows().await;

    place.open("gate", 0);
    late.resume();
    let mut now = Vec::new();
    until(
        "all five results were stale, or a row has changed",
        async || {
            now = place.rows().await;
            now != held || late.said("a step result was dropped") == 5
        },
    )
    .await;
    assert_eq!(now, held, "one for each of {:?}", FirstRun::ALL);

    place.open("gate", 1);
    place.until_all_settled().await;
    // `claim_epoch` is 4 after claim, reap, claim and step result. There is one commit per
    // instance, by the second worker, and the first worker has not changed the state.
    let ended = place
        .sql("select status, result, attempt, claim_epoch, step_seq from %.instances")
        .await;
    assert_eq!(ended, vec![["done", "1", "1", "4", "1"]; 5]);
}

#[tokio::test]
async fn a_result_from_a_reaped_worker_changes_nothing_after_another_worker_settled_the_instance() {
    let place = Place::new().await;
    place
        .client
        .enqueue_all(FirstRun::ALL.map(|first_run| Gated::new("gate", first_run)))
        .await
        .unwrap();
    let mut late = place.plan().start();
    place.until_done("begin", 5).await;
    late.stop();
    place.open("gate", 1);
    let _other = place.plan().start();
    place.until_all_settled().await;
    let settled = place.rows().await;

    place.open("gate", 0);
    late.resume();
    late.says("a step result was dropped", 5).await;
    assert_eq!(place.rows().await, settled);
}

#[tokio::test]
async fn a_worker_that_claims_an_instance_again_after_it_was_reaped_commits_only_the_second_run() {
    let place = Place::new().await;
    let first = place
        .client
        .enqueue(Gated::new("gate", FirstRun::Fail))
        .await
        .unwrap()
        .id;
    let patient = Settings {
        lease: HOUR,
        heartbeat: MINUTE,
        ..Settings::default()
    };
    let (owner, stop_owner) = run(&place, patient, |client, app| {
        Engine::builder(client, app).register::<Gated>()
    })
    .await;
    place.until_done("begin", 1).await;
    // A second engine, which does not know the machine `Gated`, reaps the claim of the engine
    // `owner`. The owner does not notice, because by its own clock its lease is valid.
    let hasty = Settings {
        lease: 2 * SECOND,
        heartbeat: SECOND / 5,
        reap_every: SECOND / 20,
        ..Settings::default()
    };
    let (reaper, stop_reaper) = run(&place, hasty, |client, app| {
        Engine::builder(client, app).register::<Five>()
    })
    .await;
    // The queue is paused and the second engine has ended before the owner claims the instance
    // again: the second engine would reap that claim too.
    // The owner renews its lease early when it finds its queue paused: its row then says that it
    // holds no share of the polls. The next renewal is a minute away.
    place.client.pause_queue("default", "test").await.unwrap();
    let owner_is_paused =
        "select count(*) from %.workers where 'gated/1' = any (machines) and not polls";
    place.until_count(owner_is_paused, 1).await;
    place
        .sql("update %.workers set lease_expires_at = statement_timestamp() - interval '1 s' where 'gated/1' = any (machines)")
        .await;
    place
        .until_count(
            "select count(*) from %.instances where status = 'runnable'",
            1,
        )
        .await;
    stop_reaper.send(()).unwrap();
    reaper.await.unwrap().unwrap();
    assert!(place.client.resume_queue("default").await.unwrap());
    place.until_done("begin", 2).await;
    let held = place.rows().await;

    // The first task of the instance ends while the second task runs the same step. The commit of
    // an instance that the test enqueues later shows that the owner has processed the step result
    // of the first task.
    place.open("gate", 0);
    place.until_done("end", 1).await;
    let after = place
        .client
        .enqueue(Gated::new("gate", FirstRun::Done))
        .await
        .unwrap()
        .id;
    assert_eq!(
        place
            .client
            .settled(after, MINUTE)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(1)
    );
    assert_eq!(place.rows().await[0], held[0]);

    // The owner still knows its claim of the instance, so its engine does not end before the second
    // task has ended.
    stop_owner.send(()).unwrap();
    let mut owner = owner;
    let gone = tokio::time::timeout(Duration::from_millis(300), &mut owner).await;
    assert!(gone.is_err(), "the engine ended while a step still ran");
    place.open("gate", 1);
    owner.await.unwrap().unwrap();
    assert_eq!(
        place
            .client
            .settled(first, MINUTE)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(1)
    );
    let ended = place
        .sql("select status, attempt, claim_epoch, step_seq from %.instances order by id limit 1")
        .await;
    assert_eq!(ended, [["done", "1", "4", "1"]]);
}

/// Runs an engine in the process of the test until the test sends a message with the returned
/// sender.
async fn run(
    place: &Place,
    settings: Settings,
    build: impl FnOnce(Pool, WorkerApp) -> gen_durable::engine::EngineBuilder<WorkerApp>,
) -> (JoinHandle<Result<(), Error>>, oneshot::Sender<()>) {
    let app = WorkerApp {
        run_log: None,
        limit_log: super::limits::LimitLog::new(&place.url, &place.schema),
        dir: place.dir.clone(),
        pause: Duration::ZERO,
        slots: 8,
        running: AtomicUsize::new(0),
    };
    let pool = Pool::connect_to(&place.url, &place.schema).await.unwrap();
    let engine = build(pool, app).settings(settings).build().unwrap();
    let health = engine.health();
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    until("the engine is ready", async || health.is_ready()).await;
    (running, stop)
}
