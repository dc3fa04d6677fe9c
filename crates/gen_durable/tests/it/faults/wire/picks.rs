//! Tests of a pick with a lost answer: the rows of the instances name the worker as their claim
//! holder, and the worker does not know of the claims.

use gen_durable::{SECOND, Settings};

use crate::support::eventually;

use super::{
    commits::{Gate, Gated},
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, assert_walked_once, quick},
};

#[tokio::test]
async fn instances_claimed_by_a_pick_with_a_lost_answer_are_released_without_a_counted_attempt() {
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
    // The picker and the sweep of the worker may claim at the same time and share the instances, so
    // the proxy cuts the connections of both.
    let rule = stage.proxy.on_each("._pick(", Fault::CutAfter, 0, 2);
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
            .expect("the lost claim was found and released");
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
async fn the_picker_sends_a_pick_again_that_never_reached_the_server() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(quick())
    });
    engine.ready().await;
    for fault in [Fault::CutBefore, Fault::CutRequest] {
        let rule = stage.proxy.on("._pick(", fault);
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

/// A picker that has found no work for some seconds asks whether a pick may claim anything, and
/// picks only then, or to count its group.
#[tokio::test]
async fn a_picker_at_rest_finds_an_instance_even_if_its_probes_fail() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let settings = Settings {
        statement_timeout: SECOND / 2,
        ..quick()
    };
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(settings)
    });
    engine.ready().await;
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::SwallowRequest] {
        let rule = stage.proxy.on("._next_claim(", fault);
        rule.fired(1).await;
        let probes = stage.proxy.done("._next_claim(");
        eventually("the picker probes again", async || {
            stage.proxy.done("._next_claim(") > probes
        })
        .await;
    }
    let walker = stage
        .lab
        .enqueue(Walker {
            first: First::Next,
            steps: 0,
        })
        .await
        .unwrap();
    stage.lab.settled(walker.id, LONG).await.unwrap().unwrap();
    assert_walked_once(&stage, &effects, walker.id.raw(), First::Next, "at rest").await;
    engine.stop().await;
}

/// A worker that did not run for a while finds that its own lease has expired. Claims that no other
/// worker has reaped still belong to this worker.
#[tokio::test]
async fn a_worker_that_finds_its_own_lease_expired_does_not_reap_its_own_claims() {
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
    let searches = stage.proxy.done("store::lease::expired");
    let deadline = tokio::time::Instant::now() + LONG;
    while stage.proxy.done("store::lease::expired") < searches + 5 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the engine does not search for expired workers"
        );
        stage
            .sql(
                "update S.workers set lease_expires_at = statement_timestamp() - interval '1 hour'",
            )
            .await;
    }
    gate.open();
    stage.lab.settled(gated.id, LONG).await.unwrap().unwrap();
    let reaped =
        "select count(*) from S.changes where old_status = 'executing' and old_seq = new_seq";
    assert_eq!(
        stage.number(reaped).await,
        0,
        "the worker reaped its own row"
    );
    engine.stop().await;
}
