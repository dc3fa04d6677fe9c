//! Three uses of the host's own `sqlx` transactions: an order and its checkout are one commit; a
//! payment, its signal and an event in the log are one commit; and a step writes to the host's
//! tables in the same commit as its step result.
//!
//! `cargo run -p gen_durable --example sqlx_transaction`, on `DATABASE_URL` or on a private
//! Postgres.

use gen_durable::{
    Client, Context, Engine, Event, Id, Machine, Outcome, Pool, SECOND, Signal, done, wait_for,
};
use serde::{Deserialize, Serialize};
use sqlx::{Executor, PgPool, Row};

const ORDERS: i64 = 20;
const LOG: &str = "example_sqlx";

#[derive(Serialize, Deserialize)]
struct Checkout {
    order: i64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    AwaitPayment,
    Ship,
}

#[derive(Serialize, Deserialize)]
struct Paid {
    cents: i64,
}
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Checkout;
}

/// An event for readers of the log.
#[derive(Serialize, Deserialize)]
struct Received {
    order: i64,
    cents: i64,
}
impl Event for Received {
    const NAME: &'static str = "example_sqlx_received";
}

/// The application state of every step: the host's own pool, the same that its web handlers use.
struct Shop {
    pool: PgPool,
}

impl Machine for Checkout {
    const NAME: &'static str = "example_sqlx_checkout";
    type App = Shop;
    type Step = Step;
    type Output = i64;

    fn key(&self) -> Option<String> {
        Some(format!("example_sqlx_order:{}", self.order))
    }

    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::AwaitPayment => Ok(wait_for::<Paid>().then(Step::Ship).forever()),
            Step::Ship => {
                let cents = cx.awaited::<Paid>()?.iter().map(|paid| paid.cents).sum();
                let mut tx = cx.app().pool.begin().await?;
                let ship = "insert into example_sqlx_shipments (number, cents) values ($1, $2)";
                sqlx::query(ship)
                    .bind(self.order)
                    .bind(cents)
                    .execute(&mut *tx)
                    .await?;
                if cx.attempt() == 0 && self.order % 5 == 0 {
                    Err("a failure before the commit")?; // this error rolls the shipment back
                }
                Ok(done(cents).within(tx)) // commits the shipment and the step result
            }
        }
    }
}

/// Inserts an order and enqueues its checkout: both exist, or neither.
async fn order(
    client: &Client,
    pool: &PgPool,
    number: i64,
) -> Result<Id<Checkout>, Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into example_sqlx_orders values ($1)")
        .bind(number)
        .execute(&mut *tx)
        .await?;
    let checkout = client
        .enqueue(Checkout { order: number })
        .within(&mut tx)
        .await?;
    tx.commit().await?;
    Ok(checkout.id)
}

/// Inserts the payment, signals the checkout and records the event in one transaction: all three
/// are committed, or none.
async fn pay(
    client: &Client,
    pool: &PgPool,
    number: i64,
    cents: i64,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into example_sqlx_payments values ($1, $2)")
        .bind(number)
        .bind(cents)
        .execute(&mut *tx)
        .await?;
    let to = Checkout::keyed(format!("example_sqlx_order:{number}"));
    client
        .signal(to, Paid { cents })
        .once(format!("payment of {number}"))
        .within(&mut tx)
        .await?;
    client
        .record(
            LOG,
            Received {
                order: number,
                cents,
            },
        )
        .within(&mut tx)
        .await?;
    tx.commit().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = gen_durable_postgres::database_url()?;
    let pool = Pool::connect(&url).await?;
    pool.migrate().await?;
    let own = PgPool::connect(&url).await?;
    let tables =
        "drop table if exists example_sqlx_orders, example_sqlx_payments, example_sqlx_shipments;
         create table example_sqlx_orders (number bigint primary key);
         create table example_sqlx_payments (number bigint, cents bigint);
         create table example_sqlx_shipments (number bigint, cents bigint)";
    own.execute(tables).await?;

    let engine = Engine::builder(pool, Shop { pool: own.clone() })
        .register::<Checkout>()
        .build()?;
    let client = engine.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));

    let before = client.events().log_position(LOG).await?;
    let mut checkouts = Vec::new();
    for number in 1..=ORDERS {
        checkouts.push(order(&client, &own, number).await?);
        pay(&client, &own, number, number * 100).await?;
    }
    for id in checkouts {
        client
            .settled(id, 20 * SECOND)
            .await?
            .ok_or("the checkout has not settled within 20 s")?
            .result?;
    }

    let text = "select count(*), count(distinct number), coalesce(sum(cents), 0)::bigint from example_sqlx_shipments";
    let row = own.fetch_one(text).await?;
    let (shipped, distinct, cents): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    println!("{ORDERS} orders, {shipped} shipments of {distinct} orders, {cents} cents");
    if (shipped, distinct, cents) != (ORDERS, ORDERS, 100 * ORDERS * (ORDERS + 1) / 2) {
        return Err("a shipment was written twice, or not at all".into());
    }
    // Events that a caller recorded in its transaction receive their log position after the commit,
    // from an engine or from this call.
    client.events().assign_positions(LOG).await?;
    let received = client.events().of::<Received>(LOG, before, 1_000).await?;
    let cents: i64 = received.iter().map(|received| received.event.cents).sum();
    println!("{} payments in the log, {cents} cents", received.len());
    if (i64::try_from(received.len())?, cents) != (ORDERS, 100 * ORDERS * (ORDERS + 1) / 2) {
        return Err("the events in the log do not match the payments".into());
    }

    drop(stop);
    running.await??;
    own.execute("drop table example_sqlx_orders, example_sqlx_payments, example_sqlx_shipments")
        .await?;
    own.close().await;
    Ok(())
}
