//! Tests of commits with a lost answer: the commit may be durable or not, and the engine finds out
//! which.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gen_durable::{Context, Machine, Outcome, SECOND, Settings, done, machine::Run, retry_after};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, assert_settled, assert_walked_once, quick},
};

const SETTLE: &str = "._write_step_results($1";
const RESOLVE: &str = "store::resolve::resolve";
/// The number of instances that run together, so that the engine loses the answer to a batch of
/// several step results.
const TOGETHER: u32 = 5;

/// Applies each fault of the proxy to each commit of an instance, for each transition that a step
/// can return, and asserts that every commit counts once.
async fn lose_every_commit(settings: Settings) {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(settings)
    });
    engine.ready().await;
    let mut cuts = 0;
    for first in First::ALL {
        for skip in 0..first.commits() {
            for fault in [
                Fault::CutBefore,
                Fault::CutRequest,
                Fault::CutAnswer,
                Fault::CutAfter,
            ] {
                let what = format!("{first:?}, commit {skip}, {fault:?}");
                let rule = stage.proxy.on_each(SETTLE, fault, skip, 1);
                let walkers = (0..TOGETHER).map(|_| Walker { first, steps: 0 });
                let enqueued = stage.lab.enqueue_all(walkers).await.unwrap();
                for walker in &enqueued {
                    assert_settled(&stage, walker.id, first, &what).await;
                }
                // The committer chooses which step results form a batch, so the proxy applies the
                // fault at the latest to the last batch.
                assert_eq!(rule.has_fired(), 1, "{what}");
                for walker in &enqueued {
                    assert_walked_once(&stage, &effects, walker.id.raw(), first, &what).await;
                }
                cuts += 1;
            }
        }
    }
    assert_eq!(cuts, 32);
    // The test may find an instance settled before the engine has resolved the unknown outcome of
    // its last commit, so the test waits until the engine has resolved that outcome.
    let deadline = tokio::time::Instant::now() + LONG;
    while stage.proxy.done(RESOLVE) < cuts {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the engine has not resolved every lost answer"
        );
        tokio::time::sleep(SECOND / 100).await;
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_commit_with_a_lost_answer_counts_once_whichever_transition_the_step_returned() {
    lose_every_commit(quick()).await;
}

#[tokio::test]
async fn a_commit_with_a_lost_answer_counts_once_if_run_ahead_is_disabled() {
    lose_every_commit(Settings {
        run_ahead_steps: 0,
        ..quick()
    })
    .await;
}

/// The client gives up on a commit statement that the network delays, and sends the statement a
/// second time. Then the delayed statement reaches the server. A commit before a run-ahead step
/// keeps `claim_epoch`, so only `step_seq` distinguishes the two statements.
#[tokio::test]
async fn a_commit_statement_that_the_server_receives_twice_is_applied_once() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let settings = Settings {
        statement_timeout: SECOND,
        ..quick()
    };
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(settings)
    });
    engine.ready().await;
    for first in [First::Next, First::Retry, First::Sleep, First::Done] {
        let late = stage.proxy.on(SETTLE, Fault::DeliverLate);
        // The proxy holds the next commit of the instance, so that the delayed statement finds the
        // row as the first commit left it.
        let second = stage.proxy.on_each(SETTLE, Fault::Hold, 1, usize::MAX);
        let walker = stage.lab.enqueue(Walker { first, steps: 0 }).await.unwrap();
        late.fired(1).await;
        stage
            .until(
                &format!("select step_seq from S.instances where id = {}", walker.id),
                1,
            )
            .await;
        late.release();
        late.delivered().await;
        assert_eq!(
            stage.commits(walker.id.raw()).await,
            [(0, 1)],
            "{first:?}: the late statement changes nothing"
        );
        stage.proxy.forget();
        second.release();
        stage.lab.settled(walker.id, LONG).await.unwrap().unwrap();
        assert_walked_once(
            &stage,
            &effects,
            walker.id.raw(),
            first,
            &format!("{first:?}"),
        )
        .await;
    }
    engine.stop().await;
}

/// The worker claims an instance a second time while the answer to the last commit of the instance
/// is still in flight.
#[tokio::test]
async fn a_late_answer_to_a_commit_does_not_release_the_next_claim_of_the_instance() {
    let stage = Stage::new().await;
    let gate = Gate::default();
    let settings = Settings {
        statement_timeout: SECOND,
        ..quick()
    };
    let engine = stage.run(stage.pool(), gate.clone(), |e| {
        e.register::<Gated>().settings(settings)
    });
    engine.ready().await;
    let answer = stage.proxy.on(SETTLE, Fault::HoldAnswer);
    let gated = stage.lab.enqueue(Gated).await.unwrap();
    gate.runs(2).await;
    answer.release();
    // The test waits until the claim is so old that the engine's search for lost claims considers
    // it, and then until the engine has searched twice.
    let held_long = "select count(*) from S.instances where updated_at < statement_timestamp() - interval '1300 ms'";
    stage.until(held_long, 1).await;
    let searches = stage.proxy.done("store::lease::held");
    let deadline = tokio::time::Instant::now() + LONG;
    while stage.proxy.done("store::lease::held") < searches + 2 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the engine does not search for lost claims"
        );
        tokio::time::sleep(SECOND / 100).await;
    }
    gate.open();
    stage.lab.settled(gated.id, LONG).await.unwrap().unwrap();
    let released =
        "select count(*) from S.changes where old_status = 'executing' and old_seq = new_seq";
    assert_eq!(
        stage.number(released).await,
        0,
        "the claim was released while its step ran"
    );
    assert_eq!(stage.commits(gated.id.raw()).await, [(0, 1), (1, 2)]);
    engine.stop().await;
}

/// A job that retries its first attempt at once, and waits in its second attempt until the test
/// calls `Gate::open`.
#[derive(Serialize, Deserialize)]
pub(super) struct Gated;

#[derive(Clone, Default)]
pub(super) struct Gate(Arc<(AtomicUsize, Notify)>);

impl Gate {
    pub(super) async fn runs(&self, count: usize) {
        let deadline = tokio::time::Instant::now() + LONG;
        while self.0.0.load(Ordering::SeqCst) < count {
            assert!(
                tokio::time::Instant::now() < deadline,
                "it does not run {count} times"
            );
            tokio::time::sleep(SECOND / 200).await;
        }
    }
    pub(super) fn open(&self) {
        self.0.1.notify_one();
    }
}

impl Machine for Gated {
    const NAME: &'static str = "gated";
    type App = Gate;
    type Step = Run;
    type Output = ();
    async fn step(&mut self, _: Run, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app().0.0.fetch_add(1, Ordering::SeqCst);
        if cx.attempt() == 0 {
            return Ok(retry_after(Duration::ZERO));
        }
        cx.app().0.1.notified().await;
        Ok(done(()))
    }
}
