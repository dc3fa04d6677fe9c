//! Tests the acts of operators on a lane that its failed head blocks: `lane_retry`, `lane_skip`,
//! and `lane_discard`, which cancels the head.

use gen_durable::{
    Lane,
    inspect::{LaneFilter, Status},
    operate::UntypedInstance,
};

use super::{At, blocking, enqueue, in_lane, lab, run, statement};
use crate::support::{eventually, sql};

#[tokio::test]
async fn a_head_that_an_operator_retries_keeps_its_lane_position_and_runs_before_its_successor() {
    let (lab, run_log) = lab().await;
    let head = enqueue(&lab, blocking("a", 1), At::Fail).await;
    let next = enqueue(&lab, in_lane("a", 2), At::Good).await;
    lab.drain().await;
    assert_eq!(run_log.read(), [1]);
    assert_eq!(
        lab.operate().lane_retry("server:a").await.unwrap(),
        head.raw()
    );
    assert_eq!(
        (lab.status_of(head).await, lab.status_of(next).await),
        (Status::Runnable, Status::Queued)
    );
    lab.drain().await;
    assert_eq!(run_log.read(), [1, 1], "it failed again, and still blocks");
    run(
        &lab,
        &format!("update S.instances set step = 'good' where id = {head}"),
    )
    .await;
    // If an operator retries the head by its id, the head keeps its lane position.
    lab.operate().retry(head.raw()).await.unwrap();
    lab.drain().await;
    assert_eq!(run_log.read(), [1, 1, 1, 2]);
    assert_eq!(
        (lab.status_of(head).await, lab.status_of(next).await),
        (Status::Done, Status::Done)
    );
}

#[tokio::test]
async fn a_skipped_head_stays_failed_a_discarded_head_is_cancelled_and_both_promote_a_successor() {
    let (lab, run_log) = lab().await;
    let head = enqueue(&lab, blocking("a", 1), At::Fail).await;
    let second = enqueue(&lab, blocking("a", 2), At::Fail).await;
    let third = enqueue(&lab, in_lane("a", 3), At::Good).await;
    lab.drain().await;
    assert_eq!(
        lab.operate()
            .lane_skip(Lane::new("server", "a"))
            .await
            .unwrap(),
        head.raw()
    );
    lab.drain().await;
    assert_eq!(
        (lab.status_of(head).await, run_log.read()),
        (Status::Failed, vec![1, 2])
    );
    assert_eq!(
        lab.operate()
            .lane_discard("server:a", "by\0hand")
            .await
            .unwrap(),
        second.raw()
    );
    lab.drain().await;
    let row = lab.row_of(second).await;
    assert_eq!(
        (row.status, lab.status_of(third).await),
        (Status::Cancelled, Status::Done)
    );
    assert_eq!(
        row.last_error.as_deref(),
        Some("by\u{fffd}hand; it had failed: it cannot be")
    );
    // If an operator retries an instance that has left its lane, placement puts the instance at the
    // end of the lane.
    let fourth = enqueue(&lab, in_lane("a", 4), At::Wait).await;
    let fifth = enqueue(&lab, in_lane("a", 5), At::Good).await;
    lab.drain().await;
    lab.operate()
        .retry(head.raw())
        .at_step("good")
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(head).await, Status::Queued);
    let (again, before) = (lab.row_of(head).await, lab.row_of(fifth).await);
    assert!(again.in_lane && again.lane_position > before.lane_position);
    lab.cancel(fourth, "enough").await.unwrap();
    lab.drain().await;
    assert_eq!(run_log.read(), [1, 2, 3, 4, 5, 1]);
}

