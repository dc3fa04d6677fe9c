//! Tests of batches of signals (`signal_all`), of signals that start their target
//! (`signal_or_start`), and of outbox signals with a dedup key.

mod batches;
mod signal_or_start;

use std::collections::BTreeMap;

use gen_durable::{
    Context, Id, Job, KeyScope, Machine, Outcome, Signal, StepError, client::SignalOrStarted, done,
    testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{eventually, sql};

/// A machine that collects the numbers of its signals until it receives `Close`.
#[derive(Serialize, Deserialize, Clone)]
struct Counter {
    key: Option<String>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Open,
    Late,
    Count,
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Add {
    n: u32,
}
impl Signal for Add {
    const NAME: &'static str = "add";
    type To = Counter;
}

#[derive(Serialize, Deserialize)]
struct Close;
impl Signal for Close {
    const NAME: &'static str = "close";
    type To = Counter;
}

impl Machine for Counter {
    const NAME: &'static str = "counter";
    type App = ();
    type Step = Step;
    type Output = Vec<u32>;
    fn key(&self) -> Option<String> {
        self.key.clone()
    }
    async fn step(&mut self, _: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if cx.awaited::<Close>()?.is_empty() {
            return Ok(wait_for::<(Add, Close)>().then(Step::Count).forever());
        }
        Ok(done(cx.awaited::<Add>()?.iter().map(|add| add.n).collect()))
    }
}

fn counter(key: &str) -> Counter {
    Counter {
        key: Some(key.into()),
    }
}

/// A machine of another type that holds a key of the same tenant.
#[derive(Serialize, Deserialize)]
struct OtherMachine;
impl Job for OtherMachine {
    const NAME: &'static str = "stranger";
    type App = ();
    type Output = ();
    const KEY_SCOPE: KeyScope = KeyScope::Ever;
    fn key(&self) -> Option<String> {
        Some("strange".into())
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// A machine with a key scope in which an instance keeps its key after it has settled.
#[derive(Serialize, Deserialize)]
struct KeepsKey;
impl Job for KeepsKey {
    const NAME: &'static str = "lasting";
    type App = ();
    type Output = ();
    const KEY_SCOPE: KeyScope = KeyScope::Ever;
    fn key(&self) -> Option<String> {
        Some("lasting".into())
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}
#[derive(Serialize, Deserialize)]
struct Nudge;
impl Signal for Nudge {
    const NAME: &'static str = "nudge";
    type To = KeepsKey;
}

async fn lab() -> Lab<()> {
    Lab::new(())
        .await
        .register::<Counter>()
        .register::<OtherMachine>()
        .register::<KeepsKey>()
}

async fn sum_of(lab: &Lab<()>, id: Id<Counter>) -> Vec<u32> {
    lab.signal(id, Close).await.unwrap();
    lab.drain().await;
    let mut received = lab
        .result_of(id)
        .await
        .expect("the counter has closed")
        .unwrap();
    received.sort_unstable();
    received
}

/// Calls `signal_or_start` in a transaction, where the statement waits for a lock that another
/// transaction holds. Outside a transaction the client would send the statement a second time, and
/// the second statement would read the rows that the other transaction has committed.
async fn signal_or_start_in_a_transaction(
    lab: &Lab<()>,
    key: &str,
    n: u32,
) -> SignalOrStarted<Counter> {
    let mut tx = lab.pool().begin().await.unwrap();
    let answer = lab
        .signal_or_start(counter(key), Add { n })
        .within(&mut tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    answer
}

/// Returns how many Postgres backends wait for a lock in a statement on this schema.
async fn waiting(schema: &str) -> i64 {
    let text = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%' || $1 || '.%'";
    sql()
        .await
        .query_one(text, &[&schema])
        .await
        .unwrap()
        .get(0)
}

async fn until_waiting(lab: &Lab<()>, count: i64) {
    eventually("the backends wait for a lock", async || {
        waiting(lab.pool().schema()).await == count
    })
    .await;
}

fn grown(
    before: &BTreeMap<&'static str, u64>,
    after: &BTreeMap<&'static str, u64>,
) -> Vec<(&'static str, u64)> {
    let grown = after
        .iter()
        .map(|(name, count)| (*name, count - before.get(name).unwrap_or(&0)));
    grown.filter(|(_, count)| *count > 0).collect()
}
