//! Tests a caller's transaction that locks the row of an instance: only the commit of that instance
//! waits for the row lock.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use gen_durable::{Context, Id, Job, Queue, SECOND, Settings, StepError};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::faults::wire::{
    proxy::Fault,
    stage::{LONG, Running, Stage},
    walker::{Effects, First, Walker, assert_walked_once, quick},
};

#[derive(Clone)]
struct App {
    gate: watch::Sender<bool>,
    runs: Arc<AtomicUsize>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Gated;

impl Job for Gated {
    const NAME: &'static str = "gated";
    type App = App;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().runs.fetch_add(1, Ordering::SeqCst);
        let _ = cx.app().gate.subscribe().wait_for(|open| *open).await;
        Ok(())
    }
}

/// Starts an engine with `count` jobs. Their steps all run and wait until the test sets `App::gate`
/// to true. The engine has no free slot for further jobs.
async fn at_the_gate(stage: &Stage, count: usize) -> (Running, App, Vec<Id<Gated>>) {
    let app = App {
        gate: watch::Sender::new(false),
        runs: Arc::default(),
    };
    let settings = Settings {
        statement_timeout: 2 * SECOND,
        drain_timeout: SECOND,
        reap_every: SECOND / 10,
        concurrency: count,
        ..Settings::default()
    };
    let engine = stage.run(stage.pool(), app.clone(), |e| {
        e.register::<Gated>().settings(settings)
    });
    let jobs = stage
        .lab
        .enqueue_all((0..count).map(|_| Gated))
        .await
        .unwrap();
    let executing = "select count(*) from S.instances where status = 'executing'";
    stage.until(executing, i64::try_from(count).unwrap()).await;
    (engine, app, jobs.iter().map(|job| job.id).collect())
}

async fn hold(stage: &Stage, id: Id<Gated>) -> tokio_postgres::Client {
    let caller = stage.caller().await;
    caller.batch_execute("begin").await.unwrap();
    let text = stage.render(&format!(
        "select from S.instances where id = {id} for update"
    ));
    caller.batch_execute(&text).await.unwrap();
    caller
}

async fn settle_all(stage: &Stage, ids: impl IntoIterator<Item = &Id<Gated>>) {
    for id in ids {
        let settled = stage.lab.settled(*id, LONG).await.unwrap();
        assert!(
            settled.is_some(),
            "{id} waits for a lock that is not its own"
        );
    }
}

#[tokio::test]
async fn a_row_that_a_caller_locks_delays_only_the_commit_of_that_instance() {
    let stage = Stage::new().await;
    let (engine, app, ids) = at_the_gate(&stage, 40).await;
    let held = ids[20];
    let caller = hold(&stage, held).await;
    app.gate.send_replace(true);
    settle_all(&stage, ids.iter().filter(|id| **id != held)).await;
    // The engine commits the step results of jobs that the test enqueues while the caller still
    // holds the row lock.
    let later = stage.lab.enqueue_all((0..40).map(|_| Gated)).await.unwrap();
    settle_all(&stage, later.iter().map(|job| &job.id)).await;
    let waiting =
        format!("select count(*) from S.instances where id = {held} and status = 'executing'");
    assert_eq!(stage.number(&waiting).await, 1, "its lock is still held");
    caller.batch_execute("commit").await.unwrap();
    settle_all(&stage, [&held]).await;
    assert_eq!(stage.commits(held.raw()).await, [(0, 1)]);
    assert_eq!(app.runs.load(Ordering::SeqCst), 80, "no job ran twice");
    engine.stop().await;
}

