//! What the acts on lanes and partition keys write: one test a row of the table in ARCHITECTURE.md, every column compared.

use gen_durable::{HOUR, Id, Instance, Lab, Status, Timestamp};
use jiff::SignedDuration;

use super::{At, Book, Walk, blocking, enqueue, in_lane, lab, run, statement, under};
use crate::support::sql;

fn with(row: &Instance, change: impl FnOnce(&mut Instance)) -> Instance {
    let mut row = row.clone();
    change(&mut row);
    row
}

/// The clock by hand: no act happens at the very moment of another.
async fn tick(lab: &Lab<Book>) -> Timestamp {
    run(lab, "update S.lab_clock set now = now + interval '1 s'").await;
    lab.now().await
}

/// Give out places and turns, and claim nobody.
async fn place(lab: &Lab<Book>) {
    sql()
        .await
        .query(&statement(lab, "select gen_durable.place(0, 1000)"), &[])
        .await
        .unwrap();
}

async fn rows(lab: &Lab<Book>, ids: [Id<Walk>; 2]) -> (Instance, Instance) {
    (lab.row_of(ids[0]).await, lab.row_of(ids[1]).await)
}

#[tokio::test]
async fn an_enqueue_into_a_lane_waits_without_a_place_and_one_under_a_key_without_a_turn() {
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
            (plain.id, plain.state, plain.arrival) = (row.id, row.state.clone(), row.arrival)
        })
    };
    assert_eq!(plain.arrival, None);
    assert!(
        lane.arrival < key.arrival && key.arrival < both.arrival,
        "in the order of arrival"
    );
    let expected = with(&same(&lane), |row| {
        (row.status, row.lane_key, row.lane_blocks) =
            (Status::Queued, Some("server:a".into()), true);
    });
    assert_eq!(lane, expected);
    let expected = with(&same(&key), |row| {
        (row.held_back, row.partition_key) = (true, Some("k".into()))
    });
    assert_eq!(key, expected);
    let expected = with(&same(&both), |row| {
        (row.status, row.lane_key, row.partition_key) =
            (Status::Queued, Some("server:a".into()), Some("k".into()));
    });
    assert_eq!(both, expected, "it waits for its lane first");
}

#[tokio::test]
async fn places_are_given_in_the_order_of_arrival_and_the_first_is_let_go_on() {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, in_lane("a", 1), At::Good).await,
        enqueue(&lab, in_lane("a", 2), At::Good).await,
    ];
    let (first, second) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    place(&lab).await;
    let (head, behind) = rows(&lab, ids).await;
    let expected = with(&first, |row| {
        (row.status, row.in_lane, row.lane_position, row.arrival) =
            (Status::Runnable, true, head.lane_position, None);
        (row.claim_epoch, row.eligible_at, row.updated_at) = (1, now, now);
    });
    assert_eq!(head, expected);
    let expected = with(&second, |row| {
        (row.in_lane, row.lane_position, row.arrival) =
            (true, head.lane_position.map(|position| position + 1), None);
    });
    assert_eq!(behind, expected, "it only has a place");
}

#[tokio::test]
async fn an_enqueue_that_is_a_transaction_of_its_own_gets_its_place_at_once_behind_all_that_arrived()
 {
    let (lab, _) = lab().await;
    let arrived = enqueue(&lab, in_lane("a", 1), At::Good).await;
    let made = lab
        .enqueue_all([in_lane("a", 2), in_lane("b", 3), in_lane("a", 4)])
        .await
        .unwrap();
    let head = lab.row_of(arrived).await;
    assert_eq!(
        (head.status, head.in_lane, head.arrival),
        (Status::Runnable, true, None),
        "it was here before"
    );
    let (behind, own, last) = (
        lab.row_of(made[0].id).await,
        lab.row_of(made[1].id).await,
        lab.row_of(made[2].id).await,
    );
    assert_eq!(
        (behind.status, behind.in_lane, behind.arrival),
        (Status::Queued, true, None)
    );
    assert_eq!(
        (own.status, own.in_lane, own.arrival),
        (Status::Runnable, true, None),
        "its lane was empty"
    );
    assert_eq!(
        (last.status, last.in_lane, last.arrival),
        (Status::Queued, true, None)
    );
    assert!(head.lane_position < behind.lane_position && behind.lane_position < last.lane_position);
}

