//! Tests which columns an act on an instance with a lane or a partition key writes.

use gen_durable::{
    HOUR,
    inspect::{Instance, Status},
};
use jiff::SignedDuration;

use super::{rows, run_placement, tick, with};
use crate::lanes::keyed::{At, Walk, blocking, enqueue, in_lane, lab, under};

#[tokio::test]
async fn a_new_instance_with_a_lane_or_partition_key_is_written_to_wait_for_placement() {
    let (lab, _) = lab().await;
    let plain = lab
        .row_of(
            lab.enqueue(Walk {
                lane: None,
                ..in_lane("a", 1)
            })
            .await
            .unwrap()
            .id,
        )
        .await;
    let lane = lab
        .row_of(enqueue(&lab, blocking("a", 1), At::Good).await)
        .await;
    let key = lab
        .row_of(enqueue(&lab, under("k", 1), At::Good).await)
        .await;
    let both = enqueue(
        &lab,
        Walk {
            partition: Some("k".into()),
            ..in_lane("a", 1)
        },
        At::Good,
    )
    .await;
    let both = lab.row_of(both).await;
    let same = |row: &Instance| {
        with(&plain, |plain| {
            (plain.id, plain.state, plain.arrival_no) = (row.id, row.state.clone(), row.arrival_no)
        })
    };
    assert_eq!(plain.arrival_no, None);
    assert!(
        lane.arrival_no < key.arrival_no && key.arrival_no < both.arrival_no,
        "in the order of arrival_no"
    );
    let expected = with(&same(&lane), |row| {
        (row.status, row.lane, row.lane_blocks) = (Status::Queued, Some("server:a".into()), true);
    });
    assert_eq!(lane, expected);
    let expected = with(&same(&key), |row| {
        (row.partition_waiting, row.partition) = (true, Some("k".into()))
    });
    assert_eq!(key, expected);
    let expected = with(&same(&both), |row| {
        (row.status, row.lane, row.partition) =
            (Status::Queued, Some("server:a".into()), Some("k".into()));
    });
    assert_eq!(both, expected, "it waits for its lane first");
}

#[tokio::test]
async fn the_commit_that_settles_a_head_removes_it_from_its_lane_and_promotes_its_successor() {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, in_lane("a", 1), At::Good).await,
        lab.enqueue(in_lane("a", 2)).after(HOUR).await.unwrap().id,
    ];
    run_placement(&lab).await;
    let (head, behind) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    // `Lab::step` runs and commits only the head of the lane: the successor is not due, so the lab
    // does not claim it.
    assert!(lab.step().await);
    let (ended, next) = rows(&lab, ids).await;
    let expected = with(&head, |row| {
        (row.status, row.in_lane) = (Status::Done, false);
        (row.result, row.settled_at) = (Some("null".into()), Some(now));
        (row.claim_epoch, row.step_seq, row.updated_at) = (2, 1, now);
    });
    assert_eq!(ended, expected, "the row keeps its last lane position");
    let expected = with(&behind, |row| {
        row.status = Status::Runnable;
        (row.eligible_at, row.updated_at) = (now + SignedDuration::from_secs(3599), now);
    });
    assert_eq!(next, expected, "it keeps its own due time");
}

#[tokio::test]
async fn a_failed_head_that_blocks_its_lane_keeps_its_position_and_its_commit_changes_no_other_row()
{
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, blocking("a", 1), At::Fail).await,
        enqueue(&lab, in_lane("a", 2), At::Good).await,
    ];
    run_placement(&lab).await;
    let (head, behind) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    assert!(lab.step().await);
    let expected = with(&head, |row| {
        row.status = Status::Failed;
        (row.last_error, row.settled_at) = (Some("it cannot be".into()), Some(now));
        (row.claim_epoch, row.step_seq, row.updated_at) = (2, 1, now);
    });
    assert_eq!(rows(&lab, ids).await, (expected, behind));
}

