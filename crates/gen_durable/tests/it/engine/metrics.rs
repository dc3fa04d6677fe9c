//! Tests that each metric counts the events that its name says. The metrics recorder is global to
//! the process and counts events of other tests too, so this test asserts only that each metric
//! rises when the test causes the counted event.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use gen_durable::{
    Context, Engine, Event, HOUR, Job, Lane, Policy, SECOND, Settings, StepError,
    client::Recorded,
    projection::{Projection, ProjectionContext},
    schedule::{Cycle, MisfirePolicy},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::{
    engine::observe::MetricCounts,
    support::{eventually, live, sql},
};

/// The metrics recorder of this process.
pub(crate) static METRICS: LazyLock<MetricCounts> = LazyLock::new(|| {
    let counts = MetricCounts::default();
    assert!(metrics::set_global_recorder(counts.clone()).is_ok());
    counts
});

/// The behaviour of the step of a [`Counted`] job.
#[derive(Serialize, Deserialize)]
enum Does {
    Nothing,
    /// The step of the job waits until the test adds a permit to the semaphore.
    Waits,
    Fails,
}

#[derive(Serialize, Deserialize)]
struct Counted {
    does: Does,
    lane: Option<String>,
}
impl Job for Counted {
    const NAME: &'static str = "counted";
    type App = Arc<Semaphore>;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        match self.does {
            Does::Nothing => Ok(()),
            Does::Waits => {
                let _permit = cx.app().acquire().await?;
                Ok(())
            }
            Does::Fails => Err("fails as requested")?,
        }
    }
    fn lane(&self) -> Option<Lane> {
        self.lane.as_ref().map(|lane| Lane::new("counted", lane))
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

fn counted(does: Does) -> Counted {
    Counted { does, lane: None }
}

#[derive(Serialize, Deserialize, Debug, Clone)]
struct Happened {
    good: bool,
}
impl Event for Happened {
    const NAME: &'static str = "happened";
}

struct CountedModel;
impl Projection for CountedModel {
    const NAME: &'static str = "counted_model";
    type Events = Happened;
    async fn apply(
        &self,
        batch: &[Recorded<Happened>],
        _: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        if batch.iter().all(|recorded| recorded.event.good) {
            Ok(())
        } else {
            Err("fails as requested")?
        }
    }
    async fn clear(&self, _: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        Ok(())
    }
}

#[tokio::test]
async fn every_metric_of_upkeep_timers_and_projections_rises_when_its_event_occurs() {
    let (pool, gate) = (live().await, Arc::new(Semaphore::new(0)));
    let before: Vec<u64> = UNLABELLED.iter().map(|name| METRICS.count(name)).collect();
    let settings = Settings {
        lease: 3 * SECOND,
        heartbeat: SECOND / 4,
        reap_every: SECOND / 20,
        collect_every: SECOND / 20,
        retention: Some(Duration::from_millis(1)),
        ..Settings::default()
    };
    let hourly: Cycle = "R/PT1H".parse().unwrap();
    let engine = Engine::builder(pool.clone(), gate.clone())
        .register::<Counted>()
        .project(CountedModel)
        .schedule("hourly", hourly.misfire(MisfirePolicy::Skip), |_| {
            counted(Does::Nothing)
        })
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let running = engine.start();
    running.ready().await.unwrap();
    let sql = sql().await;
    let run = async |text: &str| {
        sql.batch_execute(&text.replace("S.", &format!("{}.", pool.schema())))
            .await
            .unwrap();
    };
    // The test increments the `claim_epoch` of an instance while its step runs, as if another
    // worker had claimed the instance.
    let waits = client.enqueue(counted(Does::Waits)).await.unwrap().id;
    eventually("the step runs", async || {
        client
            .inspect()
            .show(waits.raw())
            .await
            .unwrap()
            .unwrap()
            .status
            == gen_durable::inspect::Status::Executing
    })
    .await;
    run(&format!(
        "update S.instances set claim_epoch = claim_epoch + 1 where id = {waits}"
    ))
    .await;
    gate.add_permits(1);
    // The test inserts an expired worker that holds a claim, and enqueues another instance that
    // settles and exceeds its retention at once.
    let held = client
        .enqueue(counted(Does::Nothing))
        .after(HOUR)
        .await
        .unwrap()
        .id;
    let expired = "dead0000-0000-0000-0000-0000000000aa";
    run(&format!(
        "insert into S.workers (id, lease_expires_at, host, pid, queues, machines)
         values ('{expired}', statement_timestamp() - interval '1 h', 'far', 7, '{{}}', '{{}}');
         update S.instances set status = 'executing', locked_by = '{expired}' where id = {held}"
    ))
    .await;
    client.enqueue(counted(Does::Nothing)).await.unwrap();
    // The test deletes the head of a lane with SQL, so that the repair by upkeep must promote the
    // successor.
    let in_lane = || Counted {
        does: Does::Nothing,
        lane: Some("a".into()),
    };
    let head = client.enqueue(in_lane()).after(HOUR).await.unwrap().id;
    client.enqueue(in_lane()).await.unwrap();
    eventually("the lane has a head", async || {
        client
            .inspect()
            .show(head.raw())
            .await
            .unwrap()
            .unwrap()
            .status
            == gen_durable::inspect::Status::Runnable
    })
    .await;
    run(&format!("delete from S.instances where id = {head}")).await;
    // The test sets the due time of the schedule's next occurrence back by three hours, so that the
    // occurrence is overdue.
    run("update S.timers set due_at = due_at - interval '3 hours'").await;
    for good in [true, false] {
        client.record("t", Happened { good }).await.unwrap();
    }
    for (name, before) in UNLABELLED.iter().zip(before) {
        eventually(name, async || METRICS.count(name) > before).await;
    }
    for name in [
        "durable_timers_missed_total{kind=schedule}",
        "durable_projected_total{projection=counted_model}",
        "durable_projection_failures_total{projection=counted_model}",
    ] {
        eventually(name, async || METRICS.count(name) > 0).await;
    }
    running.stop().await.unwrap();
}

const UNLABELLED: [&str; 4] = [
    "durable_reaped_total{}",
    "durable_collected_total{}",
    "durable_stale_results_total{}",
    "durable_lanes_repaired_total{}",
];

#[tokio::test]
async fn failures_beyond_the_queue_of_a_blocked_on_failure_hook_are_counted_as_dropped() {
    let name = "durable_failure_notices_dropped_total{}";
    assert_eq!(METRICS.count(name), 0);
    let (held, hold) = std::sync::mpsc::channel::<()>();
    let hold = std::sync::Mutex::new(hold);
    let engine = Engine::builder(live().await, Arc::new(Semaphore::new(0))).register::<Counted>();
    let engine = engine
        .on_failure(move |_| {
            let _ = hold.lock().unwrap().recv();
        })
        .build()
        .unwrap();
    let client = engine.client();
    let running = engine.start();
    // The `on_failure` hook of the engine blocks on the first failed job. The engine keeps a
    // thousand further failures in memory for the hook, and drops the rest.
    client
        .enqueue_all((0..1_010).map(|_| counted(Does::Fails)))
        .await
        .unwrap();
    eventually("the last failures were dropped", async || {
        METRICS.count(name) >= 9
    })
    .await;
    drop(held);
    running.stop().await.unwrap();
}