#[tokio::test]
async fn the_end_of_a_head_takes_it_from_its_lane_and_lets_the_next_go_on_in_the_same_commit() {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, in_lane("a", 1), At::Good).await,
        lab.enqueue(in_lane("a", 2)).after(HOUR).await.unwrap().id,
    ];
    place(&lab).await;
    let (head, behind) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    // Only the head's own commit happens here: the next is not due, so nobody claims it.
    assert!(lab.step().await);
    let (ended, next) = rows(&lab, ids).await;
    let expected = with(&head, |row| {
        (row.status, row.in_lane) = (Status::Done, false);
        (row.result, row.finished_at) = (Some("null".into()), Some(now));
        (row.claim_epoch, row.step_seq, row.updated_at) = (3, 1, now);
    });
    assert_eq!(ended, expected, "its position stays, as a record");
    let expected = with(&behind, |row| {
        (row.status, row.claim_epoch) = (Status::Runnable, 1);
        (row.eligible_at, row.updated_at) = (now + SignedDuration::from_secs(3599), now);
    });
    assert_eq!(next, expected, "its own time is kept");
}

#[tokio::test]
async fn a_failure_that_blocks_keeps_its_place_and_changes_nobody_else() {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, blocking("a", 1), At::Fail).await,
        enqueue(&lab, in_lane("a", 2), At::Good).await,
    ];
    place(&lab).await;
    let (head, behind) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    assert!(lab.step().await);
    let expected = with(&head, |row| {
        row.status = Status::Failed;
        (row.last_error, row.finished_at) = (Some("it cannot be".into()), Some(now));
        (row.claim_epoch, row.step_seq, row.updated_at) = (3, 1, now);
    });
    assert_eq!(rows(&lab, ids).await, (expected, behind));
}

#[tokio::test]
async fn retry_skip_and_discard_write_every_column() {
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
        (row.last_error, row.finished_at) = (None, None);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(lab.row_of(head).await, expected);

    let before = failed().await;
    let now = tick(&lab).await;
    lab.operate().lane_skip("server:a").await.unwrap();
    let skipped = lab.row_of(head).await;
    let expected = with(&before, |row| {
        (row.in_lane, row.arrival, row.updated_at) = (false, skipped.arrival, now);
    });
    assert!(skipped.arrival.is_some());
    assert_eq!(skipped, expected);

    lab.operate().retry(head.raw(), None).await.unwrap();
    let before = failed().await;
    let now = tick(&lab).await;
    lab.operate()
        .lane_discard("server:a", "enough")
        .await
        .unwrap();
    let discarded = lab.row_of(head).await;
    let expected = with(&before, |row| {
        (row.status, row.in_lane, row.arrival) = (Status::Cancelled, false, discarded.arrival);
        row.last_error = Some("enough; it had failed: it cannot be".into());
        row.claim_epoch += 1;
        (row.finished_at, row.updated_at) = (Some(now), now);
    });
    assert!(discarded.arrival.is_some());
    assert_eq!(discarded, expected);
}

