//! Tests of picks: order, queues, due times, late commits, and the deletion of settled rows.

use gen_durable::{Client, DAY, Engine, SECOND, Settings, inspect::Status};

use super::{Log, Note, SIDE, notes, quick, start};
use crate::support::{eventually, live, sql};

#[tokio::test]
async fn a_picker_claims_instances_by_priority_and_then_in_enqueue_order() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    for (text, priority) in [("c", 1), ("d", 1), ("a", -1), ("b", 0), ("e", 7)] {
        client
            .enqueue(Note::new(text))
            .priority(priority)
            .await
            .unwrap();
    }
    let log = Log::default();
    let (_, running) = start(
        pool,
        &log,
        Settings {
            concurrency: 1,
            ..quick()
        },
    )
    .await;
    eventually("all five ran", async || notes(&log).len() == 5).await;
    running.stop().await;
    assert_eq!(notes(&log), ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn an_engine_runs_several_queues_and_claims_nothing_from_a_paused_queue_until_it_is_resumed()
{
    let log = Log::default();
    let (client, running) = start(live().await, &log, quick()).await;
    assert!(client.pause_queue("side", "a test").await.unwrap());
    assert!(
        !client.pause_queue("side", "another test").await.unwrap(),
        "the queue is already paused"
    );
    let backlog = client.inspect().backlog().await.unwrap();
    let side = backlog.iter().find(|queue| queue.name == "side").unwrap();
    assert_eq!(side.paused_by.as_deref(), Some("a test"));
    let held = client
        .enqueue(Note::new("side"))
        .queue(SIDE)
        .await
        .unwrap()
        .id;
    client.enqueue(Note::new("default")).await.unwrap();
    eventually("the open queue is worked", async || {
        notes(&log) == ["default"]
    })
    .await;
    // The engine runs another instance of the default queue while the instance of the paused queue
    // waits, so the engine is not merely slow to claim that instance.
    client.enqueue(Note::new("more")).await.unwrap();
    eventually("the open queue is still worked", async || {
        notes(&log).len() == 2
    })
    .await;
    let row = client.inspect().show(held.raw()).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempt), (Status::Runnable, 0));
    assert!(
        client
            .inspect()
            .queues()
            .await
            .unwrap()
            .iter()
            .any(|queue| queue.name == "side" && queue.is_paused())
    );
    assert!(client.resume_queue("side").await.unwrap());
    assert!(
        !client.resume_queue("side").await.unwrap(),
        "the queue is not paused any more"
    );
    eventually("the resumed queue is worked", async || {
        notes(&log).contains(&"side".to_owned())
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn an_instance_runs_even_if_its_enqueue_commits_after_the_picker_has_passed_its_due_time() {
    let log = Log::default();
    let pool = live().await;
    let (client, running) = start(pool.clone(), &log, quick()).await;
    let mut tx = pool.begin().await.unwrap();
    let late = client
        .enqueue(Note::new("late"))
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    // Runs other jobs, so that the watermark of the picker moves past the due time of the instance
    // `late`, which the test has inserted in a transaction that is still open.
    for n in 0..20 {
        let id = client.enqueue(Note::new(&n.to_string())).await.unwrap().id;
        assert!(client.settled(id, 60 * SECOND).await.unwrap().is_some());
    }
    assert!(
        client.inspect().show(late.raw()).await.unwrap().is_none(),
        "an uncommitted enqueue is not visible"
    );
    tx.commit().await.unwrap();
    assert!(client.settled(late, 60 * SECOND).await.unwrap().is_some());
    running.stop().await;
}

#[tokio::test]
async fn a_rolled_back_enqueue_leaves_no_instance() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let mut tx = pool.begin().await.unwrap();
    let id = client
        .enqueue(Note::new("never"))
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    tx.rollback().await.unwrap();
    assert!(client.settled(id, SECOND).await.unwrap_err().is_not_found());
    // A caller can enqueue in a transaction that it opened with `tokio_postgres`. When a caller
    // drops a transaction of the pool, the pool rolls the transaction back.
    let mut own = sql().await;
    let mut tx = own.transaction().await.unwrap();
    let kept = client
        .enqueue(Note::new("kept"))
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    tx.commit().await.unwrap();
    let mut dropped = pool.begin().await.unwrap();
    let gone = client
        .enqueue(Note::new("gone"))
        .within(&mut dropped)
        .await
        .unwrap()
        .id;
    drop(dropped);
    assert!(client.inspect().show(kept.raw()).await.unwrap().is_some());
    assert!(client.inspect().show(gone.raw()).await.unwrap().is_none());
    // The pool does not reuse the connection of the dropped transaction while that transaction is
    // still open.
    let next = pool.begin().await.unwrap();
    assert!(
        next.query_one("select pg_current_xact_id_if_assigned() is null", &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
}

#[tokio::test]
async fn a_delayed_job_runs_when_it_is_due_and_not_before() {
    let log = Log::default();
    let (client, running) = start(live().await, &log, quick()).await;
    let id = client
        .enqueue(Note::new("later"))
        .after(SECOND / 2)
        .await
        .unwrap()
        .id;
    assert!(client.settled(id, 60 * SECOND).await.unwrap().is_some());
    let row = client.inspect().show(id.raw()).await.unwrap().unwrap();
    assert!(
        row.settled_at.unwrap() >= row.eligible_at,
        "never early by the database's clock"
    );
    running.stop().await;
}

#[tokio::test]
async fn the_upkeep_deletes_settled_instances_after_their_retention_and_no_others() {
    let log = Log::default();
    let settings = Settings {
        retention: Some(SECOND / 10),
        collect_every: SECOND / 20,
        ..quick()
    };
    let (client, running) = start(live().await, &log, settings).await;
    let old = client.enqueue(Note::new("old")).await.unwrap().id;
    let waiting = client
        .enqueue(Note::new("waiting"))
        .after(DAY)
        .await
        .unwrap()
        .id;
    eventually("the settled instance is collected", async || {
        client.inspect().show(old.raw()).await.unwrap().is_none()
    })
    .await;
    assert!(
        client
            .inspect()
            .show(waiting.raw())
            .await
            .unwrap()
            .is_some()
    );
    running.stop().await;
}

#[tokio::test]
async fn an_engine_runs_each_of_many_jobs_exactly_once() {
    let log = Log::default();
    let (client, running) = start(live().await, &log, Settings::default()).await;
    let ids = client
        .enqueue_all((0..5_000).map(|n| Note::new(&n.to_string())))
        .await
        .unwrap();
    for new in ids.iter().rev().take(50) {
        assert!(client.settled(new.id, 60 * SECOND).await.unwrap().is_some());
    }
    eventually("all have run", async || notes(&log).len() >= 5_000).await;
    running.stop().await;
    let mut texts = notes(&log);
    texts.sort_unstable();
    texts.dedup();
    assert_eq!((texts.len(), notes(&log).len()), (5_000, 5_000));
}

#[tokio::test]
async fn a_picker_claims_20000_rows_that_are_committed_long_after_they_were_due_without_sweeps() {
    let log = Log::default();
    let pool = live().await;
    let (client, running) = start(pool.clone(), &log, quick()).await;
    // Inserts the rows with SQL, as another process would, so this engine gets no wake. The rows
    // are due long before the test commits them.
    let text = format!(
        "insert into {}.instances (machine, step, state, eligible_at)
         select 'note', 'run', jsonb_build_object('text', g::text), statement_timestamp() - interval '1 h'
         from generate_series(1, 20000) g",
        pool.schema()
    );
    client.enqueue(Note::new("first")).await.unwrap();
    eventually("the watermark of the engine is past the hour", async || {
        notes(&log).len() == 1
    })
    .await;
    sql().await.execute(&text, &[]).await.unwrap();
    // One sweep finds at most a thousand rows, and sweeps run every few seconds. The twenty sweeps
    // that would find all rows would take longer than the timeout of this test.
    eventually("all of them ran", async || notes(&log).len() == 20_001).await;
    running.stop().await;
}

#[tokio::test]
async fn an_engine_with_a_dropped_run_future_claims_no_more_instances() {
    let log = Log::default();
    let pool = live().await;
    let engine = Engine::builder(pool.clone(), log.clone())
        .register::<Note>()
        .settings(quick())
        .build()
        .unwrap();
    let (client, health) = (engine.client(), engine.health());
    let task = tokio::spawn(engine.run(std::future::pending()));
    eventually("it is ready", async || health.is_ready()).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(!health.is_ready());
    // Another engine runs new instances. The client belongs to the aborted engine and wakes the
    // loops of that engine, so the aborted engine would claim first if its loops were still
    // running.
    let id = client.enqueue(Note::new("later")).await.unwrap().id;
    let others = Log::default();
    let (_, running) = start(pool, &others, quick()).await;
    assert!(client.settled(id, 60 * SECOND).await.unwrap().is_some());
    assert_eq!(
        (notes(&log).len(), notes(&others).len()),
        (0, 1),
        "the dropped engine ran it"
    );
    running.stop().await;
}