#[tokio::test]
async fn operator_acts_on_a_lane_that_is_not_blocked_fail_with_the_state_of_the_head_and_a_remedy()
{
    let (lab, run_log) = lab().await;
    let operate = lab.operate();
    assert!(
        operate
            .lane_skip("server:a")
            .await
            .unwrap_err()
            .is_not_found()
    );
    assert!(operate.lane_skip("").await.unwrap_err().is_invalid());
    assert!(operate.lane_skip("nul\0").await.unwrap_err().is_invalid());
    let head = enqueue(&lab, blocking("a", 1), At::Wait).await;
    enqueue(&lab, in_lane("a", 2), At::Good).await;
    let refused = async |says: &[&str]| {
        for error in [
            operate.lane_retry("server:a").await.unwrap_err(),
            operate.lane_skip("server:a").await.unwrap_err(),
            operate.lane_discard("server:a", "x").await.unwrap_err(),
        ] {
            assert!(error.is_invalid(), "{error}");
            says.iter()
                .for_each(|part| assert!(error.to_string().contains(part), "{part}: {error}"));
        }
    };
    refused(&["has no head yet"]).await;
    lab.drain().await;
    refused(&[
        "awaiting_signal",
        "(walk, step good)",
        &format!("`durable cancel {head}`"),
    ])
    .await;
    run(
        &lab,
        &format!("update S.instances set status = 'stuck' where id = {head}"),
    )
    .await;
    refused(&[
        "stuck",
        &format!("`durable retry {head}`"),
        &format!("`durable cancel {head}`"),
    ])
    .await;
    assert!(
        operate
            .lane_skip(Lane::new("server", "a").of("acme"))
            .await
            .unwrap_err()
            .is_not_found()
    );
    // The calls `lane_retry`, `lane_skip` and `lane_discard` that returned an error changed no row.
    assert_eq!(run_log.read(), [1]);
    let lane = lab.inspect().lane("server:a").await.unwrap().unwrap();
    assert_eq!(
        (lane.depth, lane.head.unwrap().instance.status),
        (2, Status::Stuck)
    );
    // A failed head that does not block its lane needs no act of an operator: its successor runs.
    lab.cancel(head, "enough").await.unwrap();
    enqueue(&lab, in_lane("a", 3), At::Fail).await;
    lab.drain().await;
    assert!(
        operate
            .lane_retry("server:a")
            .await
            .unwrap_err()
            .is_not_found()
    );
}

#[tokio::test]
async fn lane_retry_is_refused_if_another_instance_now_holds_the_key_of_the_head() {
    let (lab, _) = lab().await;
    let new = |at: &str, lane: Option<&str>| {
        let state = "{\"lane\": null, \"blocks\": false, \"partition\": null, \"n\": 1}";
        let mut new = UntypedInstance::new("walk", at, state);
        (new.key, new.lane, new.lane_blocks) = (
            Some("the-one".into()),
            lane.map(str::to_owned),
            lane.is_some(),
        );
        new
    };
    let head = lab
        .operate()
        .enqueue(new("fail", Some("l")))
        .await
        .unwrap()
        .id
        .raw();
    lab.drain().await;
    let second = lab.operate().enqueue(new("wait", None)).await.unwrap();
    assert!(second.is_new, "the key of a failed instance is free");
    let error = lab.operate().lane_retry("l").await.unwrap_err();
    assert!(
        error.is_key_taken() && error.to_string().contains("holds its key"),
        "{error}"
    );
    assert_eq!(
        lab.inspect()
            .lane("l")
            .await
            .unwrap()
            .unwrap()
            .head
            .unwrap()
            .instance
            .id,
        head
    );
    assert_eq!(lab.operate().lane_skip("l").await.unwrap(), head);
    // The client refuses invalid lane keys and partition keys before it sends a statement.
    for (lane, partition) in [
        (Some(""), None),
        (Some("x\0"), None),
        (None, Some("")),
        (None, Some("\0")),
    ] {
        let mut wrong = UntypedInstance::new("walk", "good", "1");
        (wrong.lane, wrong.partition) = (lane.map(str::to_owned), partition.map(str::to_owned));
        assert!(lab.operate().enqueue(wrong).await.unwrap_err().is_invalid());
    }
    let mut wrong = UntypedInstance::new("walk", "good", "1");
    wrong.lane_blocks = true;
    assert!(
        lab.operate().enqueue(wrong).await.unwrap_err().is_invalid(),
        "an instance without a lane has no lane to block"
    );
}