#[tokio::test]
async fn lane_retry_lane_skip_and_lane_discard_write_the_expected_value_of_every_column() {
    let (lab, _) = lab().await;
    let head = enqueue(&lab, blocking("a", 1), At::Fail).await;
    let failed = async || {
        lab.drain().await;
        let row = lab.row_of(head).await;
        assert!(row.blocks_its_lane());
        row
    };
    let before = failed().await;
    let now = tick(&lab).await;
    lab.operate().lane_retry("server:a").await.unwrap();
    let expected = with(&before, |row| {
        row.status = Status::Runnable;
        (row.claim_epoch, row.step_seq) = (row.claim_epoch + 1, row.step_seq + 1);
        (row.last_error, row.settled_at) = (None, None);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(lab.row_of(head).await, expected);

    let before = failed().await;
    let now = tick(&lab).await;
    lab.operate().lane_skip("server:a").await.unwrap();
    let skipped = lab.row_of(head).await;
    let expected = with(&before, |row| {
        (row.in_lane, row.arrival_no, row.updated_at) = (false, skipped.arrival_no, now);
    });
    assert!(skipped.arrival_no.is_some());
    assert_eq!(skipped, expected);

    lab.operate().retry(head.raw()).await.unwrap();
    let before = failed().await;
    let now = tick(&lab).await;
    lab.operate()
        .lane_discard("server:a", "enough")
        .await
        .unwrap();
    let discarded = lab.row_of(head).await;
    let expected = with(&before, |row| {
        (row.status, row.in_lane, row.arrival_no) =
            (Status::Cancelled, false, discarded.arrival_no);
        row.last_error = Some("enough; it had failed: it cannot be".into());
        row.claim_epoch += 1;
        (row.settled_at, row.updated_at) = (Some(now), now);
    });
    assert!(discarded.arrival_no.is_some());
    assert_eq!(discarded, expected);
}

#[tokio::test]
async fn placement_and_promotion_make_an_instance_the_partition_holder_and_change_nothing_else() {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, under("k", 1), At::Wait).await,
        enqueue(&lab, under("k", 2), At::Good).await,
    ];
    let (first, second) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    run_placement(&lab).await;
    let holder = with(&first, |row| {
        (row.partition_waiting, row.arrival_no) = (false, None);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    let waits = with(&second, |row| row.arrival_no = None);
    assert_eq!(rows(&lab, ids).await, (holder.clone(), waits.clone()));
    // The partition holder waits for a signal. The commit of that wait promotes the next instance.
    let now = tick(&lab).await;
    assert!(lab.step().await);
    let (parked, next) = rows(&lab, ids).await;
    let expected = with(&holder, |row| {
        (row.status, row.step) = (Status::AwaitingSignal, "good".into());
        (
            row.step_seq,
            row.step_entry_seq,
            row.claim_epoch,
            row.updated_at,
        ) = (1, 1, 2, now);
        row.awaits = Some(vec!["go".into()]);
    });
    assert_eq!(parked, expected);
    let expected = with(&waits, |row| {
        row.partition_waiting = false;
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(next, expected);
    // The signal makes the waiting instance runnable, but the instance must wait until its
    // partition is free.
    let now = tick(&lab).await;
    assert!(
        lab.signal(ids[0], crate::lanes::keyed::Go)
            .await
            .unwrap()
            .is_new()
    );
    let woken = lab.row_of(ids[0]).await;
    let expected = with(&parked, |row| {
        (row.status, row.partition_waiting, row.arrival_no) =
            (Status::Runnable, true, woken.arrival_no);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert!(woken.arrival_no.is_some());
    assert_eq!(woken, expected);
}

#[tokio::test]
async fn a_cancelled_head_leaves_its_lane_with_an_arrival_number_until_placement_promotes_the_successor()
 {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, in_lane("a", 1), At::Wait).await,
        enqueue(&lab, in_lane("a", 2), At::Good).await,
    ];
    run_placement(&lab).await;
    assert!(lab.step().await);
    let (head, behind) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    assert!(lab.cancel(ids[0], "enough").await.unwrap());
    let (cancelled, untouched) = rows(&lab, ids).await;
    let expected = with(&head, |row| {
        (row.status, row.in_lane, row.arrival_no) =
            (Status::Cancelled, false, cancelled.arrival_no);
        (row.last_error, row.awaits, row.settled_at) = (Some("enough".into()), None, Some(now));
        row.claim_epoch += 1;
        row.updated_at = now;
    });
    assert!(cancelled.arrival_no.is_some());
    assert_eq!((cancelled.clone(), &untouched), (expected, &behind));
    let now = tick(&lab).await;
    run_placement(&lab).await;
    let handled = with(&cancelled, |row| row.arrival_no = None);
    let released = with(&behind, |row| {
        row.status = Status::Runnable;
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(rows(&lab, ids).await, (handled, released));
}