/// The engine loses the answer to a commit while a caller locks a row of the batch. The statement
/// with which the engine resolves the unknown commit outcome must not wait for the row lock.
#[tokio::test]
async fn a_commit_with_a_lost_answer_and_a_locked_row_delays_no_commit_of_other_instances() {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        let stage = Stage::new().await;
        let (engine, app, ids) = at_the_gate(&stage, 10).await;
        let held = ids[5];
        let caller = hold(&stage, held).await;
        let cut = stage.proxy.on("._write_step_results($1", fault);
        app.gate.send_replace(true);
        cut.fired(1).await;
        settle_all(&stage, ids.iter().filter(|id| **id != held)).await;
        let later = stage.lab.enqueue_all((0..10).map(|_| Gated)).await.unwrap();
        settle_all(&stage, later.iter().map(|job| &job.id)).await;
        // The client of the engine can enqueue an instance while the caller holds the row lock.
        engine.client.enqueue(Gated).await.unwrap();
        caller.batch_execute("rollback").await.unwrap();
        settle_all(&stage, [&held]).await;
        assert_eq!(stage.commits(held.raw()).await, [(0, 1)]);
        stage
            .until("select count(*) from S.instances where status <> 'done'", 0)
            .await;
        assert_eq!(
            app.runs.load(Ordering::SeqCst),
            21,
            "{fault:?}: no job ran twice"
        );
        engine.stop().await;
    }
}

/// The commit of a step is durable, the engine lost the answer to the commit, and a caller locked
/// the row of the instance before the engine could resolve the outcome. When the caller has
/// released the row lock, the engine runs the next step on the same claim.
#[tokio::test]
async fn a_commit_with_a_lost_answer_is_found_committed_when_its_row_is_no_longer_locked() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(quick())
    });
    engine.ready().await;
    stage.proxy.on("._write_step_results($1", Fault::HoldAnswer);
    let walker = stage
        .lab
        .enqueue(Walker {
            first: First::Next,
            steps: 0,
        })
        .await
        .unwrap();
    let seq = format!("select step_seq from S.instances where id = {}", walker.id);
    stage.until(&seq, 1).await;
    let caller = hold(&stage, Id::from_raw(walker.id.raw())).await;
    stage.proxy.go_down().await;
    stage.proxy.come_back();
    // The engine tries to resolve the unknown commit outcome and finds the row of the instance
    // locked, more often than the committer alone would try.
    let resolve = "store::resolve::resolve";
    let deadline = tokio::time::Instant::now() + LONG;
    while stage.proxy.done(resolve) < 5 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the engine does not resolve the commit outcome"
        );
        tokio::time::sleep(SECOND / 100).await;
    }
    assert_eq!(stage.number(&seq).await, 1);
    caller.batch_execute("commit").await.unwrap();
    stage.lab.settled(walker.id, LONG).await.unwrap().unwrap();
    assert_walked_once(&stage, &effects, walker.id.raw(), First::Next, "a held row").await;
    let released =
        "select count(*) from S.changes where old_status = 'executing' and old_seq = new_seq";
    assert_eq!(
        stage.number(released).await,
        0,
        "the claim was valid all the time"
    );
    engine.stop().await;
}

/// The committer finds the locked rows of a batch in one statement, and writes the results of the
/// other rows in the next one. A caller locks one of those rows between the two statements.
#[tokio::test]
async fn a_row_that_a_caller_locks_during_a_second_attempt_delays_only_that_instance() {
    let stage = Stage::new().await;
    let (engine, app, ids) = at_the_gate(&stage, 20).await;
    let held = ids[5];
    let one = hold(&stage, held).await;
    let found = stage
        .proxy
        .on("store::step_results::lock", Fault::HoldAnswer);
    app.gate.send_replace(true);
    found.fired(1).await;
    let next =
        format!("select max(id) from S.instances where status = 'executing' and id <> {held}");
    let also_held = Id::from_raw(stage.number(&next).await);
    let two = hold(&stage, also_held).await;
    found.release();
    let others = ids.iter().filter(|id| ![held, also_held].contains(id));
    settle_all(&stage, others).await;
    let later = stage.lab.enqueue_all((0..20).map(|_| Gated)).await.unwrap();
    settle_all(&stage, later.iter().map(|job| &job.id)).await;
    let waiting = "select count(*) from S.instances where status = 'executing'";
    assert_eq!(stage.number(waiting).await, 2, "both locks are still held");
    for caller in [one, two] {
        caller.batch_execute("commit").await.unwrap();
    }
    settle_all(&stage, &ids).await;
    for id in &ids {
        assert_eq!(stage.commits(id.raw()).await, [(0, 1)]);
    }
    assert_eq!(app.runs.load(Ordering::SeqCst), 40, "no job ran twice");
    engine.stop().await;
}

