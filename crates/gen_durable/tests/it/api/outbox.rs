//! Tests of the effects of a commit: the signals and new instances of the outbox, and the signals
//! that the outcome of `Machine::handle` consumes.

use gen_durable::{
    Context, DAY, HOUR, Id, Job, Machine, NewInstance, Outcome, SECOND, Settings, Signal,
    StepError, done, inspect::Status, machine::Failure, next, retry_after, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::faults::wire::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, quick},
};

/// A machine that waits for signals, consumes all signals of its inbox, and then waits for further
/// signals.
#[derive(Serialize, Deserialize)]
struct Target {
    taken: usize,
}
#[derive(Serialize, Deserialize, Default)]
enum At {
    #[default]
    Begin,
    Take,
}
#[derive(Serialize, Deserialize)]
struct Item;
impl Signal for Item {
    const NAME: &'static str = "item";
    type To = Target;
}
impl Machine for Target {
    const NAME: &'static str = "target";
    type App = ();
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        self.taken += cx.awaited::<Item>()?.len();
        Ok(match at {
            At::Begin => wait_for::<Item>().then(At::Take).forever(),
            At::Take => next(At::Begin),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Sender {
    to: Id<Target>,
}
#[derive(Serialize, Deserialize, Default)]
enum Send {
    #[default]
    Send,
}
impl Machine for Sender {
    const NAME: &'static str = "sender";
    type App = ();
    type Step = Send;
    type Output = ();
    async fn step(&mut self, _: Send, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(done(()).and_signal(self.to, Item))
    }
}

#[tokio::test]
async fn a_step_with_an_outbox_signal_to_a_full_inbox_is_retried_by_its_retry_policy() {
    let lab = Lab::new(()).await.register::<Target>().register::<Sender>();
    let to = lab
        .enqueue(Target { taken: 0 })
        .after(10 * SECOND)
        .await
        .unwrap()
        .id;
    lab.signal_all((0..1_000).map(|_| gen_durable::signal_to(to, Item)))
        .await
        .unwrap();
    let sender = lab.enqueue(Sender { to }).await.unwrap().id;
    lab.drain().await;
    let row = lab.row_of(sender).await;
    assert_eq!(
        (row.status, row.attempt),
        (Status::Runnable, 1),
        "{:?}",
        row.last_error
    );
    assert!(
        row.last_error
            .is_some_and(|error| error.contains("inbox_full"))
    );
    // The step of the target consumes all signals of its inbox after ten seconds. A later attempt
    // of the sender can then commit its signal.
    lab.skip(HOUR).await;
    assert_eq!(lab.result_of(sender).await, Some(Ok(())));
    assert_eq!(lab.state_of(to).await.taken, 1_001);
}

/// A machine that fails in the step that received a signal.
#[derive(Serialize, Deserialize)]
struct Failing {
    retries: u32,
    continues: bool,
}
#[derive(Serialize, Deserialize, Default)]
enum Step {
    #[default]
    Begin,
    Received,
    After,
}
#[derive(Serialize, Deserialize)]
struct Go;
impl Signal for Go {
    const NAME: &'static str = "go";
    type To = Failing;
}
impl Machine for Failing {
    const NAME: &'static str = "failing";
    type App = ();
    type Step = Step;
    /// The number of signals left in the inbox, and the attempt of the step that read the inbox.
    type Output = (usize, u32);
    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Begin => Ok(wait_for::<Go>().then(Step::Received).forever()),
            Step::Received => Err("fails after it received the signal")?,
            Step::After => Ok(done((cx.inbox().len(), 0))),
        }
    }
    async fn handle(
        &mut self,
        _: Step,
        failure: &Failure,
        cx: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        assert_eq!(
            cx.awaited::<Go>()?.len(),
            1,
            "the handler and every retry see the signal"
        );
        Ok(if failure.attempt < self.retries {
            retry_after(SECOND)
        } else if self.continues {
            next(Step::After)
        } else {
            done((cx.inbox().len(), failure.attempt))
        })
    }
}

#[tokio::test]
async fn an_outcome_of_a_handler_consumes_the_signals_of_the_step_unless_it_is_a_retry() {
    let lab = Lab::new(()).await.register::<Failing>();
    let signals = async || {
        let client = crate::support::sql_at(lab.url()).await;
        let text = format!(
            "select count(*) from {}.signals where consumed_at is null",
            lab.owner().schema()
        );
        client.query_one(&text, &[]).await.unwrap().get::<_, i64>(0)
    };
    for continues in [true, false] {
        let id = lab
            .enqueue(Failing {
                retries: 2,
                continues,
            })
            .await
            .unwrap()
            .id;
        lab.drain().await;
        lab.signal(id, Go).await.unwrap();
        lab.drain().await;
        let row = lab.row_of(id).await;
        assert_eq!((row.status, row.attempt), (Status::Runnable, 1));
        assert_eq!(signals().await, 1, "a retry consumes nothing");
        lab.skip(HOUR).await;
        let wanted = if continues { (0, 0) } else { (1, 2) };
        assert_eq!(lab.result_of(id).await, Some(Ok(wanted)));
        assert_eq!(
            signals().await,
            0,
            "the outcome of handle has consumed the signal"
        );
    }
}

type Gate = watch::Sender<bool>;

#[derive(Serialize, Deserialize)]
struct Urgent;
impl Job for Urgent {
    const NAME: &'static str = "urgent";
    type App = Gate;
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// A machine that enqueues a job of a priority that no worker has picked before, and runs ahead
/// into a step that waits until the test sets the `Gate` to true.
#[derive(Serialize, Deserialize)]
struct Maker {
    priority: i16,
}
#[derive(Serialize, Deserialize, Default)]
enum Make {
    #[default]
    Make,
    Last,
}
impl Machine for Maker {
    const NAME: &'static str = "maker";
    type App = Gate;
    type Step = Make;
    type Output = ();
    async fn step(&mut self, at: Make, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if matches!(at, Make::Last) {
            let _ = cx.app().subscribe().wait_for(|open| *open).await;
            return Ok(done(()));
        }
        Ok(next(Make::Last).and_enqueue(NewInstance::new(Urgent).priority(self.priority)))
    }
}

#[tokio::test]
async fn instances_that_a_step_enqueues_before_it_runs_ahead_wake_the_picker_without_a_sweep() {
    let stage = Stage::new().await;
    let gate = Gate::new(false);
    let settings = Settings {
        run_ahead_for: DAY,
        ..quick()
    };
    let engine = stage.run(stage.pool(), gate.clone(), |e| {
        e.register::<Maker>()
            .register::<Urgent>()
            .settings(settings)
    });
    engine.ready().await;
    // Once the picker knows the priorities in use, only a sweep would find an instance of another
    // priority. The proxy holds the statement of the sweep, so the picker can find the job only by
    // the hint that the commit sends to it.
    let first = stage.lab.enqueue(Urgent).await.unwrap();
    stage.lab.settled(first.id, LONG).await.unwrap().unwrap();
    let sweeps = stage
        .proxy
        .on_each("store::pick::priorities", Fault::Hold, 0, usize::MAX);
    sweeps.fired(1).await;
    let maker = stage.lab.enqueue(Maker { priority: -7 }).await.unwrap();
    stage.until("select count(*) from S.instances where machine = 'urgent' and priority = -7 and status = 'done'", 1).await;
    let running = format!(
        "select count(*) from S.instances where id = {} and status = 'executing'",
        maker.id
    );
    assert_eq!(
        stage.number(&running).await,
        1,
        "the next step of the maker still runs"
    );
    gate.send_replace(true);
    stage.proxy.forget();
    sweeps.release();
    stage.lab.settled(maker.id, LONG).await.unwrap().unwrap();
    engine.stop().await;
}

#[tokio::test]
async fn the_setting_run_ahead_steps_is_the_number_of_steps_that_run_on_one_claim() {
    for (run_ahead_steps, claims) in [(0, 2), (1, 2), (2, 1)] {
        let stage = Stage::new().await;
        let effects = Effects::default();
        let settings = Settings {
            run_ahead_steps,
            run_ahead_for: DAY,
            ..quick()
        };
        let engine = stage.run(stage.pool(), effects.clone(), |e| {
            e.register::<Walker>().settings(settings)
        });
        engine.ready().await;
        let walker = stage
            .lab
            .enqueue(Walker {
                first: First::Next,
                steps: 0,
            })
            .await
            .unwrap();
        stage.lab.settled(walker.id, LONG).await.unwrap().unwrap();
        let mut tokens: Vec<i64> = effects
            .of("walker", walker.id.raw())
            .iter()
            .map(|(_, token)| *token)
            .collect();
        assert_eq!(tokens.len(), 2);
        tokens.dedup();
        assert_eq!(
            tokens.len(),
            claims,
            "claims with run_ahead_steps {run_ahead_steps}"
        );
        engine.stop().await;
    }
}
