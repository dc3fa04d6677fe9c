//! Tests of placement: arrival order, large batches, locked lanes and partition holders.

use gen_durable::{Id, inspect::Status, testing::Lab};

use super::{rows, run_placement, tick, with};
use crate::lanes::keyed::{At, RunLog, Walk, enqueue, in_lane, lab, run, statement, under};
use crate::support::sql;

#[tokio::test]
async fn placement_assigns_lane_positions_in_arrival_order_and_makes_the_head_runnable() {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, in_lane("a", 1), At::Good).await,
        enqueue(&lab, in_lane("a", 2), At::Good).await,
    ];
    let (first, second) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    run_placement(&lab).await;
    let (head, behind) = rows(&lab, ids).await;
    let expected = with(&first, |row| {
        (row.status, row.in_lane, row.lane_position, row.arrival_no) =
            (Status::Runnable, true, head.lane_position, None);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(head, expected);
    let expected = with(&second, |row| {
        (row.in_lane, row.lane_position, row.arrival_no) =
            (true, head.lane_position.map(|position| position + 1), None);
    });
    assert_eq!(behind, expected, "it only has a lane position");
}

#[tokio::test]
async fn an_enqueue_outside_a_transaction_gets_its_lane_position_at_once_behind_earlier_arrivals() {
    let (lab, _) = lab().await;
    let arrived = enqueue(&lab, in_lane("a", 1), At::Good).await;
    let made = lab
        .enqueue_all([in_lane("a", 2), in_lane("b", 3), in_lane("a", 4)])
        .await
        .unwrap();
    let head = lab.row_of(arrived).await;
    assert_eq!(
        (head.status, head.in_lane, head.arrival_no),
        (Status::Runnable, true, None),
        "it arrived before"
    );
    let (behind, own, last) = (
        lab.row_of(made[0].id).await,
        lab.row_of(made[1].id).await,
        lab.row_of(made[2].id).await,
    );
    assert_eq!(
        (behind.status, behind.in_lane, behind.arrival_no),
        (Status::Queued, true, None)
    );
    assert_eq!(
        (own.status, own.in_lane, own.arrival_no),
        (Status::Runnable, true, None),
        "its lane was empty"
    );
    assert_eq!(
        (last.status, last.in_lane, last.arrival_no),
        (Status::Queued, true, None)
    );
    assert!(head.lane_position < behind.lane_position && behind.lane_position < last.lane_position);
}

/// If an instance of a batch has both a lane and a partition key, a pick assigns the lane positions
/// of the batch. If the enqueue of the batch assigned them, the instances behind that instance in
/// its lane would get their lane positions before that instance.
#[tokio::test]
async fn a_batch_keeps_its_lane_order_if_some_instances_have_a_partition_key() {
    let (lab, run_log) = lab().await;
    let keyed = |n| Walk {
        partition: Some("key".into()),
        ..in_lane("lane", n)
    };
    lab.enqueue(under("key", 0)).await.unwrap();
    run(&lab, "select S._place(0, 1000)").await;
    lab.enqueue_all([keyed(1), in_lane("lane", 2), keyed(3), in_lane("lane", 4)])
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(run_log.read(), [0, 1, 2, 3, 4]);
}

/// An enqueue of up to 10,000 instances assigns their lane positions itself, and holds the
/// placement lock and the locks of the lanes until it commits. A larger batch would hold these
/// locks for too long, so picks assign its lane positions.
#[tokio::test]
async fn picks_assign_the_lane_positions_of_a_batch_of_more_than_ten_thousand_instances() {
    let (lab, _) = lab().await;
    let placed = statement(
        &lab,
        "select count(*) from gen_durable.instances where in_lane",
    );
    let count = async || {
        sql()
            .await
            .query_one(&placed, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
    };
    lab.enqueue_all((0..10_000).map(|n| in_lane("lane", n)))
        .await
        .unwrap();
    assert_eq!(count().await, 10_000);
    lab.enqueue_all((0..10_001).map(|n| in_lane("another", n)))
        .await
        .unwrap();
    assert_eq!(count().await, 10_000);
    lab.step().await;
    assert!(count().await > 10_000);
}

/// The commit of the partition holder locks the row of the holder, so placement leaves the
/// partition key to the next placement. Of all arrivals under the key only the first keeps its
/// arrival number. That arrival number lowers the partition cursor, and all other arrivals wait
/// behind the first.
#[tokio::test]
async fn all_arrivals_behind_a_locked_partition_holder_run_although_only_one_keeps_its_arrival_number()
 {
    let (lab, run_log) = lab().await;
    let first = enqueue(&lab, under("key", 0), At::Good).await;
    run(&lab, "select S._place(0, 1000)").await;
    run(&lab, &format!("insert into S.partition_cursors (tenant, key, priority, at, id) select tenant, partition_key, 0, eligible_at, id from S.instances where id = {first}")).await;
    let mut tx = lab.pool().begin().await.unwrap();
    lab.enqueue(under("key", 3))
        .priority(-4)
        .within(&mut tx)
        .await
        .unwrap();
    let urgent = lab
        .enqueue(under("key", 1))
        .priority(-5)
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    lab.enqueue(under("key", 2))
        .priority(-4)
        .within(&mut tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    place_while_locked(&lab, first).await;
    assert_eq!(
        run(&lab, "select from S.instances where arrival_no is not null").await,
        1
    );
    assert_eq!(
        run(
            &lab,
            &format!(
                "select from S.instances where arrival_no is not null and id = {}",
                urgent.raw()
            )
        )
        .await,
        1
    );
    lab.drain().await;
    assert_eq!(run_log.read(), [0, 1, 3, 2]);
}

/// A caller cancels the one instance that kept its arrival number before the next placement. The
/// arrival number of the cancelled instance still lowers the partition cursor, so that placement
/// finds the other instances under the key.
#[tokio::test]
async fn other_arrivals_under_a_partition_key_run_after_the_one_with_the_arrival_number_was_cancelled()
 {
    let (lab, run_log) = lab().await;
    let first = enqueue(&lab, under("key", 0), At::Good).await;
    run(&lab, "select S._place(0, 1000)").await;
    run(&lab, &format!("insert into S.partition_cursors (tenant, key, priority, at, id) select tenant, partition_key, 0, eligible_at, id from S.instances where id = {first}")).await;
    let mut tx = lab.pool().begin().await.unwrap();
    let urgent = lab
        .enqueue(under("key", 1))
        .priority(-5)
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    lab.enqueue(under("key", 2))
        .priority(-4)
        .within(&mut tx)
        .await
        .unwrap();
    lab.enqueue(under("key", 3)).within(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    place_while_locked(&lab, first).await;
    run(
        &lab,
        &format!(
            "select S.cancel({}, null, null, null, 'not needed')",
            urgent.raw()
        ),
    )
    .await;
    lab.drain().await;
    assert_eq!(run_log.read(), [0, 2, 3]);
}

/// Runs placement while another transaction holds the row lock of an instance.
async fn place_while_locked(lab: &Lab<RunLog>, id: Id<Walk>) {
    let (holder, schema) = (sql().await, lab.pool().schema());
    holder
        .batch_execute(&format!(
            "begin; select from {schema}.instances where id = {id} for no key update"
        ))
        .await
        .unwrap();
    run(lab, "select S._place(0, 1000)").await;
    holder.batch_execute("commit").await.unwrap();
}

/// Another transaction holds the row lock of a lane, and more instances arrive in this lane than
/// one pass of placement reads. Placement still processes arrivals in other lanes and under
/// partition keys.
#[tokio::test]
async fn a_locked_lane_with_many_arrivals_does_not_delay_placement_in_other_lanes_and_partitions() {
    let (lab, run_log) = lab().await;
    lab.enqueue(in_lane("held", 0)).await.unwrap();
    lab.drain().await;
    let (holder, schema) = (sql().await, lab.pool().schema());
    let lane = format!(
        "begin; insert into {schema}.lanes (tenant, key) values ('', 'server:held') on conflict do nothing"
    );
    holder
        .batch_execute(&format!(
            "{lane}; commit; begin; select from {schema}.lanes where key = 'server:held' for update"
        ))
        .await
        .unwrap();
    lab.enqueue_all((1..=1_500).map(|n| in_lane("held", n)))
        .await
        .unwrap();
    enqueue(&lab, in_lane("free", 2_001), At::Good).await;
    enqueue(&lab, under("key", 2_002), At::Good).await;
    lab.drain().await;
    assert_eq!(run_log.read(), [0, 2_001, 2_002]);
    holder.batch_execute("commit").await.unwrap();
    lab.drain().await;
    assert_eq!(run_log.read()[3..], (1..=1_500).collect::<Vec<_>>());
}

/// Another transaction locks an instance that waits for its lane position. Instances that already
/// have a lane position run, and later arrivals get no position before the locked instance.
#[tokio::test]
async fn an_instance_locked_before_placement_does_not_delay_instances_ahead_of_it_in_its_lane() {
    let (lab, run_log) = lab().await;
    let head = enqueue(&lab, in_lane("lane", 1), At::Wait).await;
    enqueue(&lab, in_lane("lane", 2), At::Good).await;
    lab.drain().await;
    let held = enqueue(&lab, in_lane("lane", 3), At::Good).await;
    enqueue(&lab, in_lane("lane", 4), At::Good).await;
    let (holder, schema) = (sql().await, lab.pool().schema());
    holder
        .batch_execute(&format!(
            "begin; select from {schema}.instances where id = {held} for no key update"
        ))
        .await
        .unwrap();
    run(
        &lab,
        &format!("select S.cancel({head}, null, null, null, 'not needed')"),
    )
    .await;
    lab.drain().await;
    assert_eq!(run_log.read(), [1, 2]);
    holder.batch_execute("commit").await.unwrap();
    lab.drain().await;
    assert_eq!(run_log.read(), [1, 2, 3, 4]);
}
