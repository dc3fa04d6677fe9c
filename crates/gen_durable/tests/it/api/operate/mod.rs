//! Tests of operator actions that address machines, steps and signals by the names in the rows, and
//! of `explain`, which says why an instance does not run.

mod acts;
mod explain;

use std::{collections::BTreeSet, sync::Mutex};

use gen_durable::{
    Address, Context, HOUR, Id, Job, Machine, Outcome, Policy, Signal, StepError, done,
    inspect::Blocker, operate::UntypedAddress, spawn, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    number: u32,
}
#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Ask,
    Received,
    Fan,
}
#[derive(Serialize, Deserialize)]
struct Paid(u32);
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}
impl Machine for Order {
    const NAME: &'static str = "order";
    type App = ();
    type Step = At;
    type Output = u32;
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Ask => Ok(wait_for::<Paid>()
                .then(At::Received)
                .or_after(HOUR, At::Fan)),
            At::Received => Ok(done(cx.awaited::<Paid>()?.iter().map(|paid| paid.0).sum())),
            At::Fan => Ok(spawn([Picky { fail: true }, Picky { fail: false }])
                .then(At::Received)
                .forever()),
        }
    }
    fn key(&self) -> Option<String> {
        Some(format!("order:{}", self.number))
    }
}

#[derive(Serialize, Deserialize)]
struct Picky {
    fail: bool,
}
impl Job for Picky {
    const NAME: &'static str = "picky";
    type App = ();
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        // The step fails in its first run and succeeds in its second. The idempotency key is the
        // same in both runs, because the retry by an operator does not change `step_entry_seq`.
        static RAN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let first = RAN.lock().unwrap().insert(cx.idempotency_key());
        if self.fail && first {
            Err("not today")?
        } else {
            Ok(())
        }
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

fn by_id(id: i64) -> UntypedAddress {
    Address::Id(Id::from_raw(id))
}

async fn lab() -> Lab<()> {
    Lab::new(()).await.register::<Order>().register::<Picky>()
}

/// Returns the first blocker that `explain` lists for an instance.
async fn first(lab: &Lab<()>, id: i64) -> Option<Blocker> {
    lab.inspect()
        .explain(id)
        .await
        .unwrap()
        .unwrap()
        .blockers
        .into_iter()
        .next()
}
