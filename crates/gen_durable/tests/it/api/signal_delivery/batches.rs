//! Tests of batches of signals, of signals by key, and of outbox signals with a dedup key.

use gen_durable::{Context, Id, Machine, Outcome, client::Delivery, done, signal_to};
use serde::{Deserialize, Serialize};

use super::{Add, Close, Counter, OtherMachine, counter, grown, lab, sum_of, until_waiting};
use crate::support::sql;

#[tokio::test]
async fn signal_all_sends_one_statement_and_returns_one_delivery_per_signal() {
    let lab = lab().await;
    let (a, b) = (
        lab.enqueue(counter("a")).await.unwrap().id,
        lab.enqueue(counter("b")).await.unwrap().id,
    );
    let cancelled = lab.enqueue(counter("c")).await.unwrap().id;
    lab.cancel(cancelled, "not needed").await.unwrap();
    let other_machine = lab.enqueue(OtherMachine).await.unwrap().id;
    lab.drain().await;
    let before = lab.statements();
    let answers = lab
        .signal_all([
            signal_to(b, Add { n: 1 }).once("x"),
            signal_to(Counter::keyed("a"), Add { n: 2 }),
            signal_to(b, Add { n: 1 }).once("x"),
            signal_to(cancelled, Add { n: 3 }),
            signal_to(Counter::keyed("c"), Add { n: 4 }),
            signal_to(Counter::keyed("a").of("acme"), Add { n: 5 }),
            signal_to(Id::<Counter>::from_raw(other_machine.raw()), Add { n: 6 }),
            signal_to(a, Add { n: 7 }),
            signal_to(a, Close),
        ])
        .await
        .unwrap();
    assert_eq!(grown(&before, &lab.statements()), [("signal_all.sql", 1)]);
    use Delivery::{Delivered, Duplicate, NoTarget};
    assert_eq!(
        answers,
        [
            Delivered, Delivered, Duplicate, NoTarget, NoTarget, NoTarget, NoTarget, Delivered,
            Delivered
        ]
    );
    lab.drain().await;
    assert_eq!(lab.result_of(a).await, Some(Ok(vec![2, 7])));
    assert_eq!(sum_of(&lab, b).await, [1]);
    let before = lab.statements();
    assert_eq!(lab.signal_all([]).await.unwrap(), []);
    assert_eq!(
        grown(&before, &lab.statements()),
        [],
        "an empty batch sends no statement"
    );
    // A signal that Postgres cannot store is the caller's mistake, and `signal_all` then sends no
    // signal of that call.
    let d = lab.enqueue(counter("d")).await.unwrap().id;
    let refused = lab
        .signal_all([
            signal_to(d, Add { n: 1 }),
            signal_to(d, Add { n: 2 }).once("\0"),
        ])
        .await
        .unwrap_err();
    assert!(refused.is_invalid(), "{refused}");
    assert_eq!(sum_of(&lab, d).await, Vec::<u32>::new());
}

