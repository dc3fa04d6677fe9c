//! A pick whose answer was lost: rows that are ours by the database, and unknown to us.

use gen_durable::{SECOND, Settings};

use super::{
    commits::{Gate, Gated},
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, assert_walked_once, quick},
};

#[tokio::test]
async fn rows_whose_claim_was_lost_on_the_way_come_back_without_a_burned_attempt() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let settings = Settings {
        statement_timeout: SECOND / 2,
        ..quick()
    };
    let walkers = (0..20).map(|n| Walker {
        first: First::ALL[n % 5],
        steps: 0,
    });
    let enqueued = stage.lab.enqueue_all(walkers).await.unwrap();
    // The picker and the sweep may come at once and share them: both are cut.
    let rule = stage.proxy.on_each(".pick(", Fault::CutAfter, 0, 2);
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(settings)
    });
    rule.fired(1).await;
    for (n, walker) in enqueued.iter().enumerate() {
        stage
            .lab
            .settled(walker.id, LONG)
            .await
            .unwrap()
            .expect("nobody found it");
        assert_walked_once(
            &stage,
            &effects,
            walker.id.raw(),
            First::ALL[n % 5],
            "a lost claim",
        )
        .await;
    }
    let lost =
        "select count(*) from S.changes where old_status = 'executing' and old_seq = new_seq";
    assert_eq!(
        stage.number(lost).await,
        20,
        "the pick that was cut had claimed them all"
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_pick_that_never_arrived_is_simply_made_again() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(quick())
    });
    engine.ready().await;
    for fault in [Fault::CutBefore, Fault::CutRequest] {
        let rule = stage.proxy.on(".pick(", fault);
        let walker = stage
            .lab
            .enqueue(Walker {
                first: First::Next,
                steps: 0,
            })
            .await
            .unwrap();
        rule.fired(1).await;
        stage.lab.settled(walker.id, LONG).await.unwrap().unwrap();
        assert_walked_once(
            &stage,
            &effects,
            walker.id.raw(),
            First::Next,
            "a pick that was cut",
        )
        .await;
    }
    engine.stop().await;
}

/// A process that was stopped for a while finds its own lease run out. What nobody took from it is still its own.
#[tokio::test]
async fn a_worker_does_not_take_its_own_rows_for_those_of_a_dead_one() {
    let stage = Stage::new().await;
    let gate = Gate::default();
    let settings = Settings {
        lease: SECOND * 3 / 2,
        heartbeat: SECOND / 2,
        reap_every: SECOND / 20,
        ..quick()
    };
    let engine = stage.run(stage.pool(), gate.clone(), |e| {
        e.register::<Gated>().settings(settings)
    });
    let gated = stage.lab.enqueue(Gated).await.unwrap();
    gate.runs(2).await;
    let looked = stage.proxy.done("store::lease::expired");
    let deadline = tokio::time::Instant::now() + LONG;
    while stage.proxy.done("store::lease::expired") < looked + 5 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "nobody looks for the dead"
        );
        stage
            .sql(
                "update S.workers set lease_expires_at = statement_timestamp() - interval '1 hour'",
            )
            .await;
    }
    gate.open();
    stage.lab.settled(gated.id, LONG).await.unwrap().unwrap();
    let taken =
        "select count(*) from S.changes where old_status = 'executing' and old_seq = new_seq";
    assert_eq!(
        stage.number(taken).await,
        0,
        "it took its own row from itself"
    );
    engine.stop().await;
}
