//! Tests that every way to settle the head of a lane promotes its successor, unless the head failed
//! and blocks its lane. A stuck head keeps its lane.

use gen_durable::{Id, inspect::Status, testing::Lab};

use super::{At, RunLog, Walk, blocking, enqueue, in_lane, lab, run, statement, under};
use crate::support::sql;

const EXPIRED_WORKER: &str = "dead0000-0000-0000-0000-000000000001";
const REAP: &str = include_str!("../../../../src/store/sql/reap.sql");

/// Makes the worker of the instance crash for the third time while the step runs, and reaps the
/// worker.
async fn third_crash(lab: &Lab<RunLog>, id: Id<Walk>) {
    run(
        lab,
        &format!(
            "update S.instances set status = 'executing', locked_by = '{EXPIRED_WORKER}', claim_epoch = claim_epoch + 1,
             begun_epoch = claim_epoch + 1, crash_count = 2 where id = {id}"
        ),
    )
    .await;
    let worker = format!(
        "insert into S.workers (id, lease_expires_at, host, pid, queues, machines)
         values ('{EXPIRED_WORKER}', statement_timestamp() - interval '1 s', 'h', 1, '{{}}', '{{}}') on conflict do nothing"
    );
    run(lab, &worker).await;
    let text = statement(lab, REAP)
        .replace("$1", &format!("'{EXPIRED_WORKER}'"))
        .replace("$2", "10")
        .replace("$3", "3");
    let reaped = sql().await.query(&text, &[]).await.unwrap();
    assert_eq!(reaped.len(), 1);
    assert_eq!(lab.status_of(id).await, Status::Stuck);
}

/// Enqueues a head and its successor, and runs the head until it settles or waits.
async fn head_and_follower(lab: &Lab<RunLog>, walk: Walk, at: At) -> (Id<Walk>, Id<Walk>) {
    let follower = Walk {
        blocks: false,
        n: 2,
        ..walk.clone()
    };
    let head = enqueue(lab, walk, at).await;
    let follower = enqueue(lab, follower, At::Good).await;
    lab.drain().await;
    (head, follower)
}

#[tokio::test]
async fn a_head_that_is_done_or_failed_promotes_its_successor_unless_its_failure_blocks_the_lane() {
    let (lab, _) = lab().await;
    for (walk, at, then) in [
        (in_lane("done", 1), At::Good, Status::Done),
        (in_lane("failed", 1), At::Fail, Status::Done),
        (blocking("blocks and is done", 1), At::Good, Status::Done),
        (blocking("blocks", 1), At::Fail, Status::Queued),
        (in_lane("backs off", 1), At::Backoff, Status::Queued),
        (in_lane("waits", 1), At::Wait, Status::Queued),
        (in_lane("joins", 1), At::Fan, Status::Queued),
    ] {
        let lane = walk.lane.clone();
        let (_, follower) = head_and_follower(&lab, walk, at).await;
        assert_eq!(lab.status_of(follower).await, then, "{lane:?}");
    }
}

#[tokio::test]
async fn a_cancelled_head_promotes_its_successor_from_every_waiting_status() {
    let (lab, _) = lab().await;
    for (name, at) in [
        ("backs off", At::Backoff),
        ("waits", At::Wait),
        ("joins", At::Fan),
    ] {
        // The successor runs even if the head blocks its lane on failure, because a cancelled head
        // has not failed.
        let (head, follower) = head_and_follower(&lab, blocking(name, 1), at).await;
        assert!(lab.cancel(head, "enough").await.unwrap());
        assert_eq!(
            lab.status_of(follower).await,
            Status::Queued,
            "{name}: only the next pick promotes it"
        );
        lab.drain().await;
        assert_eq!(lab.status_of(follower).await, Status::Done, "{name}");
    }
    let (head, follower) = head_and_follower(&lab, in_lane("stuck", 1), At::Backoff).await;
    run(
        &lab,
        &format!("update S.instances set status = 'stuck' where id = {head}"),
    )
    .await;
    lab.drain().await;
    assert_eq!(lab.status_of(follower).await, Status::Queued);
    assert!(lab.cancel(head, "enough").subtree().await.unwrap());
    lab.drain().await;
    assert_eq!(lab.status_of(follower).await, Status::Done);
}

#[tokio::test]
async fn a_head_that_is_stuck_after_worker_crashes_keeps_its_lane_until_an_operator_retries_it() {
    let (lab, run_log) = lab().await;
    for walk in [in_lane("a", 1), blocking("b", 1)] {
        let (head, follower) = head_and_follower(&lab, walk, At::Backoff).await;
        third_crash(&lab, head).await;
        lab.drain().await;
        assert_eq!(lab.status_of(follower).await, Status::Queued);
        let row = lab.row_of(head).await;
        assert_eq!(
            row.last_error.as_deref(),
            Some("the worker crashed 3 times while it ran the step")
        );
        assert_eq!(
            (row.crash_count, row.settled_at, row.is_lane_head()),
            (3, None, true)
        );
        lab.operate().retry(head.raw()).await.unwrap();
        assert_eq!(
            (
                lab.row_of(head).await.crash_count,
                lab.row_of(head).await.attempt
            ),
            (0, 0)
        );
        lab.skip(2 * gen_durable::HOUR).await;
        assert_eq!(
            (lab.status_of(head).await, lab.status_of(follower).await),
            (Status::Done, Status::Done)
        );
    }
    assert_eq!(run_log.read(), [1, 1, 1, 2].repeat(2));
}

