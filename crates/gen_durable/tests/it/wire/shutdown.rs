//! A shutdown while the database does not answer: it ends at most a few seconds after its drain
//! timeout.

use gen_durable::{Context, HOUR, Job, SECOND, Settings, StepError};
use serde::{Deserialize, Serialize};

use super::{
    proxy::Fault,
    stage::Stage,
    walker::{Effects, First, Walker, quick},
};
use crate::support::eventually;

/// A step that does not end by itself.
#[derive(Serialize, Deserialize)]
struct Endless;
impl Job for Endless {
    const NAME: &'static str = "endless";
    type App = Effects;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app.note(cx.idempotency_key(), cx.fencing_token());
        std::future::pending().await
    }
}

/// Settings with which the client never gives up on a statement: a shutdown that waited for one
/// would not end.
fn no_statement_timeout() -> Settings {
    Settings {
        statement_timeout: HOUR,
        drain_timeout: SECOND,
        ..quick()
    }
}

#[tokio::test]
async fn a_shutdown_ends_while_a_pick_is_unanswered() {
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), Effects::default(), |e| {
        e.register::<Walker>().settings(no_statement_timeout())
    });
    engine.ready().await;
    let rule = stage
        .proxy
        .on_each(".pick(", Fault::SwallowRequest, 0, usize::MAX);
    stage
        .lab
        .enqueue(Walker {
            first: First::Done,
            steps: 0,
        })
        .await
        .unwrap();
    rule.fired(1).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_shutdown_ends_while_every_statement_of_its_own_is_unanswered() {
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), Effects::default(), |e| {
        e.register::<Walker>().settings(no_statement_timeout())
    });
    engine.ready().await;
    let committing = stage
        .proxy
        .on_each(".settle($1", Fault::SwallowRequest, 0, usize::MAX);
    stage
        .lab
        .enqueue(Walker {
            first: First::Done,
            steps: 0,
        })
        .await
        .unwrap();
    committing.fired(1).await;
    for text in [
        ".pick(",
        "store::lease::",
        "store::pick::",
        "store::resolve::",
    ] {
        stage
            .proxy
            .on_each(text, Fault::SwallowRequest, 0, usize::MAX);
    }
    engine.stop().await;
    assert_eq!(
        stage
            .number("select count(*) from S.instances where status = 'executing'")
            .await,
        1,
        "the claim stays until its lease expires"
    );
}

#[tokio::test]
async fn a_shutdown_ends_while_a_claim_cannot_be_released() {
    let (stage, effects) = (Stage::new().await, Effects::default());
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Endless>().settings(no_statement_timeout())
    });
    engine.ready().await;
    let id = stage.lab.enqueue(Endless).await.unwrap().id.raw();
    eventually("the step runs", async || {
        !effects.of("endless", id).is_empty()
    })
    .await;
    let releasing = stage.proxy.on_each(
        "store::pick::give_back",
        Fault::SwallowRequest,
        0,
        usize::MAX,
    );
    engine.stop().await;
    releasing.fired(1).await;
    assert_eq!(
        stage
            .number("select count(*) from S.instances where status = 'executing'")
            .await,
        1,
        "the claim stays until its lease expires"
    );
}
