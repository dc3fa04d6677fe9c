//! A saga: an order reserves goods, charges the customer and ships. If a step fails for good, or
//! the customer abandons the order, the machine undoes the completed steps in reverse order. Each
//! compensation is a step of its own, with its own commit and its own retries.
//!
//! `cargo run -p gen_durable --example order_saga`, on `DATABASE_URL` or on a private Postgres.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use gen_durable::{
    Context, Engine, Machine, Outcome, Pool, SECOND, Signal, StepError, done, fail, fatal,
    machine::Failure, next, retry_after, wait_for,
};
use serde::{Deserialize, Serialize};

/// The number of failures after which the machine stops trying and compensates.
const FAILURES_MAX: u32 = 3;

#[derive(Serialize, Deserialize)]
struct Order {
    number: u32,
    /// The compensations of the completed steps, the oldest first. The commit of a step that has an
    /// effect also adds the compensation of that effect.
    undo: Vec<Undo>,
}

#[derive(Serialize, Deserialize, Clone)]
#[serde(rename_all = "snake_case")]
enum Undo {
    Release { hold: String },
    Refund { payment: String },
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Reserve,
    Charge,
    Ship,
    Abandoned,
    Compensate {
        why: String,
    },
}

/// The customer no longer wants the order. A cancel would undo nothing, so this is a signal.
#[derive(Serialize, Deserialize)]
struct Abandon;
impl Signal for Abandon {
    const NAME: &'static str = "abandon";
    type To = Order;
}

impl Machine for Order {
    const NAME: &'static str = "example_order_saga";
    type App = Arc<World>;
    type Step = Step;
    type Output = String;

    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Reserve => {
                let hold = cx.app().reserve(self.number)?;
                self.undo.push(Undo::Release { hold });
                Ok(next(Step::Charge))
            }
            Step::Charge => {
                let payment = cx.app().charge(self.number)?;
                self.undo.push(Undo::Refund { payment });
                // The customer may abandon the order before it ships.
                Ok(wait_for::<Abandon>()
                    .then(Step::Abandoned)
                    .or_after(Duration::from_millis(500), Step::Ship))
            }
            Step::Ship => Ok(done(cx.app().ship(self.number)?)),
            Step::Abandoned => Ok(next(Step::Compensate {
                why: "the customer abandoned the order".into(),
            })),
            Step::Compensate { why } => {
                let Some(undo) = self.undo.last().cloned() else {
                    return Ok(fail(why)); // all effects are undone
                };
                cx.app().undo(self.number, &undo)?;
                self.undo.pop(); // committed together with the transition
                Ok(next(Step::Compensate { why }))
            }
        }
    }

    /// Retries a failed step, and compensates when the failure is final. A compensation is retried
    /// without a limit: a half-undone order helps no customer.
    async fn handle(
        &mut self,
        at: Step,
        failure: &Failure,
        _: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        println!("order {}: {failure}", self.number);
        let is_final = failure.fatal || failure.failures + 1 >= FAILURES_MAX;
        match at {
            Step::Compensate { .. } => Ok(retry_after(Duration::from_millis(100))),
            _ if is_final => Ok(next(Step::Compensate {
                why: failure.message.clone(),
            })),
            _ => Ok(retry_after(Duration::from_millis(100))),
        }
    }
}

/// The warehouse, the bank and the carrier. Sets make their calls idempotent: a repeated call
/// changes nothing.
#[derive(Default)]
struct World {
    holds: Mutex<BTreeSet<String>>,
    payments: Mutex<BTreeSet<String>>,
    refunds_refused: Mutex<u32>,
}

impl World {
    fn reserve(&self, order: u32) -> Result<String, StepError> {
        let hold = format!("hold-{order}");
        locked(&self.holds)?.insert(hold.clone());
        println!("order {order}: reserved as {hold}");
        Ok(hold)
    }

    fn charge(&self, order: u32) -> Result<String, StepError> {
        let payment = format!("payment-{order}");
        locked(&self.payments)?.insert(payment.clone());
        println!("order {order}: charged as {payment}");
        Ok(payment)
    }

    /// Order 2 has an address that does not exist; the carrier of order 3 never responds.
    fn ship(&self, order: u32) -> Result<String, StepError> {
        match order {
            2 => Err(fatal("the address does not exist")),
            3 => Err("the carrier does not respond".into()),
            _ => Ok(format!("parcel-{order}")),
        }
    }

    /// The bank refuses the first refund, which is then tried again.
    fn undo(&self, order: u32, undo: &Undo) -> Result<(), StepError> {
        match undo {
            Undo::Release { hold } => {
                locked(&self.holds)?.remove(hold);
                println!("order {order}: {hold} released");
            }
            Undo::Refund { payment } => {
                let mut refused = locked(&self.refunds_refused)?;
                if *refused == 0 {
                    *refused += 1;
                    return Err("the bank does not respond".into());
                }
                locked(&self.payments)?.remove(payment);
                println!("order {order}: {payment} refunded");
            }
        }
        Ok(())
    }

    /// Returns the holds and payments that exist.
    fn left(&self) -> Result<Vec<String>, StepError> {
        let (holds, payments) = (locked(&self.holds)?, locked(&self.payments)?);
        Ok(holds.iter().chain(payments.iter()).cloned().collect())
    }
}

fn locked<T>(of: &Mutex<T>) -> Result<std::sync::MutexGuard<'_, T>, StepError> {
    of.lock().map_err(|_| StepError::from("a step panicked"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::connect(&gen_durable_postgres::database_url()?).await?;
    pool.migrate().await?;
    let world = Arc::new(World::default());
    let running = Engine::builder(pool.clone(), world.clone())
        .register::<Order>()
        .build()?
        .start();
    let client = gen_durable::Client::new(pool);

    let orders = (1..=4).map(|number| Order {
        number,
        undo: Vec::new(),
    });
    let orders = client.enqueue_all(orders).await?;
    let abandoned = orders.last().ok_or("there is no order 4")?;
    client.signal(abandoned.id, Abandon).await?; // an early signal waits in the inbox

    let mut results = Vec::new();
    for order in &orders {
        let settled = client
            .settled(order.id, 20 * SECOND)
            .await?
            .ok_or("an order has not settled within 20 s")?;
        match settled.result {
            Ok(parcel) => results.push(parcel),
            Err(failure) => results.push(format!("failed: {failure}")),
        }
    }
    running.stop().await?;

    for (index, result) in results.iter().enumerate() {
        println!("order {}: {result}", index + 1);
    }
    // Only order 1 has shipped, and only its effects remain.
    let left = world.left().map_err(|error| error.to_string())?;
    println!("left: {left:?}");
    if left != ["hold-1", "payment-1"] {
        return Err("an effect was not undone, or was undone too much".into());
    }
    Ok(())
}
