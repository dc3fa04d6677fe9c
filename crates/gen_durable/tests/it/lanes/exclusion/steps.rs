//! Tests that the next step begins only when a cancelled step has ended.

use std::sync::Arc;

use gen_durable::{
    Client, Context, Engine, Job, Lane, Settings, StepError,
    inspect::{Blocker, Status},
    testing::Lab,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;

use super::{By, KeyedJob, StepTracker, done, enqueue_jobs, holder, keyed_job, picks_pass, start};
use crate::support::{Running, SOON, eventually, live};

#[tokio::test]
async fn the_next_step_in_a_lane_or_partition_begins_only_after_a_cancelled_step_has_ended() {
    for by in [By::Lane, By::Key, By::Both] {
        let (pool, tracker) = (live().await, StepTracker::default());
        let client = Client::new(pool.clone());
        let gate = tracker.gate(0);
        let (running, health) = start(&pool, &tracker, Settings::default());
        let ids = enqueue_jobs(&client, by, 0..2).await;
        tracker.has_begun(0).await;
        assert!(client.cancel(ids[0], "not needed").await.unwrap());
        let settled = client.settled(ids[0], SOON).await.unwrap().unwrap();
        assert_eq!(
            settled.result.unwrap_err().message,
            "not needed",
            "callers see the cancel at once"
        );
        picks_pass(&client).await;
        assert!(
            !tracker.begun().contains(&1),
            "{by:?}: the next step began while the cancelled one ran"
        );
        let waits = client
            .inspect()
            .explain(ids[1].raw())
            .await
            .unwrap()
            .unwrap();
        let held = holder(&waits);
        assert_eq!(
            (held.instance.id, held.instance.locked_by.clone()),
            (ids[0].raw(), health.worker_id())
        );
        assert!(
            matches!(
                &held.blockers[..],
                [
                    Blocker::Settled { .. },
                    Blocker::CancelledStepRunning { alive: true, .. }
                ]
            ),
            "{by:?}: {held:?}"
        );
        gate.add_permits(1);
        done(&client, ids[1]).await;
        running.stop().await;
        assert_eq!(tracker.most(), 1, "{by:?}");
        let row = client.inspect().show(ids[0].raw()).await.unwrap().unwrap();
        assert_eq!(
            (row.status, row.in_lane, row.locked_by, row.arrival_no),
            (Status::Cancelled, false, None, None)
        );
    }
}

#[tokio::test]
async fn a_worker_begins_the_next_step_only_after_a_cancelled_step_of_its_lane_has_ended() {
    let (pool, tracker) = (live().await, StepTracker::default());
    let client = Client::new(pool.clone());
    let gate = tracker.gate(1);
    let ids = enqueue_jobs(&client, By::Lane, 0..4).await;
    let (running, _) = start(&pool, &tracker, Settings::default());
    tracker.has_begun(1).await;
    assert!(client.cancel(ids[1], "not needed").await.unwrap());
    // A cancelled instance that waits in the lane behind the running instance leaves the lane at
    // once.
    assert!(client.cancel(ids[2], "nor this").await.unwrap());
    picks_pass(&client).await;
    assert!(
        !tracker.begun().contains(&3),
        "the next step began while the cancelled one ran"
    );
    gate.add_permits(1);
    done(&client, ids[3]).await;
    running.stop().await;
    assert_eq!(tracker.most(), 1);
}

#[tokio::test]
async fn a_step_that_ends_when_it_is_cancelled_lets_the_successor_of_its_instance_begin() {
    let (pool, tracker) = (live().await, StepTracker::default());
    let client = Client::new(pool.clone());
    let (running, _) = start(&pool, &tracker, Settings::default());
    for by in [By::Lane, By::Key] {
        let first = client
            .enqueue(KeyedJob {
                ends_on_cancel: true,
                ..keyed_job(by, 0)
            })
            .await
            .unwrap();
        let second = client.enqueue(keyed_job(by, 1)).await.unwrap();
        eventually("it has begun", async || {
            client
                .inspect()
                .show(first.id.raw())
                .await
                .unwrap()
                .unwrap()
                .locked_by
                .is_some()
        })
        .await;
        assert!(
            client
                .cancel(first.id, "not needed")
                .subtree()
                .await
                .unwrap()
        );
        done(&client, second.id).await;
    }
    running.stop().await;
    assert_eq!(tracker.most(), 1);
}

#[tokio::test]
async fn a_lab_releases_the_lane_and_partition_of_a_step_that_was_cancelled_while_it_ran() {
    let tracker = StepTracker::default();
    let lab = Lab::new(tracker.clone()).await.register::<KeyedJob>();
    for by in [By::Lane, By::Key] {
        let ids = enqueue_jobs(&lab, by, 0..2).await;
        let gate = tracker.gate(0);
        let cancel = async {
            eventually("it runs", async || {
                lab.row_of(ids[0]).await.status == Status::Executing
            })
            .await;
            assert!(lab.cancel(ids[0], "not needed").await.unwrap());
            gate.add_permits(1);
        };
        tokio::join!(lab.drain(), cancel);
        lab.drain().await;
        assert_eq!(lab.status_of(ids[1]).await, Status::Done, "{by:?}");
        gate.forget_permits(1);
    }
    assert_eq!(tracker.most(), 1);
}

/// A job that ends only when the steps of two lanes and of two partition keys run at the same time.
#[derive(Serialize, Deserialize)]
struct Meeting {
    lane: Option<u64>,
    key: Option<u64>,
}

impl Job for Meeting {
    const NAME: &'static str = "meet";
    type App = Arc<Barrier>;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        self.lane.map(|lane| Lane::new("meet", lane))
    }
    fn partition(&self) -> Option<String> {
        self.key.map(|key| format!("meet {key}"))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().wait().await;
        Ok(())
    }
}

#[tokio::test]
async fn steps_of_two_lanes_and_of_two_partition_keys_run_at_the_same_time() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let engine = Engine::builder(pool.clone(), Arc::new(Barrier::new(4)))
        .register::<Meeting>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let lane = |n| Meeting {
        lane: Some(n),
        key: None,
    };
    let key = |n| Meeting {
        lane: None,
        key: Some(n),
    };
    let made = client
        .enqueue_all((0..6).flat_map(|_| [lane(1), lane(2), key(1), key(2)]))
        .await
        .unwrap();
    for one in made {
        client
            .settled(one.id, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap();
    }
    running.stop().await;
}
