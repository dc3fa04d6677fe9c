//! Tests of signals that start their target.

use gen_durable::{client::Delivery, inspect::Status, signal_to};

use super::{
    Add, Counter, KeepsKey, Nudge, OtherMachine, Step, counter, grown, lab,
    signal_or_start_in_a_transaction, sum_of, until_waiting,
};
use crate::support::{chain, sql};

#[tokio::test]
async fn signal_or_start_starts_a_missing_target_and_signals_an_existing_one() {
    let lab = lab().await;
    let before = lab.statements();
    let first = lab
        .signal_or_start(counter("a"), Add { n: 1 })
        .priority(-2)
        .starting_at(Step::Late)
        .await
        .unwrap();
    let second = lab
        .signal_or_start(counter("a"), Add { n: 2 })
        .once("evt")
        .await
        .unwrap();
    let again = lab
        .signal_or_start(counter("a"), Add { n: 2 })
        .once("evt")
        .await
        .unwrap();
    assert_eq!(
        grown(&before, &lab.statements()),
        [("signal_or_start.sql", 3)]
    );
    assert!(first.started && first.is_new, "{first:?}");
    assert!(
        !second.started && second.is_new && second.id == first.id,
        "{second:?}"
    );
    assert!(
        !again.started && !again.is_new && again.id == first.id,
        "{again:?}"
    );
    let other = lab
        .signal_or_start(counter("a"), Add { n: 9 })
        .tenant("acme")
        .await
        .unwrap();
    assert!(
        other.started && other.id != first.id,
        "a key of another tenant addresses another instance"
    );
    let row = lab.row_of(first.id).await;
    assert_eq!((row.step.as_str(), row.priority), ("late", -2));
    lab.drain().await;
    assert_eq!(lab.status_of(first.id).await, Status::AwaitingSignal);
    assert_eq!(sum_of(&lab, first.id).await, [1, 2]);
    // The first instance has settled, so its key is free for a new instance.
    let next = lab
        .signal_or_start(counter("a"), Add { n: 3 })
        .once("evt")
        .await
        .unwrap();
    assert!(
        next.started && next.is_new && next.id != first.id,
        "{next:?}"
    );
}

#[tokio::test]
async fn signal_or_start_inserts_the_same_row_as_an_enqueue() {
    let lab = lab().await;
    lab.enqueue(counter("a"))
        .tenant("acme")
        .priority(4)
        .await
        .unwrap();
    lab.signal_or_start(counter("b"), Add { n: 1 })
        .tenant("acme")
        .priority(4)
        .await
        .unwrap();
    let text = format!(
        "select (to_jsonb(i) - '{{id,key,held_key,state}}'::text[])::text from {}.instances i order by id",
        lab.pool().schema()
    );
    let rows: Vec<String> = sql()
        .await
        .query(&text, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], rows[1]);
}

#[tokio::test]
async fn signal_or_start_takes_effect_only_if_the_callers_transaction_commits() {
    let lab = lab().await;
    let mut tx = lab.pool().begin().await.unwrap();
    assert!(
        lab.signal_or_start(counter("a"), Add { n: 1 })
            .within(&mut tx)
            .await
            .unwrap()
            .started
    );
    assert!(
        !lab.signal_or_start(counter("a"), Add { n: 2 })
            .within(&mut tx)
            .await
            .unwrap()
            .started
    );
    tx.rollback().await.unwrap();
    assert!(lab.inspect().counts().await.unwrap().is_empty());
    let mut tx = lab.pool().begin().await.unwrap();
    let answer = lab
        .signal_or_start(counter("a"), Add { n: 1 })
        .within(&mut tx)
        .await
        .unwrap();
    let sent = lab
        .signal_all([signal_to(answer.id, Add { n: 5 })])
        .within(&mut tx)
        .await
        .unwrap();
    assert_eq!(sent, [Delivery::Delivered]);
    tx.commit().await.unwrap();
    assert_eq!(sum_of(&lab, answer.id).await, [1, 5]);
}

