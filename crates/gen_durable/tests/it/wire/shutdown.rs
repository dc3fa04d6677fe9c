//! A shutdown that meets a database that does not answer: it ends all the same, at most a few seconds after its drain's timeout.

use gen_durable::{HOUR, SECOND, Settings};

use super::{
    proxy::Fault,
    stage::Stage,
    walker::{Effects, First, Walker, quick},
};

/// No statement is ever given up: a shutdown that waited for one would not end.
fn patient() -> Settings {
    Settings { statement_timeout: HOUR, drain_timeout: SECOND, ..quick() }
}

#[tokio::test]
async fn a_shutdown_ends_while_a_pick_is_unanswered() {
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), Effects::default(), |e| e.register::<Walker>().settings(patient()));
    engine.ready().await;
    let rule = stage.proxy.on_each(".pick(", Fault::SwallowRequest, 0, usize::MAX);
    stage.lab.enqueue(Walker { first: First::Done, steps: 0 }).await.unwrap();
    rule.fired(1).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_shutdown_ends_while_every_statement_of_its_own_is_unanswered() {
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), Effects::default(), |e| e.register::<Walker>().settings(patient()));
    engine.ready().await;
    let committing = stage.proxy.on_each(".settle($1", Fault::SwallowRequest, 0, usize::MAX);
    stage.lab.enqueue(Walker { first: First::Done, steps: 0 }).await.unwrap();
    committing.fired(1).await;
    for text in [".pick(", "store::lease::", "store::pick::", "store::resolve::"] {
        stage.proxy.on_each(text, Fault::SwallowRequest, 0, usize::MAX);
    }
    engine.stop().await;
    assert_eq!(
        stage.number("select count(*) from S.instances where status = 'executing'").await,
        1,
        "its lease frees it"
    );
}
