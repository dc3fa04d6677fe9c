//! The order of the demo shop: a machine with four steps. Some steps fail for some orders.

use std::time::Duration;

use gen_durable::{
    Context, Machine, Outcome, Policy, SECOND, done, fail, fatal,
    inspect::{Instance, Status},
    machine::HistoryPolicy,
    next, sleep,
};
use serde::{Deserialize, Serialize};

use super::{
    Shop, a_moment, happens,
    receipt::Receipt,
    sales::{Charged, Declined, Shipped},
};

/// One order of the demo shop.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The number of the order. The number determines which simulated failures the order has.
    pub(crate) number: u64,
    pub(crate) cents: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    #[default]
    Reserve,
    Charge,
    Pack,
    Ship,
}

impl Machine for Order {
    const NAME: &'static str = "order";
    /// The workers of the demo insert a history row for every commit of an order.
    const HISTORY: HistoryPolicy = HistoryPolicy::All;
    type App = Shop;
    type Step = Step;
    type Output = String;

    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Reserve => {
                tokio::time::sleep(a_moment("reserve", self.number, 20, 60)).await;
                if happens("no longer sold", self.number, 70)
                    && cx.app().ledger.first_time(cx, "no longer sold").await?
                {
                    return Err(fatal(format!(
                        "article {} is out of stock",
                        1000 + self.number % 50
                    )));
                }
                if cx.attempt() == 0 && happens("the warehouse is busy", self.number, 9) {
                    return Err("the warehouse is busy".into());
                }
                Ok(next(Step::Charge))
            }
            Step::Charge => {
                tokio::time::sleep(a_moment("charge", self.number, 20, 60)).await;
                if happens("card declined", self.number, 25)
                    && cx.app().ledger.first_time(cx, "card declined").await?
                {
                    return Ok(fail("card declined").and_record(Declined));
                }
                if cx.attempt() < 2 && happens("the bank does not answer", self.number, 11) {
                    return Err("the bank does not answer".into());
                }
                // One transaction writes the charge, the receipt and the next step of the order. It
                // writes all of them or none, even if the worker crashes.
                let mut tx = cx.begin().await?;
                let receipt = Receipt {
                    order: cx.id(),
                    cents: self.cents,
                };
                let receipt = cx.app().client.enqueue(receipt).within(&mut tx).await?;
                cx.app()
                    .ledger
                    .charge(&tx, cx.id(), self.cents, receipt.id)
                    .await?;
                Ok(next(Step::Pack)
                    .and_record(Charged { cents: self.cents })
                    .within(tx))
            }
            // The order sleeps while it is packed. No process waits during the sleep, because the
            // row of the instance stores the end of the sleep.
            Step::Pack => Ok(sleep(a_moment("pack", self.number, 200, 600)).then(Step::Ship)),
            Step::Ship => {
                tokio::time::sleep(a_moment("ship", self.number, 20, 60)).await;
                if cx.attempt() == 0 && happens("the van is full", self.number, 13) {
                    return Err("the van is full".into());
                }
                let parcel = format!("parcel {:06}", self.number);
                Ok(done(parcel.clone()).and_record(Shipped { parcel }))
            }
        }
    }

    fn policy(&self, _: &Step) -> Policy {
        Policy {
            attempts: 8,
            backoff_first: Duration::from_millis(200),
            backoff_max: SECOND,
            ..Policy::default()
        }
    }
}

/// Returns the number of commits of a settled order without retries. A settled order with more
/// commits was retried.
pub(crate) fn straight_steps(order: &Instance) -> i64 {
    match order.status {
        Status::Done => 4,
        _ => 2,
    }
}