#[tokio::test]
async fn a_refused_signal_or_start_returns_the_reason_and_starts_no_instance() {
    let lab = lab().await;
    for machine in [
        Counter { key: None },
        counter(""),
        counter("a\0b"),
        counter(&"k".repeat(513)),
    ] {
        let refused = lab
            .signal_or_start(machine, Add { n: 1 })
            .await
            .unwrap_err();
        assert!(refused.is_invalid(), "{refused}");
    }
    let refused = lab
        .signal_or_start(counter("a"), Add { n: 1 })
        .once("")
        .await
        .unwrap_err();
    assert!(refused.is_invalid(), "{refused}");
    assert!(lab.inspect().counts().await.unwrap().is_empty());

    lab.enqueue(OtherMachine).await.unwrap();
    let refused = lab
        .signal_or_start(counter("strange"), Add { n: 1 })
        .await
        .unwrap_err();
    assert!(
        refused.is_key_taken() && chain(&refused).contains("of machine stranger"),
        "{refused:#}"
    );
    let lasting = lab.signal_or_start(KeepsKey, Nudge).await.unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(lasting.id).await, Status::Done);
    let refused = lab.signal_or_start(KeepsKey, Nudge).await.unwrap_err();
    assert!(refused.is_no_target(), "{refused}");

    let full = lab
        .signal_or_start(counter("full"), Add { n: 0 })
        .await
        .unwrap();
    let answers = lab
        .signal_all((1..1_001).map(|n| signal_to(full.id, Add { n })))
        .await
        .unwrap();
    assert_eq!(answers[..999], [Delivery::Delivered; 999]);
    assert_eq!(answers[999], Delivery::InboxFull);
    assert!(
        lab.signal_or_start(counter("full"), Add { n: 7 })
            .await
            .unwrap_err()
            .is_inbox_full()
    );
}

#[tokio::test]
async fn exactly_one_committed_call_of_two_concurrent_signal_or_start_calls_starts_the_instance() {
    for commits in [true, false] {
        let lab = lab().await;
        let mut tx = lab.pool().begin().await.unwrap();
        let first = lab
            .signal_or_start(counter("a"), Add { n: 1 })
            .within(&mut tx)
            .await
            .unwrap();
        let second = signal_or_start_in_a_transaction(&lab, "a", 2);
        let first_ends = async {
            until_waiting(&lab, 1).await;
            if commits {
                tx.commit().await.unwrap()
            } else {
                tx.rollback().await.unwrap()
            }
        };
        let (second, ()) = tokio::join!(second, first_ends);
        assert_eq!(
            (second.started, second.id == first.id),
            (!commits, commits),
            "{second:?}"
        );
        let received = sum_of(&lab, second.id).await;
        assert_eq!(received, if commits { vec![1, 2] } else { vec![2] });
    }
}

#[tokio::test]
async fn of_many_concurrent_signal_or_start_calls_one_starts_the_instance_and_all_signals_arrive() {
    let lab = lab().await;
    for round in 0..5 {
        let key = format!("round {round}");
        let all = (0..20).map(|n| lab.signal_or_start(counter(&key), Add { n }).into_future());
        let answer: Vec<_> = futures_util::future::join_all(all)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(answer.iter().filter(|answer| answer.started).count(), 1);
        assert!(
            answer
                .iter()
                .all(|one| one.id == answer[0].id && one.is_new)
        );
        assert_eq!(
            sum_of(&lab, answer[0].id).await,
            (0..20).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn signal_or_start_starts_a_new_instance_if_the_holder_of_the_key_is_cancelled_meanwhile() {
    let lab = lab().await;
    let held = lab
        .signal_or_start(counter("a"), Add { n: 1 })
        .await
        .unwrap();
    let mut canceller = sql().await;
    let tx = canceller.transaction().await.unwrap();
    let cancel = format!(
        "select {}.cancel({}, null, null, null, 'enough')",
        lab.pool().schema(),
        held.id
    );
    tx.batch_execute(&cancel).await.unwrap();
    let answer = signal_or_start_in_a_transaction(&lab, "a", 2);
    let ends = async {
        until_waiting(&lab, 1).await;
        tx.commit().await.unwrap();
    };
    let (answer, ()) = tokio::join!(answer, ends);
    assert!(answer.started && answer.id != held.id, "{answer:?}");
    assert_eq!(sum_of(&lab, answer.id).await, [2]);
}
