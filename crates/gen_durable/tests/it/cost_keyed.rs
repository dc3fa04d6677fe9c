//! What lanes and partition keys cost, in statements: a contract.

use std::collections::BTreeMap;

use gen_durable::{Context, Engine, Job, Lab, Lane, SECOND, Settings, StepError};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually};

#[derive(Serialize, Deserialize)]
struct Turn {
    n: u32,
    lane: Option<u32>,
    key: Option<u32>,
}

impl Job for Turn {
    const NAME: &'static str = "turn";
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

/// Enqueue, run to the end, and count what was sent meanwhile.
async fn drained(turns: Vec<Turn>) -> BTreeMap<&'static str, u64> {
    let lab = Lab::new(()).await;
    // Nobody looks because time has passed: what is looked for, is looked for because something happened.
    let settings = Settings {
        busy_poll: 5 * SECOND,
        idle_poll: 5 * SECOND,
        ..Settings::default()
    };
    let engine = Engine::builder(lab.pool().clone(), ())
        .register::<Turn>()
        .settings(settings)
        .build()
        .unwrap();
    let before = lab.statements();
    let ids = lab.enqueue_all(turns).await.unwrap();
    let running = Running::start(engine);
    for id in ids {
        // By another's eyes: what is counted here is what the engine sends.
        eventually("it is done", async || lab.result_of(id.id).await.is_some()).await;
    }
    running.stop().await;
    let sent = lab.statements();
    sent.into_iter()
        .map(|(name, count)| (name, count - before.get(name).unwrap_or(&0)))
        .collect()
}

#[tokio::test]
async fn places_are_given_out_by_the_pick_itself_and_keyed_endings_share_a_commit() {
    let sent = drained(
        (0..100)
            .map(|n| Turn {
                n,
                lane: Some(n),
                key: None,
            })
            .collect(),
    )
    .await;
    assert_eq!(sent["enqueue_at_once.sql"], 1, "{sent:?}");
    assert_eq!(sent.get("place.sql"), None, "{sent:?}");
    assert_eq!(sent.get("settle.sql"), None, "{sent:?}");
    assert!(
        sent["settle_keyed.sql"] <= 30,
        "100 endings in 100 lanes: {sent:?}"
    );
}

#[tokio::test]
async fn a_lane_is_handed_on_without_a_pick_for_each() {
    let sent = drained(
        (0..200)
            .map(|n| Turn {
                n,
                lane: Some(1),
                key: None,
            })
            .collect(),
    )
    .await;
    assert_eq!(
        sent["settle_keyed.sql"], 200,
        "one commit a job, since one follows the other: {sent:?}"
    );
    assert!(sent["pick.sql"] < 40, "{sent:?}");
    assert_eq!(sent.get("place.sql"), None, "{sent:?}");
}

#[tokio::test]
async fn a_turn_is_handed_on_without_a_pick_for_each() {
    let sent = drained(
        (0..200)
            .map(|n| Turn {
                n,
                lane: None,
                key: Some(1),
            })
            .collect(),
    )
    .await;
    assert_eq!(sent["settle_keyed.sql"], 200, "{sent:?}");
    assert!(sent["pick.sql"] < 40, "{sent:?}");
}