#[tokio::test]
async fn two_batches_of_signals_to_the_same_instances_in_opposite_order_do_not_deadlock() {
    let lab = lab().await;
    let (a, b) = (
        lab.enqueue(counter("a")).await.unwrap().id,
        lab.enqueue(counter("b")).await.unwrap().id,
    );
    let schema = lab.pool().schema().to_owned();
    // A transaction locks the row of the first instance. If `signal_all` locked rows in the order
    // of its signals, it would hold the row lock of the second instance by now.
    let mut holder = sql().await;
    let held = holder.transaction().await.unwrap();
    held.batch_execute(&format!(
        "select from {schema}.instances where id = {a} for update"
    ))
    .await
    .unwrap();
    let send = async |signals: [gen_durable::machine::OutgoingSignal; 2]| {
        let mut tx = lab.pool().begin().await.unwrap();
        let answers = lab.signal_all(signals).within(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        answers
    };
    let probe = async {
        until_waiting(&lab, 2).await;
        let free = format!("select from {schema}.instances where id = {b} for update nowait");
        let free = sql().await.batch_execute(&free).await;
        held.rollback().await.unwrap();
        free.expect("no batch locks the second row before it has locked the first");
    };
    let forth = send([
        signal_to(a, Add { n: 1 }),
        signal_to(Counter::keyed("b"), Add { n: 2 }),
    ]);
    let back = send([
        signal_to(b, Add { n: 3 }),
        signal_to(Counter::keyed("a"), Add { n: 4 }),
    ]);
    let (forth, back, ()) = tokio::join!(forth, back, probe);
    assert_eq!(
        (forth, back),
        (vec![Delivery::Delivered; 2], vec![Delivery::Delivered; 2])
    );
    assert_eq!(
        (sum_of(&lab, a).await, sum_of(&lab, b).await),
        (vec![1, 4], vec![2, 3])
    );
}

#[tokio::test]
async fn a_signal_by_key_returns_no_target_if_the_holder_of_the_key_is_cancelled_meanwhile() {
    let lab = lab().await;
    let held = lab.enqueue(counter("a")).await.unwrap().id;
    let mut canceller = sql().await;
    let tx = canceller.transaction().await.unwrap();
    let cancel = format!(
        "select {}.cancel({held}, null, null, null, 'enough')",
        lab.pool().schema()
    );
    tx.batch_execute(&cancel).await.unwrap();
    let sent = async {
        let mut tx = lab.pool().begin().await.unwrap();
        let sent = lab
            .signal_all([signal_to(Counter::keyed("a"), Add { n: 2 })])
            .within(&mut tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        sent
    };
    let ends = async {
        until_waiting(&lab, 1).await;
        tx.commit().await.unwrap();
    };
    let (sent, ()) = tokio::join!(sent, ends);
    assert_eq!(sent, [Delivery::NoTarget]);
    let count: i64 = sql()
        .await
        .query_one(
            &format!("select count(*) from {}.signals", lab.pool().schema()),
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(count, 0);
}

/// A machine that sends a signal to a counter with each of its two commits, both times with the
/// same dedup key.
#[derive(Serialize, Deserialize)]
struct Notifier {
    to: Id<Counter>,
    dedup: String,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum NotifyStep {
    #[default]
    First,
    Again,
}

impl Machine for Notifier {
    const NAME: &'static str = "notifier";
    type App = ();
    type Step = NotifyStep;
    type Output = ();
    async fn step(&mut self, at: NotifyStep, _: &mut Context<'_, Self>) -> Outcome<Self> {
        let signal = signal_to(self.to, Add { n: 5 }).once(&self.dedup);
        Ok(match at {
            NotifyStep::First => gen_durable::next(NotifyStep::Again).and_outgoing_signal(signal),
            NotifyStep::Again => done(())
                .and_outgoing_signal(signal)
                .and_signal(self.to, Add { n: 6 }),
        })
    }
}

#[tokio::test]
async fn an_outbox_signal_with_a_dedup_key_that_is_sent_repeatedly_counts_once() {
    let lab = lab().await.register::<Notifier>();
    let to = lab.enqueue(counter("a")).await.unwrap().id;
    let notifiers = lab
        .enqueue_all((0..2).map(|_| Notifier {
            to,
            dedup: "evt".into(),
        }))
        .await
        .unwrap();
    lab.drain().await;
    for notifier in notifiers {
        assert_eq!(
            lab.result_of(notifier.id).await,
            Some(Ok(())),
            "a duplicate is no error"
        );
    }
    assert_eq!(sum_of(&lab, to).await, [5, 6, 6]);
    let wrong = lab
        .enqueue(Notifier {
            to,
            dedup: String::new(),
        })
        .await
        .unwrap()
        .id;
    lab.drain().await;
    let failure = lab.result_of(wrong).await.unwrap().unwrap_err();
    assert!(
        failure.message.contains("a dedup key must not be empty"),
        "{failure}"
    );
}
