//! Tests of an enqueue with a lost answer: the caller gets an error that says that the outcome is
//! unknown, and never an error that says that the enqueue failed.

use gen_durable::{Client, SECOND};

use super::{
    proxy::Fault,
    stage::Stage,
    walker::{First, Walker},
};

const ENQUEUE: &str = "store::enqueue";

#[tokio::test]
async fn an_enqueue_returns_unknown_if_its_answer_is_lost_and_transient_if_the_server_refuses_it() {
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
        // The server receives half of a request that the proxy cuts, and ignores it: no instance of
        // that request may ever appear.
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
        // The client may detect the broken connection only when it sends a statement. Then the
        // outcome of that statement is unknown, and the proxy refuses the statement of the next
        // call.
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
    // No server listens on port 1, and the proxy of the test refuses connections.
    stage.proxy.go_down().await;
    let unreachable = Client::new(stage.pool_at(1, "gen_durable_runtime"));
    let error = unreachable.enqueue(walker()).await.unwrap_err();
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
    // When the proxy accepts connections, the same client can enqueue instances.
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