#[tokio::test]
async fn retention_does_not_delete_a_failed_head_that_blocks_its_lane_until_it_has_left_the_lane() {
    let (lab, _) = lab().await;
    let collect = statement(&lab, include_str!("../../../../src/store/sql/collect.sql"));
    let collected = async || -> i64 {
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&60_f64, &60_f64, &0_f64, &100_i32];
        sql()
            .await
            .query_one(&collect, &params)
            .await
            .unwrap()
            .get(0)
    };
    for lane in ["stays", "skipped", "discarded"] {
        enqueue(&lab, blocking(lane, 1), At::Fail).await;
        enqueue(&lab, in_lane(lane, 2), At::Wait).await;
    }
    lab.drain().await;
    lab.skip(2 * gen_durable::HOUR).await;
    assert_eq!(collected().await, 0, "all three block their lanes");
    lab.operate().lane_skip("server:skipped").await.unwrap();
    lab.operate()
        .lane_discard("server:discarded", "x")
        .await
        .unwrap();
    assert_eq!(
        collected().await,
        0,
        "placement has not handled their lanes yet"
    );
    lab.drain().await;
    assert_eq!(
        collected().await,
        1,
        "the skipped head is collected; the discarded one has only just settled"
    );
    lab.skip(2 * gen_durable::HOUR).await;
    assert_eq!(collected().await, 1);
    let blocked = lab
        .inspect()
        .lanes(LaneFilter {
            blocked: true,
            ..LaneFilter::default()
        })
        .await
        .unwrap();
    assert_eq!(
        blocked
            .iter()
            .map(|lane| lane.key.as_str())
            .collect::<Vec<_>>(),
        ["server:stays"]
    );
    let waiting = lab.inspect().lanes(LaneFilter::default()).await.unwrap();
    assert_eq!(
        waiting.iter().map(|lane| lane.depth).collect::<Vec<_>>(),
        [1, 1, 2]
    );
    assert_eq!(collected().await, 0);
}

#[tokio::test]
async fn the_second_of_two_concurrent_acts_on_a_blocked_lane_is_refused() {
    let (lab, run_log) = lab().await;
    let head = enqueue(&lab, blocking("a", 1), At::Fail).await;
    let next = enqueue(&lab, blocking("a", 2), At::Fail).await;
    lab.drain().await;
    // The transaction of the first operator skips the head and has not committed yet.
    let first = sql().await;
    let skip = statement(
        &lab,
        include_str!("../../../../src/store/sql/lane_skip.sql"),
    );
    first.batch_execute("begin").await.unwrap();
    let text = skip.replace("$1", "''").replace("$2", "'server:a'");
    assert_eq!(first.query(&text, &[]).await.unwrap().len(), 1);
    let operate = lab.operate();
    let second = tokio::spawn(async move { operate.lane_retry("server:a").await });
    let waits = format!(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%{}.instances%'",
        lab.pool().schema()
    );
    let observer = sql().await;
    eventually("the second waits for the first", async || {
        observer
            .query_one(&waits, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 1
    })
    .await;
    first.batch_execute("commit").await.unwrap();
    let error = second.await.unwrap().unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert_eq!(
        lab.status_of(head).await,
        Status::Failed,
        "it was skipped and is not retried"
    );
    lab.drain().await;
    assert_eq!(
        (run_log.read(), lab.status_of(next).await),
        (vec![1, 2], Status::Failed)
    );
    assert!(
        lab.inspect()
            .lane("server:a")
            .await
            .unwrap()
            .unwrap()
            .is_blocked(),
        "the next head blocks it now"
    );
}
