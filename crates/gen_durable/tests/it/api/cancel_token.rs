//! Tests the cancel token, which informs a running step that its instance was cancelled or that its
//! worker lost the claim.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use gen_durable::{
    Client, Context, Engine, Job, Pool, SECOND, StepError, inspect::Status, testing::Lab,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Running, eventually, live, sql};

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
enum Mode {
    /// The step awaits its cancel token.
    Awaits,
    /// The step polls its cancel token in a loop.
    Polls,
    /// The step never requests a cancel token, and runs until the test adds a permit to the
    /// semaphore `gate`.
    Ignores,
    /// The step requests a cancel token, spawns a task that awaits the token, and ends before the
    /// task does.
    Detaches,
}

#[derive(Serialize, Deserialize)]
struct Long {
    mode: Mode,
}

struct Recorder {
    /// The events that the runs of each instance recorded, by the id of the instance.
    events: Mutex<HashMap<i64, Vec<&'static str>>>,
    gate: Semaphore,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            events: Mutex::default(),
            gate: Semaphore::new(0),
        }
    }
}

impl Recorder {
    fn record(&self, id: i64, event: &'static str) {
        self.events
            .lock()
            .unwrap()
            .entry(id)
            .or_default()
            .push(event);
    }
    fn of(&self, id: i64) -> Vec<&'static str> {
        self.events
            .lock()
            .unwrap()
            .get(&id)
            .cloned()
            .unwrap_or_default()
    }
}

impl Job for Long {
    const NAME: &'static str = "long";
    type App = Arc<Recorder>;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        let (recorder, id) = (cx.app().clone(), cx.id().raw());
        match self.mode {
            Mode::Awaits => {
                let cancelled = cx.cancelled();
                recorder.record(id, "began");
                cancelled.await;
                recorder.record(
                    id,
                    if cx.is_cancelled() {
                        "cancelled"
                    } else {
                        "woken without a cancel"
                    },
                );
            }
            Mode::Polls => {
                recorder.record(id, "began");
                while !cx.is_cancelled() {
                    tokio::time::sleep(SECOND / 100).await;
                }
                recorder.record(id, "cancelled");
            }
            Mode::Ignores => {
                recorder.record(id, "began");
                recorder.gate.acquire().await?.forget();
            }
            Mode::Detaches => {
                let cancelled = cx.cancelled();
                tokio::spawn(async move {
                    cancelled.await;
                    recorder.record(id, "token fired after the run");
                });
            }
        }
        Ok(())
    }
}

async fn engine() -> (Pool, Client, Arc<Recorder>, Running) {
    let (pool, recorder) = (live().await, Arc::new(Recorder::default()));
    let engine = Engine::builder(pool.clone(), recorder.clone())
        .register::<Long>()
        .build()
        .unwrap();
    (
        pool.clone(),
        Client::new(pool),
        recorder,
        Running::start(engine),
    )
}

async fn until(recorder: &Recorder, id: i64, word: &str) {
    eventually(word, async || recorder.of(id).contains(&word)).await;
}

#[tokio::test]
async fn a_cancel_token_fires_when_another_process_cancels_the_instance() {
    let (pool, client, recorder, running) = engine().await;
    for mode in [Mode::Awaits, Mode::Polls] {
        let id = client.enqueue(Long { mode }).await.unwrap().id;
        until(&recorder, id.raw(), "began").await;
        let cancel = format!(
            "select {}.cancel({id}, null, null, null, 'enough')",
            pool.schema()
        );
        sql().await.batch_execute(&cancel).await.unwrap();
        until(&recorder, id.raw(), "cancelled").await;
        let row = client.inspect().show(id.raw()).await.unwrap().unwrap();
        assert_eq!(
            (row.status, row.last_error.as_deref()),
            (Status::Cancelled, Some("enough")),
            "{mode:?}"
        );
    }
    running.stop().await;
}

