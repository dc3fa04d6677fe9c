//! Timers and schedules: a schedule that starts a report, and that the example pauses, runs once by
//! hand and changes; and an order that reminds its customer until the customer pays, or fails at a
//! date.
//!
//! `cargo run -p gen_durable --example nightly`, on `DATABASE_URL` or on a private Postgres.

use std::time::Duration;

use gen_durable::{
    Context, Engine, Job, Machine, Outcome, Pool, SECOND, Signal, StepError, done, fail,
    schedule::{Cycle, MisfirePolicy, Timestamp},
    wait_for,
};
use serde::{Deserialize, Serialize};

/// The job that the schedule starts.
#[derive(Serialize, Deserialize)]
struct Report {
    due: Timestamp,
    missed: u32,
}

impl Job for Report {
    const NAME: &'static str = "example_report";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        println!(
            "the report of {} ({} missed before it)",
            self.due, self.missed
        );
        Ok(())
    }
}

/// An order that waits for its payment.
#[derive(Serialize, Deserialize)]
struct Order {
    number: u32,
    until: Timestamp,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Wait,
    Paid,
    GiveUp,
}

#[derive(Serialize, Deserialize)]
struct Paid;
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}

impl Machine for Order {
    const NAME: &'static str = "example_reminded_order";
    type App = ();
    type Step = Step;
    type Output = String;
    async fn step(&mut self, at: Step, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Wait => Ok(wait_for::<Paid>()
                .then(Step::Paid)
                .repeat(
                    Cycle::every(Duration::from_millis(300)).times(5),
                    Remind { order: self.number },
                )
                .or_after(self.until, Step::GiveUp)),
            Step::Paid => Ok(done("paid".into())),
            Step::GiveUp => Ok(fail("not paid in time")),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Remind {
    order: u32,
}
impl Job for Remind {
    const NAME: &'static str = "example_remind";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        println!("order {} is not paid yet", self.order);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::connect_to(&gen_durable_postgres::database_url()?, "example_nightly").await?;
    pool.migrate().await?;
    let engine = Engine::builder(pool, ())
        .register::<Report>()
        .register::<Order>()
        .register::<Remind>()
        // A real program uses Cycle::cron("30 2 * * *", "Europe/Madrid")?
        .schedule(
            "nightly",
            Cycle::iso("R/PT0.4S")?.misfire(MisfirePolicy::Latest),
            |at| Report {
                due: at.due,
                missed: at.missed,
            },
        )
        .build()?;
    let client = engine.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));

    let now = client.clock().await?;
    let paid = client
        .enqueue(Order {
            number: 1,
            until: now + 20 * SECOND,
        })
        .await?
        .id;
    let unpaid = client
        .enqueue(Order {
            number: 2,
            until: now + SECOND,
        })
        .await?
        .id;
    let given_up = client
        .settled(unpaid, 20 * SECOND)
        .await?
        .ok_or("the order has not settled within 20 s")?;
    println!(
        "order 2: {:?}",
        given_up.result.map_err(|failure| failure.message)
    );
    client.signal(paid, Paid).await?;
    let settled = client
        .settled(paid, 20 * SECOND)
        .await?
        .ok_or("the order has not settled within 20 s")?;
    println!("order 1: {}", settled.result?);

    let schedules = client.schedules();
    schedules.pause("nightly", "the example").await?;
    schedules.run("nightly").await?;
    schedules
        .set(
            "nightly",
            "30 2 * * MON-FRI [Europe/Madrid]".parse()?,
            "the example",
        )
        .await?;
    schedules.resume("nightly").await?;
    let nightly = schedules
        .show("nightly")
        .await?
        .ok_or("there is no schedule")?;
    println!(
        "nightly is now {}; next {:?}",
        nightly.cycle, nightly.next_due_at
    );
    drop(stop);
    running.await??;
    Ok(())
}
