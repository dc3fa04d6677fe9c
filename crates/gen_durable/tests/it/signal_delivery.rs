//! Tests of batches of signals (`signal_all`), of signals that start their target
//! (`signal_or_start`), and of outbox signals with a dedup key.

use std::collections::BTreeMap;

use gen_durable::{
    Context, Delivery, Id, Job, KeyScope, Lab, Machine, Outcome, Signal, SignalOrStarted, Status,
    StepError, done, signal_to, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{eventually, sql};

/// A machine that collects the numbers of its signals until it receives `Close`.
#[derive(Serialize, Deserialize, Clone)]
struct Counter {
    key: Option<String>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Open,
    Late,
    Count,
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Add {
    n: u32,
}
impl Signal for Add {
    const NAME: &'static str = "add";
    type To = Counter;
}

#[derive(Serialize, Deserialize)]
struct Close;
impl Signal for Close {
    const NAME: &'static str = "close";
    type To = Counter;
}

impl Machine for Counter {
    const NAME: &'static str = "counter";
    type App = ();
    type Step = Step;
    type Output = Vec<u32>;
    fn key(&self) -> Option<String> {
        self.key.clone()
    }
    async fn step(&mut self, _: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if cx.awaited::<Close>()?.is_empty() {
            return Ok(wait_for::<(Add, Close)>().then(Step::Count).forever());
        }
        Ok(done(cx.awaited::<Add>()?.iter().map(|add| add.n).collect()))
    }
}

fn counter(key: &str) -> Counter {
    Counter {
        key: Some(key.into()),
    }
}

/// A machine of another type that holds a key of the same tenant.
#[derive(Serialize, Deserialize)]
struct OtherMachine;
impl Job for OtherMachine {
    const NAME: &'static str = "stranger";
    type App = ();
    type Output = ();
    const KEY_SCOPE: KeyScope = KeyScope::Ever;
    fn key(&self) -> Option<String> {
        Some("strange".into())
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// A machine with a key scope in which an instance keeps its key after it has settled.
#[derive(Serialize, Deserialize)]
struct KeepsKey;
impl Job for KeepsKey {
    const NAME: &'static str = "lasting";
    type App = ();
    type Output = ();
    const KEY_SCOPE: KeyScope = KeyScope::Ever;
    fn key(&self) -> Option<String> {
        Some("lasting".into())
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}
#[derive(Serialize, Deserialize)]
struct Nudge;
impl Signal for Nudge {
    const NAME: &'static str = "nudge";
    type To = KeepsKey;
}

async fn lab() -> Lab<()> {
    Lab::new(())
        .await
        .register::<Counter>()
        .register::<OtherMachine>()
        .register::<KeepsKey>()
}

async fn sum_of(lab: &Lab<()>, id: Id<Counter>) -> Vec<u32> {
    lab.signal(id, Close).await.unwrap();
    lab.drain().await;
    let mut received = lab
        .result_of(id)
        .await
        .expect("the counter has closed")
        .unwrap();
    received.sort_unstable();
    received
}

/// Calls `signal_or_start` in a transaction, where the statement waits for a lock that another
/// transaction holds. Outside a transaction the client would send the statement a second time, and
/// the second statement would read the rows that the other transaction has committed.
async fn signal_or_start_in_a_transaction(
    lab: &Lab<()>,
    key: &str,
    n: u32,
) -> SignalOrStarted<Counter> {
    let mut tx = lab.pool().begin().await.unwrap();
    let answer = lab
        .signal_or_start(counter(key), Add { n })
        .within(&mut tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    answer
}

/// Returns how many Postgres backends wait for a lock in a statement on this schema.
async fn waiting(schema: &str) -> i64 {
    let text = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%' || $1 || '.%'";
    sql()
        .await
        .query_one(text, &[&schema])
        .await
        .unwrap()
        .get(0)
}

async fn until_waiting(lab: &Lab<()>, count: i64) {
    eventually("the backends wait for a lock", async || {
        waiting(lab.pool().schema()).await == count
    })
    .await;
}

fn grown(
    before: &BTreeMap<&'static str, u64>,
    after: &BTreeMap<&'static str, u64>,
) -> Vec<(&'static str, u64)> {
    let grown = after
        .iter()
        .map(|(name, count)| (*name, count - before.get(name).unwrap_or(&0)));
    grown.filter(|(_, count)| *count > 0).collect()
}

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
        refused.is_key_taken() && refused.to_string().contains("of machine stranger"),
        "{refused}"
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
    let send = async |signals: [gen_durable::OutgoingSignal; 2]| {
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
