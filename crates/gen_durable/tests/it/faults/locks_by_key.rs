//! Tests an open transaction of a caller that locks the row or the key of an instance. A step
//! result that addresses the instance by its key waits for the lock, and no other step result does.

use gen_durable::{
    Context, DAY, Id, Job, Machine, NewInstance, Outcome, SECOND, Settings, Signal, StepError,
    done, next, spawn,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::faults::wire::{
    proxy::Fault,
    stage::{LONG, Running, Stage},
};

const KEY: &str = "order:42";
/// The statement that begins an attempt of the committer to commit a batch, and the statement that
/// writes the step results of a batch if no row is locked.
const ATTEMPTS: [&str; 2] = ["store::step_results::lock", "._write_step_results($1"];

type Gate = watch::Sender<bool>;

/// The machine of the instance that holds the key `KEY`.
#[derive(Serialize, Deserialize)]
struct Order {
    n: u32,
}
impl Job for Order {
    const NAME: &'static str = "order";
    type App = Gate;
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
    fn key(&self) -> Option<String> {
        Some(format!("order:{}", self.n))
    }
}

#[derive(Serialize, Deserialize)]
struct Paid;
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}

/// The way in which the step result of a `Sender` addresses the key `KEY`.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
enum By {
    Nothing,
    Signal,
    Enqueue,
    Child,
}

/// A machine with a step that waits until the test sets its `Gate` to true, and then returns a step
/// result as `by` says.
#[derive(Serialize, Deserialize)]
struct Sender {
    by: By,
}
#[derive(Serialize, Deserialize, Default)]
enum At {
    #[default]
    Send,
    Sent,
}
impl Machine for Sender {
    const NAME: &'static str = "sender";
    type App = Gate;
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if matches!(at, At::Sent) {
            return Ok(done(()));
        }
        let _ = cx.app().subscribe().wait_for(|open| *open).await;
        let order = || NewInstance::new(Order { n: 42 }).after(DAY);
        Ok(match self.by {
            By::Nothing => done(()),
            By::Signal => next(At::Sent).and_signal(Order::keyed(KEY), Paid),
            By::Enqueue => next(At::Sent).and_enqueue(order()),
            // One of the two children has the key `KEY`. The parent joins any child, so it does not
            // wait for the child with the key.
            By::Child => spawn([order(), NewInstance::new(Order { n: 1 })])
                .any()
                .then(At::Sent)
                .forever(),
        })
    }
}

fn settings() -> Settings {
    Settings {
        drain_timeout: SECOND,
        heartbeat: SECOND / 4,
        ..Settings::default()
    }
}

/// Starts an engine with 30 senders. Their steps all run and wait until the test sets the `Gate` to
/// true. The step results of the first sender and of the last three senders address the key `KEY`.
async fn at_the_gate(stage: &Stage, by: By) -> (Running, Gate, Vec<Id<Sender>>) {
    let gate = Gate::new(false);
    let engine = stage.run(stage.pool(), gate.clone(), |e| {
        e.register::<Sender>()
            .register::<Order>()
            .settings(Settings {
                concurrency: 30,
                ..settings()
            })
    });
    engine.ready().await;
    let senders = (0..30).map(|n| Sender {
        by: if n == 0 || n > 26 { by } else { By::Nothing },
    });
    let senders = stage.lab.enqueue_all(senders).await.unwrap();
    stage
        .until(
            "select count(*) from S.instances where status = 'executing'",
            30,
        )
        .await;
    (
        engine,
        gate,
        senders.iter().map(|sender| sender.id).collect(),
    )
}

async fn assert_settled(stage: &Stage, senders: impl IntoIterator<Item = &Id<Sender>>, what: &str) {
    for id in senders {
        let settled = stage.lab.settled(*id, LONG).await.unwrap();
        assert!(
            settled.is_some(),
            "{what}: {id} waits for a lock that is not its own"
        );
    }
}

/// Opens a transaction of the caller and does not commit it. The transaction signals the instance
/// that holds the key `KEY`, or enqueues an instance with that key.
async fn hold<'a>(
    stage: &Stage,
    caller: &'a mut tokio_postgres::Client,
    by: By,
) -> tokio_postgres::Transaction<'a> {
    let mut tx = caller.transaction().await.unwrap();
    if by == By::Signal {
        stage.lab.enqueue(Order { n: 42 }).after(DAY).await.unwrap();
        stage
            .lab
            .signal(Order::keyed(KEY), Paid)
            .within(&mut tx)
            .await
            .unwrap();
    } else {
        stage
            .lab
            .enqueue(Order { n: 42 })
            .after(DAY)
            .within(&mut tx)
            .await
            .unwrap();
    }
    tx
}

