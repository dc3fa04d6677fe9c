//! Tests the number of statements that each act sends. Users may rely on these numbers.

use std::collections::BTreeMap;

use gen_durable::{Context, Engine, Job, SECOND, StepError, testing::Lab};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually};

#[derive(Serialize, Deserialize)]
struct Tick {
    n: u32,
}

impl Job for Tick {
    const NAME: &'static str = "tick";
    type App = ();
    type Output = u32;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u32, StepError> {
        Ok(self.n)
    }
}

/// Returns how often the pool sent each statement between two readings of its counters.
fn between(
    before: &BTreeMap<&'static str, u64>,
    after: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    let grown =
        |(name, count): (&&'static str, &u64)| (*name, count - before.get(name).unwrap_or(&0));
    after
        .iter()
        .map(grown)
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[tokio::test]
async fn an_enqueue_of_one_or_of_ten_thousand_instances_sends_one_statement() {
    let lab = Lab::new(()).await.register::<Tick>();
    let start = lab.statements();
    lab.enqueue(Tick { n: 1 }).await.unwrap();
    let one = lab.statements();
    assert_eq!(between(&start, &one), BTreeMap::from([("enqueue.sql", 1)]));
    lab.enqueue_all((0..10_000).map(|n| Tick { n }))
        .await
        .unwrap();
    assert_eq!(
        between(&one, &lab.statements()),
        BTreeMap::from([("enqueue.sql", 1)])
    );
    let mut tx = lab.pool().begin().await.unwrap();
    let begun = lab.statements();
    lab.enqueue(Tick { n: 1 }).within(&mut tx).await.unwrap();
    assert_eq!(
        between(&begun, &lab.statements()),
        BTreeMap::from([("enqueue.sql", 1)])
    );
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn concurrent_enqueues_share_statements() {
    let lab = Lab::new(()).await.register::<Tick>();
    let start = lab.statements();
    let all = (0..500)
        .map(|n| async move { n })
        .map(|n| async { lab.enqueue(Tick { n: n.await }).await.unwrap().id });
    let mut ids = futures_util::future::join_all(all).await;
    ids.sort_by_key(|id| id.raw());
    ids.dedup();
    assert_eq!(ids.len(), 500, "each caller has an instance of its own");
    let sent = between(&start, &lab.statements())["enqueue.sql"];
    assert!(sent <= 10, "500 concurrent enqueues took {sent} statements");
}

#[tokio::test]
async fn one_statement_claims_a_hundred_instances_and_one_statement_commits_their_results() {
    let lab = Lab::new(()).await.register::<Tick>();
    lab.enqueue_all((0..100).map(|n| Tick { n })).await.unwrap();
    let start = lab.statements();
    assert_eq!(lab.drain().await.done, 100);
    let sent = between(&start, &lab.statements());
    // One pick claims the hundred instances, and a second pick finds none left. One statement
    // commits all results.
    assert_eq!(
        (sent["pick.sql"], sent["write_step_results.sql"]),
        (2, 1),
        "{sent:?}"
    );
}

#[tokio::test]
async fn a_running_engine_needs_fewer_than_200_picks_and_commits_for_2001_jobs() {
    let lab = Lab::new(()).await;
    let engine = Engine::builder(lab.pool().clone(), ())
        .register::<Tick>()
        .build()
        .unwrap();
    lab.enqueue_all((0..2_000).map(|n| Tick { n }))
        .await
        .unwrap();
    let running = Running::start(engine);
    let last = lab.enqueue(Tick { n: 0 }).priority(1).await.unwrap().id;
    eventually("the last one is done", async || {
        lab.result_of(last).await.is_some()
    })
    .await;
    running.stop().await;
    let sent = lab.statements();
    // A pick of the sweep that runs beside a pick of the picker may lock rows that the picker has
    // just claimed. On a busy computer it may hold them for longer than a commit waits, and the
    // commit then asks which rows are locked.
    let locked = sent.get("locked.sql").copied().unwrap_or_default();
    let hot = sent["pick.sql"] + sent["write_step_results.sql"] + locked;
    assert!(hot < 200, "2,001 jobs took {hot} statements: {sent:?}");
    for name in ["release_claims.sql", "resolve.sql", "reap.sql"] {
        assert_eq!(sent.get(name), None, "{sent:?}");
    }
}

#[tokio::test]
async fn a_call_of_settled_for_a_settled_instance_sends_one_statement() {
    let lab = Lab::new(()).await.register::<Tick>();
    let id = lab.enqueue(Tick { n: 5 }).await.unwrap().id;
    lab.drain().await;
    let start = lab.statements();
    assert!(lab.settled(id, SECOND).await.unwrap().is_some());
    assert_eq!(
        between(&start, &lab.statements()),
        BTreeMap::from([("settled.sql", 1)])
    );
}