#[tokio::test]
async fn a_turn_is_given_and_handed_over_and_nothing_else_changes() {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, under("k", 1), At::Wait).await,
        enqueue(&lab, under("k", 2), At::Good).await,
    ];
    let (first, second) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    place(&lab).await;
    let given = with(&first, |row| {
        (row.held_back, row.arrival) = (false, None);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    let waits = with(&second, |row| row.arrival = None);
    assert_eq!(rows(&lab, ids).await, (given.clone(), waits.clone()));
    // The one with the turn parks: it makes way in that commit.
    let now = tick(&lab).await;
    assert!(lab.step().await);
    let (parked, next) = rows(&lab, ids).await;
    let expected = with(&given, |row| {
        (row.status, row.step) = (Status::AwaitingSignal, "good".into());
        (row.step_seq, row.visit, row.claim_epoch, row.updated_at) = (1, 1, 2, now);
        row.awaits = Some(vec!["go".into()]);
    });
    assert_eq!(parked, expected);
    let expected = with(&waits, |row| {
        row.held_back = false;
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(next, expected);
    // Woken, it waits for a turn.
    let now = tick(&lab).await;
    assert!(lab.signal(ids[0], super::Go).await.unwrap());
    let woken = lab.row_of(ids[0]).await;
    let expected = with(&parked, |row| {
        (row.status, row.held_back, row.arrival) = (Status::Runnable, true, woken.arrival);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert!(woken.arrival.is_some());
    assert_eq!(woken, expected);
}

#[tokio::test]
async fn a_cancelled_head_leaves_its_lane_and_a_number_by_which_the_next_is_let_go_on() {
    let (lab, _) = lab().await;
    let ids = [
        enqueue(&lab, in_lane("a", 1), At::Wait).await,
        enqueue(&lab, in_lane("a", 2), At::Good).await,
    ];
    place(&lab).await;
    assert!(lab.step().await);
    let (head, behind) = rows(&lab, ids).await;
    let now = tick(&lab).await;
    assert!(lab.cancel(ids[0], "enough").await.unwrap());
    let (cancelled, untouched) = rows(&lab, ids).await;
    let expected = with(&head, |row| {
        (row.status, row.in_lane, row.arrival) = (Status::Cancelled, false, cancelled.arrival);
        (row.last_error, row.awaits, row.finished_at) = (Some("enough".into()), None, Some(now));
        row.claim_epoch += 1;
        row.updated_at = now;
    });
    assert!(cancelled.arrival.is_some());
    assert_eq!((cancelled.clone(), &untouched), (expected, &behind));
    let now = tick(&lab).await;
    place(&lab).await;
    let seen_to = with(&cancelled, |row| row.arrival = None);
    let released = with(&behind, |row| {
        (row.status, row.claim_epoch) = (Status::Runnable, 1);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(rows(&lab, ids).await, (seen_to, released));
}

/// One that has a partition key as well gets its place from whoever picks. Those behind it do not get theirs before that.
#[tokio::test]
async fn those_who_are_enqueued_together_keep_their_order_if_some_have_a_partition_key() {
    let (lab, book) = lab().await;
    let keyed = |n| Walk {
        partition: Some("key".into()),
        ..in_lane("lane", n)
    };
    lab.enqueue(under("key", 0)).await.unwrap();
    run(&lab, "select S.place(0, 1000)").await;
    lab.enqueue_all([keyed(1), in_lane("lane", 2), keyed(3), in_lane("lane", 4)])
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(book.read(), [0, 1, 2, 3, 4]);
}

/// Whoever gives out places would stand still while they are written, and their lanes with him.
#[tokio::test]
async fn very_many_who_are_enqueued_together_get_their_places_from_whoever_picks() {
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

/// The partition holder is locked by its commit, so the placement leaves the key to the next one. Only the first of those that
/// arrived keeps its number: it lowers the cursor of the key, and all others wait behind it.
#[tokio::test]
async fn arrivals_under_a_locked_partition_holder_all_run_although_one_keeps_its_number() {
    let (lab, book) = lab().await;
    let first = enqueue(&lab, under("key", 0), At::Good).await;
    run(&lab, "select S.place(0, 1000)").await;
    run(&lab, &format!("insert into S.turns (tenant, key, priority, at, id) select tenant, partition_key, 0, eligible_at, id from S.instances where id = {first}")).await;
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
    place_beside_a_lock(&lab, first).await;
    assert_eq!(
        run(&lab, "select from S.instances where arrival is not null").await,
        1
    );
    assert_eq!(
        run(
            &lab,
            &format!(
                "select from S.instances where arrival is not null and id = {}",
                urgent.raw()
            )
        )
        .await,
        1
    );
    lab.drain().await;
    assert_eq!(book.read(), [0, 1, 3, 2]);
}

/// The one instance that kept its number is cancelled before the next placement. It still lowers the cursor for those behind it.
#[tokio::test]
async fn an_arrival_runs_although_the_one_that_kept_the_number_was_cancelled() {
    let (lab, book) = lab().await;
    let first = enqueue(&lab, under("key", 0), At::Good).await;
    run(&lab, "select S.place(0, 1000)").await;
    run(&lab, &format!("insert into S.turns (tenant, key, priority, at, id) select tenant, partition_key, 0, eligible_at, id from S.instances where id = {first}")).await;
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
    place_beside_a_lock(&lab, first).await;
    run(
        &lab,
        &format!(
            "select S.cancel({}, null, null, null, 'not needed')",
            urgent.raw()
        ),
    )
    .await;
    lab.drain().await;
    assert_eq!(book.read(), [0, 2, 3]);
}

/// Places arrivals while another transaction holds the row lock of an instance.
async fn place_beside_a_lock(lab: &Lab<Book>, id: Id<Walk>) {
    let (holder, schema) = (sql().await, lab.pool().schema());
    holder
        .batch_execute(&format!(
            "begin; select from {schema}.instances where id = {id} for no key update"
        ))
        .await
        .unwrap();
    run(lab, "select S.place(0, 1000)").await;
    holder.batch_execute("commit").await.unwrap();
}

/// More of them than one look takes in: all others, in lanes and under keys, are seen to meanwhile.
#[tokio::test]
async fn a_lane_that_somebody_holds_keeps_nobody_else_however_many_come_there() {
    let (lab, book) = lab().await;
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
    assert_eq!(book.read(), [0, 2_001, 2_002]);
    holder.batch_execute("commit").await.unwrap();
    lab.drain().await;
    assert_eq!(book.read()[3..], (1..=1_500).collect::<Vec<_>>());
}

/// Of one that is about to get its place. Who has one goes on, and who comes later does not get there first.
#[tokio::test]
async fn one_that_somebody_holds_in_a_lane_keeps_nobody_who_stands_before_it() {
    let (lab, book) = lab().await;
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
    assert_eq!(book.read(), [1, 2]);
    holder.batch_execute("commit").await.unwrap();
    lab.drain().await;
    assert_eq!(book.read(), [1, 2, 3, 4]);
}