/// A shutdown of the engine releases the claims of steps that still run. A row that a caller has
/// locked must not delay the release of the other claims.
#[tokio::test]
async fn a_shutdown_releases_every_claim_except_the_claim_of_a_row_that_a_caller_locks() {
    let stage = Stage::new().await;
    let (engine, _app, ids) = at_the_gate(&stage, 10).await;
    let caller = hold(&stage, ids[5]).await;
    engine.stop().await;
    let back = "select count(*) from S.instances where status = 'runnable' and attempt = 0";
    assert_eq!(
        stage.number(back).await,
        9,
        "they were released and no attempt was counted"
    );
    // The row that the caller locked keeps its claim, and the worker keeps its row in `workers`, so
    // that the reaper finds the claim later.
    let kept = "select count(*) from S.workers w join S.instances i on i.locked_by = w.id where i.status = 'executing'";
    assert_eq!(stage.number(kept).await, 1);
    caller.batch_execute("commit").await.unwrap();
}

/// A caller locks rows of instances in another order than the committer. A batch of the committer
/// that waited for a row lock would hold row locks that the caller needs.
#[tokio::test]
async fn a_caller_that_locks_rows_in_another_order_than_the_committer_causes_no_deadlock() {
    let stage = Stage::new().await;
    for _ in 0..5 {
        let (engine, app, ids) = at_the_gate(&stage, 10).await;
        let (first, last) = (ids[0], ids[9]);
        let caller = hold(&stage, last).await;
        // The test waits until the server has answered a commit attempt of the engine. If a batch
        // held row locks while it waits for the caller's row, the caller's next lock would close a
        // cycle, and Postgres would report a deadlock (40P01).
        let sent = stage.proxy.done("._write_step_results($1");
        app.gate.send_replace(true);
        let deadline = tokio::time::Instant::now() + LONG;
        while stage.proxy.done("._write_step_results($1") == sent {
            assert!(
                tokio::time::Instant::now() < deadline,
                "nothing was committed"
            );
            tokio::task::yield_now().await;
        }
        let text = stage.render(&format!(
            "select from S.instances where id = {first} for update"
        ));
        caller.batch_execute(&text).await.unwrap();
        caller.batch_execute("commit").await.unwrap();
        settle_all(&stage, &ids).await;
        assert!(
            !stage.proxy.errors().contains(&"40P01".to_owned()),
            "a deadlock"
        );
        engine.stop().await;
    }
}

/// Two engines have claimed the same rows: the second engine has claimed half of the rows while the
/// first engine still ran their steps, so both engines write step results of the same rows.
#[tokio::test]
async fn two_engines_that_commit_the_same_rows_do_not_deadlock_and_lose_nothing() {
    let stage = Stage::new().await;
    let (one, app, ids) = at_the_gate(&stage, 100).await;
    // The test takes half of the claims from the first engine, as a reaper does, and sets `queue`
    // of these rows to a queue that only the second engine runs. So the first engine cannot claim
    // the rows a second time.
    stage
        .sql(
            "update S.instances set status = 'runnable', claim_epoch = claim_epoch + 1, locked_by = null,
             lease_expires_at = null, queue = 'other' where id % 2 = 0",
        )
        .await;
    let settings = Settings {
        concurrency: 100,
        ..Settings::default()
    };
    let two = stage.run(stage.pool(), app.clone(), |e| {
        e.register::<Gated>()
            .queue(Queue::DEFAULT, 100)
            .queue(Queue::new("other"), 100)
            .settings(settings)
    });
    stage
        .until(
            "select count(distinct locked_by) from S.instances where status = 'executing'",
            2,
        )
        .await;
    stage
        .until(
            "select count(*) from S.instances where status = 'executing'",
            100,
        )
        .await;
    app.gate.send_replace(true);
    settle_all(&stage, &ids).await;
    for id in &ids {
        assert_eq!(
            stage.commits(id.raw()).await,
            [(0, 1)],
            "one owner at a time"
        );
    }
    assert!(
        !stage.proxy.errors().contains(&"40P01".to_owned()),
        "a deadlock"
    );
    one.stop().await;
    two.stop().await;
}
