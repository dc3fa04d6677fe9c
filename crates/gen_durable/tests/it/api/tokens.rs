//! Tests of the values that a step passes to external systems: idempotency keys and fencing tokens.

use std::sync::{Arc, Mutex};

use gen_durable::{Context, Engine, Id, Job, Lane, Policy, StepError, testing::Lab};
use serde::{Deserialize, Serialize};

use crate::support::{Running, SOON, eventually, live};

/// The idempotency key and the fencing token of each run of a step, in order.
type Runs = Arc<Mutex<Vec<(String, i64)>>>;

#[derive(Serialize, Deserialize, Clone, Default)]
struct Charge {
    lane: Option<String>,
    partition: Option<String>,
    failures: u32,
}
impl Job for Charge {
    const NAME: &'static str = "charge";
    type App = Runs;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app()
            .lock()
            .unwrap()
            .push((cx.idempotency_key(), cx.fencing_token()));
        if cx.attempt() < self.failures {
            Err("declined")?
        } else {
            Ok(())
        }
    }
    fn policy(&self) -> Policy {
        let pause = std::time::Duration::from_millis(5);
        Policy {
            attempts: u32::MAX,
            backoff_first: pause,
            backoff_max: pause,
            ..Policy::default()
        }
    }
    fn lane(&self) -> Option<Lane> {
        self.lane.as_ref().map(|key| Lane::new("card", key))
    }
    fn partition(&self) -> Option<String> {
        self.partition.clone()
    }
}

/// A job that does the same as `Charge` under another machine name.
#[derive(Serialize, Deserialize)]
struct Payment {}
impl Job for Payment {
    const NAME: &'static str = "payment";
    const FORMER_NAMES: &'static [&'static str] = &["charge"];
    type App = Runs;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app()
            .lock()
            .unwrap()
            .push((cx.idempotency_key(), cx.fencing_token()));
        Ok(())
    }
}

#[tokio::test]
async fn two_schemas_have_different_idempotency_keys_for_the_same_instance_id() {
    let runs = Runs::default();
    for _ in 0..2 {
        let lab = Lab::new(runs.clone()).await.register::<Charge>();
        lab.enqueue(Charge::default()).await.unwrap();
        lab.drain().await;
    }
    let keys: Vec<String> = runs
        .lock()
        .unwrap()
        .iter()
        .map(|(key, _)| key.clone())
        .collect();
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1]);
    assert!(
        keys.iter().all(|key| key.ends_with("/charge/1/0")),
        "{keys:?}"
    );
}

#[tokio::test]
async fn instances_of_a_renamed_machine_keep_their_idempotency_keys() {
    let (pool, runs) = (live().await, Runs::default());
    let engine = Engine::builder(pool.clone(), runs.clone())
        .register::<Charge>()
        .build()
        .unwrap();
    let client = engine.client();
    let id = client
        .enqueue(Charge {
            failures: u32::MAX,
            ..Charge::default()
        })
        .await
        .unwrap()
        .id
        .raw();
    let running = Running::start(engine);
    let count = || runs.lock().unwrap().len();
    eventually("the job ran under its former name", async || count() > 0).await;
    running.stop().await;
    let before = count();
    let running = Running::start(
        Engine::builder(pool, runs.clone())
            .register::<Payment>()
            .build()
            .unwrap(),
    );
    client
        .settled(Id::<Payment>::from_raw(id), SOON)
        .await
        .unwrap()
        .expect("the job settles")
        .result
        .unwrap();
    running.stop().await;
    let keys: Vec<String> = runs
        .lock()
        .unwrap()
        .iter()
        .map(|(key, _)| key.clone())
        .collect();
    assert!(
        keys.len() > before && keys.iter().all(|key| *key == keys[0]),
        "{keys:?}"
    );
}

#[tokio::test]
async fn fencing_tokens_increase_along_a_lane_and_a_partition_key_and_with_every_retry() {
    let (lane, partition) = (Some("4000".to_owned()), Some("4000".to_owned()));
    let kinds = [
        (
            "a lane, by picks and in its worker",
            Charge {
                lane,
                ..Charge::default()
            },
        ),
        (
            "a partition",
            Charge {
                partition,
                ..Charge::default()
            },
        ),
    ];
    for (what, charge) in kinds {
        let (pool, runs) = (live().await, Runs::default());
        let engine = Engine::builder(pool, runs.clone())
            .register::<Charge>()
            .build()
            .unwrap();
        let client = engine.client();
        // The engine retries the first instance five times, so the claims of this instance have
        // drawn several fencing tokens before the other instances begin.
        let first = Charge {
            failures: 5,
            ..charge.clone()
        };
        client
            .enqueue_all(std::iter::once(first).chain(std::iter::repeat_n(charge, 20)))
            .await
            .unwrap();
        let running = Running::start(engine);
        eventually("all jobs have run", async || {
            runs.lock().unwrap().len() == 26
        })
        .await;
        running.stop().await;
        let tokens: Vec<i64> = runs
            .lock()
            .unwrap()
            .iter()
            .map(|(_, token)| *token)
            .collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "{what}: {tokens:?}");
    }
}
