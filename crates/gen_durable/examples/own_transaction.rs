//! Exactly once: a caller inserts an order and enqueues its transfer in one transaction, and a step
//! commits its own writes and its step result in one transaction.
//!
//! `cargo run -p gen_durable --example own_transaction`, on `DATABASE_URL` or on a private
//! Postgres.

use gen_durable::{Client, Context, Engine, Machine, Outcome, Pool, SECOND, Settings, done};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

const TRANSFERS: i64 = 50;

/// A transfer between two accounts of the same database.
#[derive(Serialize, Deserialize)]
struct Transfer {
    order: i64,
    cents: i64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Move,
}

impl Machine for Transfer {
    const NAME: &'static str = "example_transfer";
    type App = ();
    type Step = Step;
    type Output = i64;

    async fn step(&mut self, Step::Move: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let tx = cx.begin().await?;
        let debit = "update example_accounts set cents = cents - $1 where name = 'ada'";
        let credit =
            "update example_accounts set cents = cents + $1 where name = 'bob' returning cents";
        tx.execute(debit, &[&self.cents]).await?;
        let balance: i64 = tx.query_one(credit, &[&self.cents]).await?.get(0);
        if cx.attempt() == 0 && self.order % 10 == 0 {
            // The step has sent both updates; its error rolls both of them back.
            Err("a failure before the commit")?;
        }
        Ok(done(balance).within(tx)) // the engine writes the step result in `tx`, and commits
    }

    /// Sets a short pause before a retry, because the failure of this example does not need time to
    /// pass.
    fn policy(&self, _: &Step) -> gen_durable::Policy {
        gen_durable::Policy {
            backoff_first: SECOND / 10,
            ..gen_durable::Policy::default()
        }
    }
}

/// Inserts an order and enqueues its transfer: both exist, or neither.
async fn order(
    client: &Client,
    postgres: &mut tokio_postgres::Client,
    cents: i64,
    rolls_back: bool,
) -> Result<Option<gen_durable::Id<Transfer>>, Box<dyn std::error::Error>> {
    let mut tx = postgres.transaction().await?;
    let insert = "insert into example_orders (cents) values ($1) returning id";
    let order: i64 = tx.query_one(insert, &[&cents]).await?.get(0);
    let transfer = client
        .enqueue(Transfer { order, cents })
        .within(&mut tx)
        .await?;
    if rolls_back {
        tx.rollback().await?;
        return Ok(None);
    }
    tx.commit().await?;
    Ok(Some(transfer.id))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = gen_durable_postgres::database_url()?;
    let pool = Pool::connect(&url).await?;
    pool.migrate().await?;
    let (mut postgres, driver) = tokio_postgres::connect(&url, NoTls).await?;
    let driver = tokio::spawn(driver);
    postgres
        .batch_execute(
            "drop table if exists example_accounts, example_orders;
             create table example_accounts (name text primary key, cents bigint not null);
             insert into example_accounts values ('ada', 1000000), ('bob', 0);
             create table example_orders (id bigint generated always as identity, cents bigint not null)",
        )
        .await?;

    let settings = Settings {
        transactions: 4,
        ..Settings::default()
    };
    let engine = Engine::builder(pool, ())
        .register::<Transfer>()
        .settings(settings)
        .build()?;
    let client = engine.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));

    let mut transfers = Vec::new();
    for number in 0..TRANSFERS {
        transfers.extend(order(&client, &mut postgres, 100, number % 5 == 4).await?);
    }
    println!(
        "{TRANSFERS} orders, {} of them rolled back",
        TRANSFERS as usize - transfers.len()
    );
    for id in &transfers {
        client
            .settled(*id, 20 * SECOND)
            .await?
            .ok_or("the transfer has not settled within 20 s")?
            .result?;
    }

    let row = postgres
        .query_one(
            "select (select count(*) from example_orders), (select sum(cents)::bigint from example_orders),
                    (select cents from example_accounts where name = 'bob'), (select sum(cents)::bigint from example_accounts)",
            &[],
        )
        .await?;
    let (orders, owed, moved, all): (i64, i64, i64, i64) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    println!("{orders} orders over {owed} cents, {moved} cents moved, {all} cents in all accounts");
    if moved != owed || all != 1_000_000 {
        return Err("a transfer took effect twice, or not at all".into());
    }

    drop(stop);
    running.await??;
    postgres
        .batch_execute("drop table example_accounts, example_orders")
        .await?;
    drop(postgres);
    driver.await??;
    Ok(())
}