#[tokio::test]
async fn a_stuck_head_keeps_its_lane_until_an_engine_or_an_operator_retries_it() {
    let (lab, _) = lab().await;
    let retry_stuck = statement(
        &lab,
        include_str!("../../../../src/store/sql/retry_stuck.sql"),
    );
    for retried in [true, false] {
        let (head, follower) =
            head_and_follower(&lab, in_lane(&format!("{retried}"), 1), At::Backoff).await;
        run(
            &lab,
            &format!(
                "update S.instances set status = 'stuck', eligible_at = S.clock() where id = {head}"
            ),
        )
        .await;
        lab.drain().await;
        assert_eq!(lab.status_of(follower).await, Status::Queued);
        let position = lab.row_of(head).await.lane_position;
        if retried {
            lab.operate()
                .retry(head.raw())
                .at_step("good")
                .await
                .unwrap();
        } else {
            sql()
                .await
                .query(&retry_stuck, &[&vec![head.raw()]])
                .await
                .unwrap();
        }
        let row = lab.row_of(head).await;
        assert_eq!(
            (row.status, row.lane_position, row.is_lane_head()),
            (Status::Runnable, position, true)
        );
        lab.drain().await;
        assert_eq!(
            (lab.status_of(head).await, lab.status_of(follower).await),
            (Status::Done, Status::Done)
        );
    }
}

#[tokio::test]
async fn the_repair_promotes_the_successor_of_a_head_that_an_operator_deleted() {
    let (lab, _) = lab().await;
    let (head, follower) = head_and_follower(&lab, in_lane("a", 1), At::Wait).await;
    run(&lab, &format!("delete from S.instances where id = {head}")).await;
    lab.drain().await;
    assert_eq!(
        lab.status_of(follower).await,
        Status::Queued,
        "placement does not know of the deletion"
    );
    let lane = lab.inspect().lane("server:a").await.unwrap().unwrap();
    assert_eq!(lane.head.unwrap().instance.status, Status::Queued);
    let repair = statement(
        &lab,
        "select repaired from gen_durable._repair('', '', '', '', 500)",
    );
    assert_eq!(
        sql()
            .await
            .query_one(&repair, &[])
            .await
            .unwrap()
            .get::<_, i32>(0),
        1
    );
    lab.drain().await;
    assert_eq!(lab.status_of(follower).await, Status::Done);
}

#[tokio::test]
async fn a_cancelled_instance_to_which_a_repair_gave_an_arrival_number_promotes_its_successor() {
    let (lab, _) = lab().await;
    let (head, follower) = head_and_follower(&lab, in_lane("a", 1), At::Wait).await;
    let last = enqueue(&lab, in_lane("a", 3), At::Good).await;
    lab.drain().await;
    // The test deletes the head and gives the follower an arrival number, as a repair does that
    // finds a lane without a head. The next placement finds the lane by this arrival number.
    run(&lab, &format!("delete from S.instances where id = {head}")).await;
    run(
        &lab,
        &format!(
            "update S.instances set arrival_no = nextval('S.arrival_numbers') where id = {follower}"
        ),
    )
    .await;
    assert!(lab.cancel(follower, "enough").await.unwrap());
    lab.drain().await;
    assert_eq!(lab.status_of(last).await, Status::Done);
}

#[tokio::test]
async fn a_partition_holder_that_is_cancelled_reaped_or_stuck_promotes_its_successor() {
    let (lab, _) = lab().await;
    for name in ["cancelled", "reaped", "stuck"] {
        let (head, follower) = (
            enqueue(&lab, under(name, 1), At::Wait).await,
            under(name, 2),
        );
        lab.drain().await;
        // Makes the instance the partition holder, with the status `executing` in the case `stuck`
        // and the status `runnable` in all other cases.
        let status = if name == "stuck" {
            "'executing', locked_by = gen_random_uuid()"
        } else {
            "'runnable'"
        };
        run(
            &lab,
            &format!("update S.instances set status = {status} where id = {head}"),
        )
        .await;
        let follower = enqueue(&lab, follower, At::Good).await;
        match name {
            "reaped" => {
                run(
                    &lab,
                    &format!("update S.instances set eligible_at = S.clock() - interval '1 s' where id = {head}"),
                )
                .await;
                third_crash(&lab, head).await;
            }
            "cancelled" => assert!(lab.cancel(head, "enough").await.unwrap()),
            _ => {
                lab.drain().await;
                assert_eq!(
                    lab.status_of(follower).await,
                    Status::Runnable,
                    "it waits for the partition"
                );
                let settle = "select written.id from gen_durable.instances i,
                     lateral gen_durable._write_keyed_step_results(array[i.id], array[i.claim_epoch], array[i.step_seq], array['stuck'],
                        array[null::int], array[null::text], array[null::text], array[null::text], array[null::text],
                        array['no build knows it'], array[0], array[0::float8], null, '{}', null, 0, '{}') written
                     where i.id = $1";
                assert!(
                    !sql()
                        .await
                        .query(&statement(&lab, settle), &[&head.raw()])
                        .await
                        .unwrap()
                        .is_empty()
                );
                assert_eq!(lab.status_of(head).await, Status::Stuck);
            }
        }
        lab.drain().await;
        assert_eq!(lab.status_of(follower).await, Status::Done, "{name}");
    }
}

