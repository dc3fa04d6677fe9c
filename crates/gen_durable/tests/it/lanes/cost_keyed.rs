//! Tests the number of statements that instances with a lane or a partition key need. Users may
//! rely on these numbers.

use std::collections::BTreeMap;

use gen_durable::{Context, Engine, Job, Lane, SECOND, Settings, StepError, testing::Lab};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually};

#[derive(Serialize, Deserialize)]
struct KeyedJob {
    n: u32,
    lane: Option<u32>,
    key: Option<u32>,
}

impl Job for KeyedJob {
    const NAME: &'static str = "keyed_job";
    type App = ();
    type Output = u32;
    fn lane(&self) -> Option<Lane> {
        self.lane.map(|lane| Lane::new("lane", lane))
    }
    fn partition(&self) -> Option<String> {
        self.key.map(|key| key.to_string())
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u32, StepError> {
        Ok(self.n)
    }
}

/// Enqueues the jobs, waits until an engine has run all of them, and returns how often the pool
/// sent each statement.
async fn drained(jobs: Vec<KeyedJob>) -> BTreeMap<&'static str, u64> {
    let lab = Lab::new(()).await;
    // With long poll intervals a pick starts only because of a wake, and not because time has
    // passed.
    let settings = Settings {
        busy_poll: 5 * SECOND,
        idle_poll: 5 * SECOND,
        ..Settings::default()
    };
    let engine = Engine::builder(lab.pool().clone(), ())
        .register::<KeyedJob>()
        .settings(settings)
        .build()
        .unwrap();
    let before = lab.statements();
    let ids = lab.enqueue_all(jobs).await.unwrap();
    let running = Running::start(engine);
    for id in ids {
        // Reading a result sends `settled.sql`, which the tests do not count.
        eventually("it is done", async || lab.result_of(id.id).await.is_some()).await;
    }
    running.stop().await;
    let sent = lab.statements();
    sent.into_iter()
        .map(|(name, count)| (name, count - before.get(name).unwrap_or(&0)))
        .collect()
}

#[tokio::test]
async fn instances_in_lanes_need_no_statement_for_placement_and_results_of_different_lanes_share_commits()
 {
    let sent = drained(
        (0..100)
            .map(|n| KeyedJob {
                n,
                lane: Some(n),
                key: None,
            })
            .collect(),
    )
    .await;
    assert_eq!(sent["enqueue_at_once.sql"], 1, "{sent:?}");
    assert_eq!(sent.get("place.sql"), None, "{sent:?}");
    assert_eq!(sent.get("write_step_results.sql"), None, "{sent:?}");
    assert!(
        sent["write_keyed_step_results.sql"] <= 30,
        "100 results in 100 lanes: {sent:?}"
    );
}

#[tokio::test]
async fn an_engine_runs_200_instances_of_one_lane_without_a_pick_for_each_instance() {
    let sent = drained(
        (0..200)
            .map(|n| KeyedJob {
                n,
                lane: Some(1),
                key: None,
            })
            .collect(),
    )
    .await;
    assert_eq!(
        sent["write_keyed_step_results.sql"], 200,
        "one commit per job, since each job runs after the one before: {sent:?}"
    );
    assert!(sent["pick.sql"] < 40, "{sent:?}");
    assert_eq!(sent.get("place.sql"), None, "{sent:?}");
}

#[tokio::test]
async fn an_engine_runs_200_instances_of_one_partition_key_without_a_pick_for_each_instance() {
    let sent = drained(
        (0..200)
            .map(|n| KeyedJob {
                n,
                lane: None,
                key: Some(1),
            })
            .collect(),
    )
    .await;
    assert_eq!(sent["write_keyed_step_results.sql"], 200, "{sent:?}");
    assert!(sent["pick.sql"] < 40, "{sent:?}");
}
