//! Tests of waits and signals: the engine loses no accepted signal, no step consumes a signal
//! twice, and every wait can have a deadline.

use gen_durable::{
    Address, Context, DAY, Engine, HOUR, Machine, Outcome, SECOND, Signal, done, inspect::Status,
    next, retry_after, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually, live};

/// A machine for an order that waits for its payment.
#[derive(Serialize, Deserialize, Debug)]
struct Order {
    number: u32,
    want: usize,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Begin,
    Received,
    Flaky,
    Late {
        since: u32,
    },
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Paid {
    amount: u32,
}
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}
#[derive(Serialize, Deserialize, Debug)]
struct Abandoned;
impl Signal for Abandoned {
    const NAME: &'static str = "abandoned";
    type To = Order;
}

impl Machine for Order {
    const NAME: &'static str = "order";
    type App = ();
    type Step = At;
    type Output = String;
    fn key(&self) -> Option<String> {
        Some(format!("order:{}", self.number))
    }
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Begin => Ok(wait_for::<(Paid, Abandoned)>()
                .then(At::Received)
                .or_after(3 * DAY, At::Late { since: 3 })),
            At::Received => {
                let paid = cx.awaited::<Paid>()?;
                if !cx.awaited::<Abandoned>()?.is_empty() {
                    return Ok(done("abandoned".into()));
                }
                if paid.len() < self.want {
                    return Ok(wait_for::<(Paid, Abandoned)>().then(At::Received).forever());
                }
                if self.number == 13 && cx.attempt() == 0 {
                    return Ok(retry_after(SECOND));
                }
                if self.number == 14 {
                    return Ok(next(At::Flaky));
                }
                let amounts: Vec<String> =
                    paid.iter().map(|paid| paid.amount.to_string()).collect();
                Ok(done(format!("paid {}", amounts.join("+"))))
            }
            At::Flaky => Ok(done(format!("{} signals left", cx.inbox().len()))),
            At::Late { since } => Ok(done(format!("gave up after {since} days"))),
        }
    }
}

fn order(number: u32) -> Order {
    Order { number, want: 1 }
}

#[tokio::test]
async fn a_signal_wakes_the_instance_that_waits_for_it_and_is_passed_to_the_next_step() {
    let lab = Lab::new(()).await.register::<Order>();
    let id = lab.enqueue(order(1)).await.unwrap().id;
    lab.drain().await;
    assert_eq!(
        (lab.status_of(id).await, lab.step_of(id).await),
        (Status::AwaitingSignal, At::Received)
    );
    assert!(lab.signal(id, Paid { amount: 5 }).await.unwrap().is_new());
    assert_eq!(lab.status_of(id).await, Status::Runnable);
    lab.drain().await;
    assert_eq!(lab.result_of(id).await, Some(Ok("paid 5".into())));
}

#[tokio::test]
async fn a_signal_sent_before_the_wait_ends_the_wait_and_a_signal_of_another_name_does_not() {
    #[derive(Serialize, Deserialize)]
    struct Noise;
    impl Signal for Noise {
        const NAME: &'static str = "noise";
        type To = Order;
    }
    let lab = Lab::new(()).await.register::<Order>();
    let early = lab.enqueue(order(1)).await.unwrap().id;
    lab.signal(early, Paid { amount: 7 }).await.unwrap();
    lab.drain().await;
    assert_eq!(lab.result_of(early).await, Some(Ok("paid 7".into())));

    let other = lab.enqueue(order(14)).await.unwrap().id;
    lab.drain().await;
    lab.signal(other, Noise).await.unwrap();
    assert_eq!(lab.status_of(other).await, Status::AwaitingSignal);
    lab.signal(other, Paid { amount: 1 }).await.unwrap();
    lab.drain().await;
    // The commit of the step consumed the signal `Paid`. The signal `Noise` stays in the inbox.
    assert_eq!(
        lab.result_of(other).await,
        Some(Ok("1 signals left".into()))
    );
}

#[tokio::test]
async fn a_machine_that_waits_again_after_each_signal_runs_one_step_per_signal() {
    let lab = Lab::new(()).await.register::<Order>();
    let id = lab.enqueue(Order { number: 2, want: 3 }).await.unwrap().id;
    let mut steps = lab.drain().await.steps;
    for amount in 1..=3 {
        lab.signal(id, Paid { amount }).await.unwrap();
        steps += lab.drain().await.steps;
    }
    assert_eq!(lab.result_of(id).await, Some(Ok("paid 1+2+3".into())));
    assert_eq!(steps, 4, "one step to begin, and one per signal");
}

#[tokio::test]
async fn a_retried_step_reads_the_same_signals_again() {
    let lab = Lab::new(()).await.register::<Order>();
    let id = lab.enqueue(order(13)).await.unwrap().id;
    lab.drain().await;
    lab.signal(id, Paid { amount: 9 }).await.unwrap();
    lab.crash_before_commit().await;
    lab.skip(HOUR).await;
    assert_eq!(lab.result_of(id).await, Some(Ok("paid 9".into())));
}