/// Sets up an expired worker with the claims of a parent and of its child. The parent already runs
/// again because it joined any child and another child settled. The child has had two crashes, so
/// this crash is its third.
async fn family(lab: &Lab<RunLog>) -> (Id<Walk>, i64) {
    let parent = enqueue(lab, under("key of the parent", 1), At::Fan).await;
    lab.drain().await;
    let child = format!("select id from S.instances where parent_id = {parent}")
        .replace("S.", &format!("{}.", lab.pool().schema()));
    let child: i64 = sql().await.query_one(&child, &[]).await.unwrap().get(0);
    // Updates the row of the child before the row of its parent, so that a sequential scan of
    // `instances` reads the child first.
    for (id, crashes) in [(child, 2), (parent.raw(), 0)] {
        let held = format!(
            "update S.instances set status = 'executing', locked_by = '{EXPIRED_WORKER}', claim_epoch = claim_epoch + 1, partition_waiting = false,
             begun_epoch = claim_epoch + 1, join_any = true, deadline_at = null, eligible_at = S.clock(), crash_count = {crashes} where id = {id}"
        );
        run(lab, &held).await;
    }
    run(
        lab,
        &format!(
            "insert into S.workers (id, lease_expires_at, host, pid, queues, machines)
             values ('{EXPIRED_WORKER}', statement_timestamp() - interval '1 s', 'h', 1, '{{}}', '{{}}')"
        ),
    )
    .await;
    (parent, child)
}

async fn reap(lab: &Lab<RunLog>) -> Vec<i64> {
    let text = statement(lab, REAP)
        .replace("$1", &format!("'{EXPIRED_WORKER}'"))
        .replace("$2", "10")
        .replace("$3", "3");
    // Makes the planner use sequential scans and no nested loops for the reap statement, as it does
    // for a table with few rows. The statement must reap the same instances with every plan.
    let client = sql().await;
    client
        .batch_execute(
            "set enable_nestloop = off; set enable_indexscan = off; set enable_bitmapscan = off",
        )
        .await
        .unwrap();
    let mut reaped: Vec<i64> = client
        .query(&text, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    reaped.sort_unstable();
    reaped
}

#[tokio::test]
async fn a_parent_and_its_child_of_one_expired_worker_are_both_reaped() {
    let (lab, _) = lab().await;
    let (parent, child) = family(&lab).await;
    assert_eq!(reap(&lab).await, [parent.raw(), child]);
    let row = lab.row_of(parent).await;
    assert_eq!((row.status, row.attempt), (Status::Runnable, 1));
    assert_eq!(
        row.children_pending, 1,
        "a child that is set aside has not settled: its parent still waits for it"
    );
    assert_eq!(
        lab.row_of(Id::<Walk>::from_raw(child)).await.status,
        Status::Stuck
    );
}

#[tokio::test]
async fn a_child_is_reaped_while_another_transaction_locks_its_parent() {
    let (lab, _) = lab().await;
    let (parent, child) = family(&lab).await;
    run(
        &lab,
        &format!(
            "update S.instances set status = 'runnable', locked_by = null where id = {parent}"
        ),
    )
    .await;
    let holder = sql().await;
    let hold = format!(
        "begin; select from {}.instances where id = {parent} for no key update",
        lab.pool().schema()
    );
    holder.batch_execute(&hold).await.unwrap();
    assert_eq!(reap(&lab).await, [child]);
}

#[tokio::test]
async fn a_child_of_a_deleted_parent_is_reaped_and_set_to_stuck() {
    let (lab, _) = lab().await;
    let (parent, child) = family(&lab).await;
    run(
        &lab,
        &format!("delete from S.instances where id = {parent}"),
    )
    .await;
    assert_eq!(reap(&lab).await, [child]);
    assert_eq!(
        lab.row_of(Id::<Walk>::from_raw(child)).await.status,
        Status::Stuck
    );
    let delete_worker = statement(
        &lab,
        include_str!("../../../../src/store/sql/delete_expired_worker.sql"),
    );
    assert_eq!(
        sql()
            .await
            .execute(&delete_worker, &[&EXPIRED_WORKER])
            .await
            .unwrap(),
        1,
        "the expired worker holds no more claims"
    );
}
