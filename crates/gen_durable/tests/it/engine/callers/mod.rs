//! Tests several callers in one process: a slow or blocked caller delays neither other callers nor
//! the loops of an engine.

mod blocked;
mod shared;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gen_durable::{
    Client, Context, Error, Event, Job, Machine, Outcome, Pool, Signal, StepError, wait_for,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::support::{SOON, eventually};

#[derive(Serialize, Deserialize, Debug)]
struct Order {
    number: u32,
}
#[derive(Serialize, Deserialize, Default, Debug)]
enum At {
    #[default]
    Begin,
}
#[derive(Serialize, Deserialize, Debug)]
struct Paid;
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}
impl Machine for Order {
    const NAME: &'static str = "order";
    type App = ();
    type Step = At;
    type Output = ();
    fn key(&self) -> Option<String> {
        Some(format!("order:{}", self.number))
    }
    async fn step(&mut self, _: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(wait_for::<Paid>().then(At::Begin).forever())
    }
}

#[derive(Serialize, Deserialize)]
struct Plain {
    filler: String,
}
impl Job for Plain {
    const NAME: &'static str = "plain";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}
fn plain() -> Plain {
    Plain {
        filler: String::new(),
    }
}

#[derive(Serialize, Deserialize)]
struct Shipped;
impl Event for Shipped {
    const NAME: &'static str = "shipped";
}

/// Makes every kind of call that does not need the row or key that the test has locked, and
/// requires that each call succeeds while the test holds the lock.
async fn other_calls_succeed(client: &Client) {
    let all = async {
        let job = client.enqueue(plain()).await?.id;
        let other = client.enqueue(Order { number: 1_000_000 }).await?.id;
        client.enqueue_all([plain(), plain()]).await?;
        client.signal(other, Paid).await?;
        client.record("acme", Shipped).await?;
        assert!(client.settled(job, Duration::ZERO).await?.is_none());
        assert!(client.inspect().show(job.raw()).await?.is_some());
        assert!(client.cancel(other, "not wanted").await?);
        client.clock().await.map(drop)
    };
    let outcome: Result<(), Error> = tokio::time::timeout(SOON, all)
        .await
        .expect("other calls wait for a blocked caller");
    outcome.unwrap();
}

/// Waits until the pool has sent `statement` at least once.
async fn sent(pool: &Pool, statement: &str) {
    eventually(&format!("{statement} is sent"), async || {
        pool.statements().contains_key(statement)
    })
    .await;
}

#[derive(Clone)]
struct Gate {
    open: watch::Sender<bool>,
    running: Arc<AtomicUsize>,
}

#[derive(Serialize, Deserialize)]
struct Gated;
impl Job for Gated {
    const NAME: &'static str = "gated";
    type App = Gate;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().running.fetch_add(1, Ordering::SeqCst);
        let _ = cx.app().open.subscribe().wait_for(|open| *open).await;
        Ok(())
    }
}