#[tokio::test]
async fn a_signal_with_a_dedup_key_is_delivered_once_even_after_it_was_consumed() {
    let lab = Lab::new(()).await.register::<Order>();
    let id = lab.enqueue(Order { number: 3, want: 2 }).await.unwrap().id;
    lab.drain().await;
    assert!(
        lab.signal(id, Paid { amount: 1 })
            .once("evt-1")
            .await
            .unwrap()
            .is_new()
    );
    assert!(
        !lab.signal(id, Paid { amount: 1 })
            .once("evt-1")
            .await
            .unwrap()
            .is_new(),
        "the sender is informed of the duplicate"
    );
    lab.drain().await;
    assert!(
        !lab.signal(id, Paid { amount: 1 })
            .once("evt-1")
            .await
            .unwrap()
            .is_new()
    );
    assert_eq!(
        lab.status_of(id).await,
        Status::AwaitingSignal,
        "a duplicate does not wake the instance"
    );
    assert!(
        lab.signal(id, Paid { amount: 2 })
            .once("evt-2")
            .await
            .unwrap()
            .is_new()
    );
    lab.drain().await;
    assert_eq!(lab.result_of(id).await, Some(Ok("paid 1+2".into())));
}

#[tokio::test]
async fn a_wait_without_a_signal_continues_at_its_deadline_step_at_the_deadline_and_not_earlier() {
    let lab = Lab::new(()).await.register::<Order>();
    let id = lab.enqueue(order(4)).await.unwrap().id;
    lab.drain().await;
    lab.skip(3 * DAY - SECOND).await;
    assert_eq!(lab.status_of(id).await, Status::AwaitingSignal);
    lab.skip(SECOND).await;
    assert_eq!(
        lab.result_of(id).await,
        Some(Ok("gave up after 3 days".into()))
    );
    // A deadline belongs to one wait: a signal that ends the wait removes the deadline.
    let signalled = lab.enqueue(Order { number: 5, want: 2 }).await.unwrap().id;
    lab.drain().await;
    lab.signal(signalled, Paid { amount: 1 }).await.unwrap();
    lab.skip(30 * DAY).await;
    assert_eq!(lab.status_of(signalled).await, Status::AwaitingSignal);
}

#[tokio::test]
async fn a_signal_by_key_reaches_the_holder_of_the_key_until_it_settles_and_then_returns_no_target()
{
    let lab = Lab::new(()).await.register::<Order>();
    let first = lab.enqueue(order(6)).await.unwrap();
    let again = lab.enqueue(order(6)).await.unwrap();
    assert!(
        first.is_new && !again.is_new && again.id == first.id,
        "the key is taken"
    );
    let other = lab.enqueue(order(6)).tenant("acme").await.unwrap();
    assert!(other.is_new, "a key is unique per tenant");
    lab.drain().await;
    lab.signal(Order::keyed("order:6"), Paid { amount: 3 })
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(lab.result_of(first.id).await, Some(Ok("paid 3".into())));
    let error = lab
        .signal(Order::keyed("order:6"), Paid { amount: 3 })
        .await
        .unwrap_err();
    assert!(error.is_no_target(), "{error}");
    assert!(
        lab.signal(first.id, Paid { amount: 3 })
            .await
            .unwrap_err()
            .is_no_target()
    );
    lab.signal(Order::keyed("order:6").of("acme"), Abandoned)
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(lab.result_of(other.id).await, Some(Ok("abandoned".into())));
    assert!(
        lab.enqueue(order(6)).await.unwrap().is_new,
        "the key is free again"
    );
    let unused: Address<Order> = Order::keyed("order:999");
    assert!(
        lab.signal(unused, Abandoned)
            .await
            .unwrap_err()
            .is_no_target()
    );
}

#[tokio::test]
async fn a_signal_within_a_callers_transaction_is_sent_if_and_only_if_the_transaction_commits() {
    let lab = Lab::new(()).await.register::<Order>();
    let id = lab.enqueue(order(7)).await.unwrap().id;
    lab.drain().await;
    let mut tx = lab.pool().begin().await.unwrap();
    assert!(
        lab.signal(id, Paid { amount: 1 })
            .within(&mut tx)
            .await
            .unwrap()
            .is_new()
    );
    tx.rollback().await.unwrap();
    assert_eq!(lab.status_of(id).await, Status::AwaitingSignal);
    let mut tx = lab.pool().begin().await.unwrap();
    assert!(
        lab.signal(id, Paid { amount: 2 })
            .within(&mut tx)
            .await
            .unwrap()
            .is_new()
    );
    tx.commit().await.unwrap();
    lab.drain().await;
    assert_eq!(lab.result_of(id).await, Some(Ok("paid 2".into())));
}