#[tokio::test]
async fn a_cancel_token_fires_before_the_next_poll_if_the_cancel_is_from_the_same_process() {
    let (_, client, recorder, running) = engine().await;
    let id = client
        .enqueue(Long { mode: Mode::Awaits })
        .await
        .unwrap()
        .id;
    until(&recorder, id.raw(), "began").await;
    assert!(client.cancel(id, "enough").await.unwrap());
    until(&recorder, id.raw(), "cancelled").await;
    assert_eq!(recorder.of(id.raw()), ["began", "cancelled"]);
    running.stop().await;
}

#[tokio::test]
async fn a_cancel_token_fires_when_the_worker_has_lost_the_claim_of_the_step() {
    let (pool, client, recorder, running) = engine().await;
    let id = client
        .enqueue(Long { mode: Mode::Awaits })
        .await
        .unwrap()
        .id;
    until(&recorder, id.raw(), "began").await;
    // Changes the row as a reaper would after the lease of the worker has expired: increments
    // `claim_epoch` and makes the instance runnable for another worker.
    let reap = format!(
        "update {}.instances set claim_epoch = claim_epoch + 1, status = 'runnable', locked_by = null,
         eligible_at = statement_timestamp() + interval '1 hour' where id = {id}",
        pool.schema()
    );
    sql().await.batch_execute(&reap).await.unwrap();
    until(&recorder, id.raw(), "cancelled").await;
    assert_eq!(
        client
            .inspect()
            .show(id.raw())
            .await
            .unwrap()
            .unwrap()
            .status,
        Status::Runnable
    );
    running.stop().await;
}

#[tokio::test]
async fn an_engine_polls_for_cancels_once_per_second_and_never_if_no_step_has_a_cancel_token() {
    let lab = Lab::new(()).await;
    let recorder = Arc::new(Recorder::default());
    let engine = Engine::builder(lab.pool().clone(), recorder.clone())
        .register::<Long>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let polls = || {
        lab.statements()
            .get("lost.sql")
            .copied()
            .unwrap_or_default()
    };
    let began = async |count: usize| {
        eventually("all have begun", async || {
            recorder.events.lock().unwrap().len() == count
        })
        .await;
    };
    lab.enqueue_all((0..20).map(|_| Long {
        mode: Mode::Ignores,
    }))
    .await
    .unwrap();
    began(20).await;
    assert_eq!(polls(), 0);
    let first = Instant::now();
    let asking = lab
        .enqueue_all((0..60).map(|_| Long { mode: Mode::Polls }))
        .await
        .unwrap();
    began(80).await;
    eventually("there were some polls", async || polls() >= 3).await;
    let (sent, elapsed) = (polls(), first.elapsed());
    assert!(
        SECOND * u32::try_from(sent).unwrap() <= elapsed + SECOND,
        "{sent} polls for 60 steps in {elapsed:?}"
    );
    assert_eq!(
        recorder.of(asking[0].id.raw()),
        ["began"],
        "no step was cancelled"
    );
    for one in &asking {
        lab.cancel(one.id, "enough").await.unwrap();
    }
    for one in &asking {
        until(&recorder, one.id.raw(), "cancelled").await;
    }
    recorder.gate.add_permits(20);
    running.stop().await;
}

#[tokio::test]
async fn a_cancel_token_that_outlives_its_run_fires_when_the_run_ends() {
    let (_, client, recorder, running) = engine().await;
    let id = client
        .enqueue(Long {
            mode: Mode::Detaches,
        })
        .await
        .unwrap()
        .id;
    until(&recorder, id.raw(), "token fired after the run").await;
    running.stop().await;
}

#[tokio::test]
async fn a_cancel_token_fires_in_a_lab_when_the_instance_is_cancelled() {
    let recorder = Arc::new(Recorder::default());
    let lab = Lab::new(recorder.clone()).await.register::<Long>();
    let id = lab.enqueue(Long { mode: Mode::Awaits }).await.unwrap().id;
    let cancel = async {
        until(&recorder, id.raw(), "began").await;
        lab.cancel(id, "enough").await.unwrap();
    };
    tokio::join!(lab.drain(), cancel);
    assert_eq!(recorder.of(id.raw()), ["began", "cancelled"]);
    assert_eq!(lab.status_of(id).await, Status::Cancelled);
}
