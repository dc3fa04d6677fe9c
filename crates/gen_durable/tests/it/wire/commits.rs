//! A commit whose answer was lost: it happened, or it did not, and the engine finds out which.

use gen_durable::{SECOND, Settings};

use super::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, assert_walked_once, quick},
};

const SETTLE: &str = ".settle(";
const RESOLVE: &str = "store::settle::resolve";
/// Instances that walk together, so that a batch is lost and not only an ending.
const TOGETHER: u32 = 5;

/// Each way to end a step, each of its commits, each way to lose it.
async fn lose_every_commit(settings: Settings) {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let engine = stage.run(stage.pool(), effects.clone(), |e| e.register::<Walker>().settings(settings));
    engine.ready().await;
    let mut cuts = 0;
    for first in First::ALL {
        for skip in 0..first.commits() {
            for fault in [Fault::CutBefore, Fault::CutRequest, Fault::CutAnswer, Fault::CutAfter] {
                let what = format!("{first:?}, commit {skip}, {fault:?}");
                let rule = stage.proxy.on_each(SETTLE, fault, skip, 1);
                let walkers = (0..TOGETHER).map(|_| Walker { first, steps: 0 });
                let enqueued = stage.lab.enqueue_all(walkers).await.unwrap();
                for walker in &enqueued {
                    let settled = stage.lab.settled(walker.id, LONG).await.unwrap().expect(&what);
                    match first {
                        First::Stop => assert_eq!(settled.result.unwrap_err().message, "as it was told", "{what}"),
                        _ => assert_eq!(settled.result, Ok(u32::try_from(first.commits()).unwrap()), "{what}"),
                    }
                }
                // The batches of several instances are theirs to form: the cut came, at the latest, with the last one.
                assert_eq!(rule.has_fired(), 1, "{what}");
                for walker in &enqueued {
                    assert_walked_once(&stage, &effects, walker.id.raw(), first, &what).await;
                }
                cuts += 1;
            }
        }
    }
    assert_eq!(cuts, 32);
    assert!(stage.proxy.done(RESOLVE) >= cuts, "every lost answer was asked for");
    engine.stop().await;
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_counts_once_however_the_step_ended() {
    lose_every_commit(quick()).await;
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_counts_once_without_run_ahead_too() {
    lose_every_commit(Settings { run_ahead_steps: 0, ..quick() }).await;
}

/// The client gave up on a statement that the network kept; it was sent again, and then the first one arrives after all.
/// On a run-ahead commit the epoch stays, so only step_seq tells the two apart.
#[tokio::test]
async fn a_commit_that_arrives_twice_counts_once() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let settings = Settings { statement_timeout: SECOND / 5, ..quick() };
    let engine = stage.run(stage.pool(), effects.clone(), |e| e.register::<Walker>().settings(settings));
    engine.ready().await;
    for first in [First::Next, First::Retry, First::Sleep, First::Done] {
        let late = stage.proxy.on(SETTLE, Fault::DeliverLate);
        // The walker stands still after its first commit was sent again, so that the late one finds it there.
        let second = stage.proxy.on_each(SETTLE, Fault::Hold, 1, usize::MAX);
        let walker = stage.lab.enqueue(Walker { first, steps: 0 }).await.unwrap();
        late.fired(1).await;
        stage.until(&format!("select step_seq from S.instances where id = {}", walker.id), 1).await;
        late.release();
        late.delivered().await;
        assert_eq!(stage.commits(walker.id.raw()).await, [(0, 1)], "{first:?}: the late one changed nothing");
        stage.proxy.forget();
        second.release();
        stage.lab.settled(walker.id, LONG).await.unwrap().unwrap();
        assert_walked_once(&stage, &effects, walker.id.raw(), first, &format!("{first:?}")).await;
    }
    engine.stop().await;
}
