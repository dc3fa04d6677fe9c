//! Tests of a machine with `Lab`: no test waits for real time, and each has a schema of its own.
//!
//! `cargo run -p gen_durable --example lab`, on `DATABASE_URL` or on a private Postgres. In a crate
//! of your own, the functions below `main` are tests: put `#[tokio::test]` above each, and
//! `gen_durable = { version = "0.1", features = ["testing"] }` into `[dev-dependencies]`.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use gen_durable::{
    Context, DAY, Machine, Outcome, SECOND, Signal, StepError, done, inspect::Status, next, sleep,
    testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

/// A trial of 14 days. After 11 days the customer gets a reminder; a subscription ends the trial.
#[derive(Serialize, Deserialize)]
struct Trial {
    customer: u64,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Begin,
    Remind,
    Wait,
    Subscribed,
    Over,
}

#[derive(Serialize, Deserialize)]
struct Subscribe {
    plan: String,
}
impl Signal for Subscribe {
    const NAME: &'static str = "subscribe";
    type To = Trial;
}

impl Machine for Trial {
    const NAME: &'static str = "example_trial";
    type App = Arc<Mailer>;
    type Step = Step;
    type Output = String;

    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Begin => Ok(sleep(11 * DAY).then(Step::Remind)),
            Step::Remind => {
                cx.app()
                    .send(self.customer, cx.idempotency_key(), cx.attempt())?;
                Ok(next(Step::Wait))
            }
            Step::Wait => Ok(wait_for::<Subscribe>()
                .then(Step::Subscribed)
                .or_after(3 * DAY, Step::Over)),
            Step::Subscribed => {
                let plans = cx.awaited::<Subscribe>()?;
                Ok(done(plans.into_iter().map(|signal| signal.plan).collect()))
            }
            Step::Over => Ok(done("over".into())),
        }
    }
}

/// A mail service that honours idempotency keys. It rejects the first mail to customer 13.
#[derive(Default)]
struct Mailer {
    sent: Mutex<BTreeSet<String>>,
}

impl Mailer {
    fn send(&self, customer: u64, key: String, attempt: u32) -> Result<(), StepError> {
        if customer == 13 && attempt == 0 {
            return Err("the mail service is down".into());
        }
        self.sent().insert(key);
        Ok(())
    }

    fn sent(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Tested = Result<(), Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Tested {
    a_trial_without_a_subscription_is_over_after_14_days().await?;
    a_subscription_ends_the_trial().await?;
    a_reminder_that_fails_is_sent_again().await?;
    a_reminder_is_sent_once_even_if_every_step_runs_twice().await?;
    a_crash_before_the_commit_repeats_the_step().await?;
    println!("all tests passed");
    Ok(())
}

async fn a_trial_without_a_subscription_is_over_after_14_days() -> Tested {
    let mailer = Arc::new(Mailer::default());
    let lab = Lab::new(mailer.clone()).await.register::<Trial>();
    let trial = lab.enqueue(Trial { customer: 7 }).await?; // a lab is a client

    lab.drain().await; // runs what is due; the clock does not move
    assert_eq!(lab.step_of(trial.id).await, Step::Remind);
    assert_eq!(mailer.sent().len(), 0);

    lab.skip(11 * DAY).await; // stops at every due time on the way
    assert_eq!(lab.status_of(trial.id).await, Status::AwaitingSignal);
    assert_eq!(mailer.sent().len(), 1);

    lab.skip(3 * DAY).await;
    assert_eq!(lab.result_of(trial.id).await, Some(Ok("over".into())));
    Ok(())
}

async fn a_subscription_ends_the_trial() -> Tested {
    let lab = Lab::new(Arc::new(Mailer::default()))
        .await
        .register::<Trial>();
    let trial = lab.enqueue(Trial { customer: 7 }).await?;
    lab.skip(12 * DAY).await;

    let plan = "yearly".to_owned();
    lab.signal(trial.id, Subscribe { plan }).await?;
    let stats = lab.drain().await;
    assert_eq!(stats.done, 1);
    assert_eq!(lab.result_of(trial.id).await, Some(Ok("yearly".into())));
    Ok(())
}

async fn a_reminder_that_fails_is_sent_again() -> Tested {
    let mailer = Arc::new(Mailer::default());
    let lab = Lab::new(mailer.clone()).await.register::<Trial>();
    let trial = lab.enqueue(Trial { customer: 13 }).await?;
    lab.skip(11 * DAY).await;
    let row = lab.row_of(trial.id).await;
    assert_eq!((row.step.as_str(), row.failures), ("remind", 1));

    lab.skip(SECOND).await; // the backoff of the first failure is at most a second
    assert_eq!(mailer.sent().len(), 1);
    Ok(())
}

async fn a_reminder_is_sent_once_even_if_every_step_runs_twice() -> Tested {
    let mailer = Arc::new(Mailer::default());
    let lab = Lab::new(mailer.clone())
        .await
        .register::<Trial>()
        .every_step_twice();
    lab.enqueue(Trial { customer: 7 }).await?;
    lab.skip(14 * DAY).await;
    assert_eq!(mailer.sent().len(), 1);
    Ok(())
}

async fn a_crash_before_the_commit_repeats_the_step() -> Tested {
    let mailer = Arc::new(Mailer::default());
    let lab = Lab::new(mailer.clone()).await.register::<Trial>();
    let trial = lab.enqueue(Trial { customer: 7 }).await?;
    lab.drain().await;
    lab.advance(11 * DAY).await; // moves the clock and runs nothing
    lab.crash_before_commit().await;
    assert_eq!(lab.step_of(trial.id).await, Step::Remind);

    lab.drain().await;
    assert_eq!(lab.status_of(trial.id).await, Status::AwaitingSignal);
    assert_eq!(mailer.sent().len(), 1); // sent twice, with the same idempotency key
    Ok(())
}
