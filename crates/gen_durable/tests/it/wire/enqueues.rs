//! An enqueue whose answer was lost: the caller is told that nobody knows, and never that it failed.

use gen_durable::{Client, SECOND};

use super::{
    proxy::Fault,
    stage::Stage,
    walker::{First, Walker},
};

const ENQUEUE: &str = "store::enqueue";

#[tokio::test]
async fn an_enqueue_whose_answer_was_lost_is_unknown_and_one_that_was_refused_is_transient() {
    let stage = Stage::new().await;
    let pool = stage.pool();
    let client = Client::new(pool.clone());
    let walker = || Walker {
        first: First::Done,
        steps: 0,
    };
    let mut there = 0;
    for (fault, happened) in [
        (Fault::CutBefore, false),
        (Fault::CutRequest, false),
        (Fault::CutAnswer, true),
        (Fault::CutAfter, true),
    ] {
        stage.proxy.on(ENQUEUE, fault);
        let error = client.enqueue(walker()).await.unwrap_err();
        assert!(
            error.is_unknown() && !error.is_transient(),
            "{fault:?}: {error}"
        );
        assert!(error.to_string().contains("may have been done"), "{error}");
        // A cut request reaches the server and is thrown away there: nothing of it may ever appear.
        there += i64::from(happened);
        stage.until("select count(*) from S.instances", there).await;

        stage.proxy.on(ENQUEUE, fault);
        let error = client.enqueue_all([walker(), walker()]).await.unwrap_err();
        assert!(error.is_unknown(), "{fault:?}: {error}");
        there += if happened { 2 } else { 0 };
        stage.until("select count(*) from S.instances", there).await;
    }
    for code in ["53300", "57P03", "53100", "53200", "25006", "58030"] {
        let rule = if code == "57P03" {
            stage.proxy.go_down().await;
            stage.proxy.come_back();
            stage.proxy.on("", Fault::Refuse(code))
        } else {
            stage.proxy.on(ENQUEUE, Fault::Refuse(code))
        };
        // The broken connection may be noticed only when it is used: then nobody can know, and the next call is refused.
        let mut error = client.enqueue(walker()).await.unwrap_err();
        if rule.has_fired() == 0 {
            assert!(error.is_unknown(), "{code}: {error}");
            error = client.enqueue(walker()).await.unwrap_err();
        }
        assert!(
            error.is_transient() && !error.is_unknown(),
            "{code}: {error}"
        );
        assert!(error.to_string().contains("nothing was done"), "{error}");
    }
    // Nobody listens there at all.
    stage.proxy.go_down().await;
    let nobody = Client::new(stage.pool_at(1, "gen_durable_runtime"));
    let error = nobody.enqueue(walker()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let error = Client::new(stage.pool())
        .enqueue(walker())
        .await
        .unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(
        stage.number("select count(*) from S.instances").await,
        there
    );
    // And when it is back, the same client works on.
    stage.proxy.come_back();
    let back = async {
        while client.enqueue(walker()).await.is_err() {
            tokio::time::sleep(SECOND / 100).await;
        }
    };
    tokio::time::timeout(super::stage::LONG, back)
        .await
        .unwrap();
    assert_eq!(
        stage.number("select count(*) from S.instances").await,
        there + 1
    );
}
