//! A running step notices that its instance was cancelled, or that its claim was lost.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use gen_durable::{Client, Context, Engine, Job, Lab, Pool, SECOND, Status, StepError};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Running, eventually, live, sql};

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
enum Mode {
    /// Awaits the cancel token.
    Awaits,
    /// Polls the cancel token in a loop.
    Polls,
    /// Never requests a token, and runs until the test opens the gate.
    Ignores,
    /// Requests a token and ends at once; a task that it spawned still awaits the token.
    Detaches,
}

#[derive(Serialize, Deserialize)]
struct Long {
    mode: Mode,
}

struct Recorder {
    /// Events that each run recorded, by instance.
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
        let (recorder, id) = (cx.app.clone(), cx.id.raw());
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
async fn a_step_notices_that_another_process_cancelled_it() {
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
async fn a_step_notices_a_cancel_from_its_own_process_before_the_next_poll() {
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
async fn a_step_notices_that_its_claim_was_lost() {
    let (pool, client, recorder, running) = engine().await;
    let id = client
        .enqueue(Long { mode: Mode::Awaits })
        .await
        .unwrap()
        .id;
    until(&recorder, id.raw(), "began").await;
    // Do as a reaper does with the row of an expired worker: raise the epoch and make the row
    // runnable for another worker.
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
async fn polling_for_cancels_costs_one_statement_per_second_and_none_without_a_token() {
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
async fn a_lab_notifies_a_step_of_its_cancel() {
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
