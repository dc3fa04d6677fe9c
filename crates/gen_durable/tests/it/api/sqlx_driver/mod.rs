//! Tests of client calls and step results in transactions of the `sqlx` driver that a caller or a
//! step has begun.

mod client_calls;
mod step_results;

use gen_durable::{Context, Machine, Outcome, Signal, done, wait_for};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::support::{sql, url};

async fn pool() -> PgPool {
    PgPoolOptions::new()
        .max_connections(4)
        .connect(&url())
        .await
        .unwrap()
}

/// Creates a table in the schema of the test to which steps write. Postgres checks the unique
/// constraint of the table at COMMIT.
async fn ledger(schema: &str) -> String {
    let ledger = format!("{schema}.ledger");
    let make = format!(
        "create table {ledger} (id bigint, what text, unique (id, what) deferrable initially deferred)"
    );
    sql()
        .await
        .batch_execute(&format!("{make}; grant all on {ledger} to public"))
        .await
        .unwrap();
    ledger
}

async fn entries(ledger: &str) -> Vec<String> {
    let text = format!("select what from {ledger} order by id, what");
    sql()
        .await
        .query(&text, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

#[derive(Serialize, Deserialize)]
struct Order {
    number: i64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Ask,
    Received,
}

#[derive(Serialize, Deserialize)]
struct Paid {
    cents: i64,
}
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}

impl Machine for Order {
    const NAME: &'static str = "order";
    type App = ();
    type Step = Step;
    type Output = i64;
    fn key(&self) -> Option<String> {
        (self.number > 0).then(|| format!("order:{}", self.number))
    }
    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Ask => Ok(wait_for::<Paid>().then(Step::Received).forever()),
            Step::Received => Ok(done(
                cx.awaited::<Paid>()?.iter().map(|paid| paid.cents).sum(),
            )),
        }
    }
}