#[tokio::test]
async fn a_key_that_an_open_transaction_locks_delays_only_step_results_that_address_the_key() {
    for by in [By::Signal, By::Enqueue, By::Child] {
        let what = format!("{by:?}");
        let stage = Stage::new().await;
        let (engine, gate, ids) = at_the_gate(&stage, by).await;
        let mut caller = stage.caller().await;
        let tx = hold(&stage, &mut caller, by).await;
        gate.send_replace(true);
        assert_settled(&stage, &ids[1..27], &what).await;
        // The engine commits the step results of senders that the test enqueues while the caller's
        // transaction is still open.
        let later = stage
            .lab
            .enqueue_all((0..20).map(|_| Sender { by: By::Nothing }))
            .await
            .unwrap();
        assert_settled(&stage, later.iter().map(|later| &later.id), &what).await;
        let waiting = "select count(*) from S.instances where machine = 'sender' and status = 'executing' and step_seq = 0";
        assert_eq!(
            stage.number(waiting).await,
            4,
            "{what}: the key is still held"
        );
        tx.commit().await.unwrap();
        assert_settled(&stage, &ids, &what).await;
        if by == By::Signal {
            assert_eq!(
                stage
                    .number("select count(*) from S.signals where name = 'paid'")
                    .await,
                5,
                "{what}"
            );
        }
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_shutdown_ends_while_an_open_transaction_locks_a_key_that_step_results_address() {
    for by in [By::Signal, By::Enqueue, By::Child] {
        let stage = Stage::new().await;
        let (engine, gate, ids) = at_the_gate(&stage, by).await;
        let mut caller = stage.caller().await;
        let tx = hold(&stage, &mut caller, by).await;
        gate.send_replace(true);
        assert_settled(&stage, &ids[1..27], &format!("{by:?}")).await;
        engine.stop().await;
        tx.rollback().await.unwrap();
    }
}

/// Runs senders until the committer has one step result left, which it cannot write because a
/// caller's transaction locks the row of the instance. Returns the engine and the connection of the
/// caller's transaction.
async fn one_aside(stage: &Stage) -> (Running, tokio_postgres::Client) {
    let (engine, gate, ids) = at_the_gate(stage, By::Nothing).await;
    let caller = stage.caller().await;
    let lock = stage.render(&format!(
        "begin; select from S.instances where id = {} for update",
        ids[5]
    ));
    caller.batch_execute(&lock).await.unwrap();
    gate.send_replace(true);
    assert_settled(stage, ids.iter().filter(|id| **id != ids[5]), "aside").await;
    (engine, caller)
}

/// Waits until the engine has renewed the lease of its worker `count` times.
async fn heartbeats(stage: &Stage, count: usize) {
    let renewed = |stage: &Stage| stage.proxy.done("store::lease::renew");
    let (before, deadline) = (renewed(stage), tokio::time::Instant::now() + LONG);
    while renewed(stage) < before + count {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the lease is not renewed"
        );
        tokio::time::sleep(SECOND / 100).await;
    }
}

/// The test counts the attempts of the committer to write a step result of a locked row. A slow
/// host makes fewer attempts in the same time, never more.
#[tokio::test]
async fn the_committer_retries_a_step_result_with_a_locked_row_at_most_every_fifty_milliseconds() {
    let stage = Stage::new().await;
    let (engine, caller) = one_aside(&stage).await;
    let attempts = || {
        ATTEMPTS
            .iter()
            .map(|text| stage.proxy.done(text))
            .sum::<usize>()
    };
    let (begun, before) = (std::time::Instant::now(), attempts());
    heartbeats(&stage, 8).await;
    let (attempts, took) = (attempts() - before, begun.elapsed());
    assert!(
        attempts as u128 <= took.as_millis() / 50 + 1,
        "{attempts} attempts in {took:?}"
    );
    assert!(attempts > 0, "the result is not tried again");
    caller.batch_execute("commit").await.unwrap();
    stage
        .until("select count(*) from S.instances where status <> 'done'", 0)
        .await;
    engine.stop().await;
}

#[tokio::test]
async fn the_committer_retries_a_step_result_with_growing_pauses_while_the_database_refuses_it() {
    let stage = Stage::new().await;
    let (engine, caller) = one_aside(&stage).await;
    let begun = std::time::Instant::now();
    let refused = ATTEMPTS.map(|text| {
        stage
            .proxy
            .on_each(text, Fault::Refuse("53300"), 0, usize::MAX)
    });
    heartbeats(&stage, 8).await;
    let (attempts, took) = (
        refused.iter().map(|rule| rule.has_fired()).sum::<usize>(),
        begun.elapsed(),
    );
    // The committer pauses 100, 200, 400, 800 and 1,600 ms between its first attempts to write the
    // step result, and then 2 s between any two attempts.
    assert!(
        attempts as u128 <= took.as_millis() / 2_000 + 6,
        "{attempts} attempts in {took:?}"
    );
    caller.batch_execute("commit").await.unwrap();
    stage.proxy.forget();
    stage
        .until("select count(*) from S.instances where status <> 'done'", 0)
        .await;
    engine.stop().await;
}
