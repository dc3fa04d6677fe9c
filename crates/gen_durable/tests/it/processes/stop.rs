//! Workers that are stopped past their lease and wake again, while others have taken what they held.

use std::{sync::atomic::AtomicUsize, time::Duration};

use gen_durable::{Engine, Error, HOUR, MINUTE, Pool, SECOND, Settings};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    machines::{Five, Gated, Way, World},
    place::{Place, until},
};

#[tokio::test]
async fn an_outcome_that_comes_while_another_owner_is_in_the_step_changes_nothing() {
    let place = Place::new().await;
    place
        .client
        .enqueue_all(Way::ALL.map(|way| Gated::new("gate", way)))
        .await
        .unwrap();
    let mut late = place.plan().start();
    place.until_done("begin", 5).await;
    late.stop();
    // The other one thinks it dead, takes all five, and stands in the middle of each.
    let _other = place.plan().start();
    place.until_done("begin", 10).await;
    let held = place.rows().await;

    place.open("gate", 0);
    late.resume();
    let mut now = Vec::new();
    until(
        "all five outcomes came too late, or a row has changed",
        async || {
            now = place.rows().await;
            now != held || late.said("an outcome came too late") == 5
        },
    )
    .await;
    assert_eq!(now, held, "one for each of {:?}", Way::ALL);

    place.open("gate", 1);
    place.until_all_settled().await;
    // Claimed, taken back, claimed, done; one commit, by the second owner, of a state that the first never touched.
    let ended = place
        .sql("select status, result, attempt, claim_epoch, step_seq from %.instances")
        .await;
    assert_eq!(ended, vec![["done", "1", "1", "4", "1"]; 5]);
}

#[tokio::test]
async fn an_outcome_that_comes_after_another_owner_has_finished_changes_nothing() {
    let place = Place::new().await;
    place
        .client
        .enqueue_all(Way::ALL.map(|way| Gated::new("gate", way)))
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
    late.says("an outcome came too late", 5).await;
    assert_eq!(place.rows().await, settled);
}

#[tokio::test]
async fn a_worker_that_claims_its_own_lost_row_again_commits_it_once() {
    let place = Place::new().await;
    let first = place
        .client
        .enqueue(Gated::new("gate", Way::Stop))
        .await
        .unwrap()
        .id;
    let patient = Settings {
        lease: HOUR,
        heartbeat: MINUTE,
        ..Settings::default()
    };
    let (owner, stop_owner) = run(&place, patient, |client, world| {
        Engine::builder(client, world).register::<Gated>()
    })
    .await;
    place.until_done("begin", 1).await;
    // Somebody else, who cannot run the row, thinks the owner dead. The owner does not notice: its own clock is good.
    let hasty = Settings {
        lease: 2 * SECOND,
        heartbeat: SECOND / 5,
        reap_every: SECOND / 20,
        ..Settings::default()
    };
    let (reaper, stop_reaper) = run(&place, hasty, |client, world| {
        Engine::builder(client, world).register::<Five>()
    })
    .await;
    place
        .sql("update %.workers set lease_expires_at = statement_timestamp() - interval '1 s' where 'gated/1' = any (machines)")
        .await;
    place.until_done("begin", 2).await;
    // It has done its part; it would take the owner for dead once more.
    stop_reaper.send(()).unwrap();
    reaper.await.unwrap().unwrap();
    let held = place.rows().await;

    // The first task ends while the second is in the step. What commits after it shows that its turn has passed.
    place.open("gate", 0);
    place.until_done("end", 1).await;
    let after = place
        .client
        .enqueue(Gated::new("gate", Way::Done))
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

    // The owner still knows what it holds: it does not go before the second task has ended.
    stop_owner.send(()).unwrap();
    let mut owner = owner;
    let gone = tokio::time::timeout(Duration::from_millis(300), &mut owner).await;
    assert!(gone.is_err(), "the engine forgot a step that still ran");
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

/// An engine in this process.
async fn run(
    place: &Place,
    settings: Settings,
    build: impl FnOnce(Pool, World) -> gen_durable::EngineBuilder<World>,
) -> (JoinHandle<Result<(), Error>>, oneshot::Sender<()>) {
    let world = World {
        books: None,
        dir: place.dir.clone(),
        pause: Duration::ZERO,
        slots: 8,
        running: AtomicUsize::new(0),
    };
    let pool = Pool::connect_to(&place.url, &place.schema).await.unwrap();
    let engine = build(pool, world).settings(settings).build().unwrap();
    let health = engine.health();
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    until("the engine is ready", async || health.is_ready()).await;
    (running, stop)
}
