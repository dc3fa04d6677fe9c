//! A pick whose answer was lost: rows that are ours by the database, and unknown to us.

use gen_durable::{SECOND, Settings};

use super::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, assert_walked_once, quick},
};

#[tokio::test]
async fn rows_whose_claim_was_lost_on_the_way_come_back_without_a_burned_attempt() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let settings = Settings { statement_timeout: SECOND / 2, ..quick() };
    let walkers = (0..20).map(|n| Walker { first: First::ALL[n % 5], steps: 0 });
    let enqueued = stage.lab.enqueue_all(walkers).await.unwrap();
    let rule = stage.proxy.on(".pick(", Fault::CutAfter);
    let engine = stage.run(stage.pool(), effects.clone(), |e| e.register::<Walker>().settings(settings));
    rule.fired(1).await;
    for (n, walker) in enqueued.iter().enumerate() {
        stage.lab.settled(walker.id, LONG).await.unwrap().expect("nobody found it");
        assert_walked_once(&stage, &effects, walker.id.raw(), First::ALL[n % 5], "a lost claim").await;
    }
    let lost = "select count(*) from S.audit where old_status = 'executing' and old_seq = new_seq";
    assert_eq!(stage.number(lost).await, 20, "the pick that was cut had claimed them all");
    engine.stop().await;
}

#[tokio::test]
async fn a_pick_that_never_arrived_is_simply_made_again() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let engine = stage.run(stage.pool(), effects.clone(), |e| e.register::<Walker>().settings(quick()));
    engine.ready().await;
    for fault in [Fault::CutBefore, Fault::CutRequest] {
        let rule = stage.proxy.on(".pick(", fault);
        let walker = stage.lab.enqueue(Walker { first: First::Next, steps: 0 }).await.unwrap();
        rule.fired(1).await;
        stage.lab.settled(walker.id, LONG).await.unwrap().unwrap();
        assert_walked_once(&stage, &effects, walker.id.raw(), First::Next, "a pick that was cut").await;
    }
    engine.stop().await;
}
