//! A machine: it reserves goods, charges the customer (the bank is down at first), sleeps a moment
//! and ships; if the bank refuses the payment, the machine releases the goods.
//!
//! `cargo run -p gen_durable --example checkout`, on `DATABASE_URL` or on a private Postgres.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use gen_durable::{
    Context, Engine, Machine, Outcome, Pool, SECOND, StepError, done, fatal, machine::Failure,
    next, retry_after, sleep,
};
use serde::{Deserialize, Serialize};

/// The state of a checkout. The row stores it for the whole life of the instance.
#[derive(Serialize, Deserialize)]
struct Checkout {
    order: u64,
    cents: u64,
}

/// The steps of a checkout. A variant contains the data that only its step needs.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Reserve,
    Charge {
        hold: String,
    },
    Ship {
        payment: String,
    },
    Release {
        hold: String,
        why: String,
    },
}

/// The application state that the host passes to every step.
struct Shop {
    bank: Bank,
}

impl Machine for Checkout {
    const NAME: &'static str = "example_checkout";
    type App = Shop;
    type Step = Step;
    type Output = String;

    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Reserve => {
                let hold = format!("hold-{}", self.order);
                println!("order {}: reserved as {hold}", self.order);
                Ok(next(Step::Charge { hold }))
            }
            Step::Charge { .. } => {
                let payment = cx.app().bank.charge(self.cents, &cx.idempotency_key())?;
                println!(
                    "order {}: charged {} cents at run {}",
                    self.order,
                    self.cents,
                    cx.attempt() + 1
                );
                Ok(sleep(Duration::from_millis(200)).then(Step::Ship { payment }))
            }
            Step::Ship { payment } => Ok(done(format!("order {} shipped, {payment}", self.order))),
            Step::Release { hold, why } => {
                println!("order {}: {hold} released", self.order);
                Ok(done(format!("order {} cancelled: {why}", self.order)))
            }
        }
    }

    /// Retries soon after an outage; releases the goods if the bank refuses the payment.
    async fn handle(
        &mut self,
        at: Step,
        failure: &Failure,
        _: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        println!("order {}: {failure}", self.order);
        match at {
            Step::Charge { hold } if failure.fatal => Ok(next(Step::Release {
                hold,
                why: failure.message.clone(),
            })),
            _ => Ok(retry_after(Duration::from_millis(100))),
        }
    }
}

/// A bank that is down for the first two calls, and refuses large sums.
struct Bank {
    calls: AtomicU32,
}

impl Bank {
    fn charge(&self, cents: u64, key: &str) -> Result<String, StepError> {
        if cents > 100_000 {
            return Err(fatal("the bank refuses this sum"));
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) < 2 {
            return Err("the bank does not respond".into());
        }
        Ok(format!("paid under {key}"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::connect(&gen_durable_postgres::database_url()?).await?;
    pool.migrate().await?;

    let shop = Shop {
        bank: Bank {
            calls: AtomicU32::new(0),
        },
    };
    let engine = Engine::builder(pool, shop).register::<Checkout>().build()?;
    let client = engine.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));

    let paid = client
        .enqueue(Checkout {
            order: 1,
            cents: 4_200,
        })
        .await?;
    let refused = client
        .enqueue(Checkout {
            order: 2,
            cents: 1_000_000,
        })
        .await?;
    for started in [paid, refused] {
        let settled = client
            .settled(started.id, 20 * SECOND)
            .await?
            .ok_or("the checkout has not settled within 20 s")?;
        println!("instance {} is done: {}", settled.id, settled.result?);
    }

    drop(stop); // stops the engine; a real program does so at Ctrl-C or SIGTERM
    running.await??;
    Ok(())
}
