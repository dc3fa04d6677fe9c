//! Tests of a shutdown of the engine while the database does not answer: the shutdown ends at most
//! a few seconds after `drain_timeout`.

use gen_durable::{Context, HOUR, Job, SECOND, Settings, StepError};
use serde::{Deserialize, Serialize};

use super::{
    proxy::Fault,
    stage::Stage,
    walker::{Effects, First, Walker, quick},
};
use crate::support::eventually;

/// A job with a step that does not end by itself.
#[derive(Serialize, Deserialize)]
struct Endless;
impl Job for Endless {
    const NAME: &'static str = "endless";
    type App = Effects;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().note(cx.idempotency_key(), cx.fencing_token());
        std::future::pending().await
    }
}

/// Returns settings with which the client never gives up on a statement, so that a shutdown that
/// waited for a statement would not end.
fn no_statement_timeout() -> Settings {
    Settings {
        statement_timeout: HOUR,
        drain_timeout: SECOND,
        ..quick()
    }
}

#[tokio::test]
async fn an_engine_shuts_down_even_if_the_server_never_answers_a_pick() {
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), Effects::default(), |e| {
        e.register::<Walker>().settings(no_statement_timeout())
    });
    engine.ready().await;
    let rule = stage
        .proxy
        .on_each("._pick(", Fault::SwallowRequest, 0, usize::MAX);
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
async fn an_engine_shuts_down_even_if_the_server_answers_none_of_its_statements() {
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), Effects::default(), |e| {
        e.register::<Walker>().settings(no_statement_timeout())
    });
    engine.ready().await;
    let committing = stage.proxy.on_each(
        "._write_step_results($1",
        Fault::SwallowRequest,
        0,
        usize::MAX,
    );
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
        "._pick(",
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
async fn an_engine_shuts_down_even_if_the_server_never_answers_the_release_of_a_claim() {
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
        "store::pick::release_claims",
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