#[tokio::test]
async fn a_signal_to_an_instance_with_a_full_inbox_returns_an_error() {
    let lab = Lab::new(()).await.register::<Order>();
    let id = lab
        .enqueue(Order {
            number: 8,
            want: 5_000,
        })
        .await
        .unwrap()
        .id;
    let all = (0..1_000).map(|amount| async move { amount });
    for send in all {
        let amount = send.await;
        lab.signal(id, Paid { amount }).await.unwrap();
    }
    let error = lab.signal(id, Paid { amount: 0 }).await.unwrap_err();
    assert!(error.is_inbox_full(), "{error}");
}

#[tokio::test]
async fn a_running_engine_wakes_signalled_instances_and_ends_the_waits_of_others_at_the_deadline() {
    #[derive(Serialize, Deserialize)]
    struct Brief;
    #[derive(Serialize, Deserialize, Default)]
    enum BriefAt {
        #[default]
        Begin,
        Received,
        Late,
    }
    #[derive(Serialize, Deserialize)]
    struct Go;
    impl Signal for Go {
        const NAME: &'static str = "go";
        type To = Brief;
    }
    impl Machine for Brief {
        const NAME: &'static str = "brief";
        type App = ();
        type Step = BriefAt;
        type Output = bool;
        async fn step(&mut self, at: BriefAt, cx: &mut Context<'_, Self>) -> Outcome<Self> {
            match at {
                BriefAt::Begin => Ok(wait_for::<Go>()
                    .then(BriefAt::Received)
                    .or_after(SECOND, BriefAt::Late)),
                BriefAt::Received => Ok(done(cx.awaited::<Go>()?.len() == 1)),
                BriefAt::Late => Ok(done(false)),
            }
        }
    }
    let engine = Engine::builder(live().await, ())
        .register::<Brief>()
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let ids = client.enqueue_all((0..50).map(|_| Brief)).await.unwrap();
    for (n, new) in ids.iter().enumerate() {
        if n % 2 == 0 {
            client.signal(new.id, Go).await.unwrap();
        }
    }
    for (n, new) in ids.iter().enumerate() {
        let settled = client.settled(new.id, 60 * SECOND).await.unwrap().unwrap();
        assert_eq!(settled.result, Ok(n % 2 == 0));
    }
    running.stop().await;
}

#[tokio::test]
async fn a_cancel_settles_a_waiting_instance_and_a_second_cancel_changes_nothing() {
    let lab = Lab::new(()).await.register::<Order>();
    let waiting = lab.enqueue(order(9)).await.unwrap().id;
    lab.drain().await;
    assert!(lab.cancel(waiting, "the customer called").await.unwrap());
    assert!(!lab.cancel(waiting, "again").await.unwrap());
    let row = lab.row_of(waiting).await;
    assert_eq!(
        (row.status, row.last_error.as_deref()),
        (Status::Cancelled, Some("the customer called"))
    );
    assert!(
        lab.cancel(gen_durable::Id::<Order>::from_raw(i64::MAX), "x")
            .await
            .unwrap_err()
            .is_no_target()
    );
    assert!(
        lab.enqueue(order(9)).await.unwrap().is_new,
        "the key is free"
    );
    assert!(
        lab.cancel(Order::keyed("order:9"), "by its key")
            .await
            .unwrap()
    );
    lab.skip(30 * DAY).await;
    assert_eq!(lab.status_of(waiting).await, Status::Cancelled);
}

#[tokio::test]
async fn the_result_of_a_step_is_discarded_if_its_instance_was_cancelled_while_the_step_ran() {
    #[derive(Serialize, Deserialize)]
    struct Slow;
    #[derive(Serialize, Deserialize, Default)]
    enum SlowAt {
        #[default]
        Begin,
    }
    impl Machine for Slow {
        const NAME: &'static str = "slow";
        type App = std::sync::Arc<tokio::sync::Semaphore>;
        type Step = SlowAt;
        type Output = ();
        async fn step(&mut self, _: SlowAt, cx: &mut Context<'_, Self>) -> Outcome<Self> {
            cx.app().acquire().await?.forget();
            Ok(done(()))
        }
    }
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let engine = Engine::builder(live().await, gate.clone())
        .register::<Slow>()
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let id = client.enqueue(Slow).await.unwrap().id;
    let status = async || {
        client
            .inspect()
            .show(id.raw())
            .await
            .unwrap()
            .unwrap()
            .status
    };
    eventually("the step runs", async || {
        status().await == Status::Executing
    })
    .await;
    assert!(client.cancel(id, "enough").await.unwrap());
    gate.add_permits(1);
    running.stop().await;
    assert_eq!(status().await, Status::Cancelled);
}
