//! A running step that notices that it was cancelled, or that its claim is lost.

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
enum Way {
    /// Waits for the token.
    Waits,
    /// Looks at it again and again.
    Looks,
    /// Never asks, and runs until the test lets it go on.
    Deaf,
    /// Asks, and ends at once; what it left behind waits on.
    Leaves,
}

#[derive(Serialize, Deserialize)]
struct Long {
    way: Way,
}

struct Seen {
    /// What became of each run, by instance.
    words: Mutex<HashMap<i64, Vec<&'static str>>>,
    go_on: Semaphore,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            words: Mutex::default(),
            go_on: Semaphore::new(0),
        }
    }
}

impl Seen {
    fn note(&self, id: i64, word: &'static str) {
        self.words.lock().unwrap().entry(id).or_default().push(word);
    }
    fn of(&self, id: i64) -> Vec<&'static str> {
        self.words
            .lock()
            .unwrap()
            .get(&id)
            .cloned()
            .unwrap_or_default()
    }
}

impl Job for Long {
    const NAME: &'static str = "long";
    type App = Arc<Seen>;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        let (seen, id) = (cx.app.clone(), cx.id.raw());
        match self.way {
            Way::Waits => {
                let cancelled = cx.cancelled();
                seen.note(id, "began");
                cancelled.await;
                seen.note(
                    id,
                    if cx.is_cancelled() {
                        "cancelled"
                    } else {
                        "only woken"
                    },
                );
            }
            Way::Looks => {
                seen.note(id, "began");
                while !cx.is_cancelled() {
                    tokio::time::sleep(SECOND / 100).await;
                }
                seen.note(id, "cancelled");
            }
            Way::Deaf => {
                seen.note(id, "began");
                seen.go_on.acquire().await?.forget();
            }
            Way::Leaves => {
                let cancelled = cx.cancelled();
                tokio::spawn(async move {
                    cancelled.await;
                    seen.note(id, "left behind, and stopped");
                });
            }
        }
        Ok(())
    }
}

async fn engine() -> (Pool, Client, Arc<Seen>, Running) {
    let (pool, seen) = (live().await, Arc::new(Seen::default()));
    let engine = Engine::builder(pool.clone(), seen.clone())
        .register::<Long>()
        .build()
        .unwrap();
    (
        pool.clone(),
        Client::new(pool),
        seen,
        Running::start(engine),
    )
}

async fn until(seen: &Seen, id: i64, word: &str) {
    eventually(word, async || seen.of(id).contains(&word)).await;
}

#[tokio::test]
async fn a_step_notices_that_another_process_cancelled_it() {
    let (pool, client, seen, running) = engine().await;
    for way in [Way::Waits, Way::Looks] {
        let id = client.enqueue(Long { way }).await.unwrap().id;
        until(&seen, id.raw(), "began").await;
        let cancel = format!(
            "select {}.cancel({id}, null, null, null, 'enough')",
            pool.schema()
        );
        sql().await.batch_execute(&cancel).await.unwrap();
        until(&seen, id.raw(), "cancelled").await;
        let row = client.inspect().show(id.raw()).await.unwrap().unwrap();
        assert_eq!(
            (row.status, row.last_error.as_deref()),
            (Status::Cancelled, Some("enough")),
            "{way:?}"
        );
    }
    running.stop().await;
}

#[tokio::test]
async fn a_step_notices_a_cancel_of_its_own_process_without_waiting_for_the_next_look() {
    let (_, client, seen, running) = engine().await;
    let id = client.enqueue(Long { way: Way::Waits }).await.unwrap().id;
    until(&seen, id.raw(), "began").await;
    assert!(client.cancel(id, "enough").await.unwrap());
    until(&seen, id.raw(), "cancelled").await;
    assert_eq!(seen.of(id.raw()), ["began", "cancelled"]);
    running.stop().await;
}

#[tokio::test]
async fn a_step_notices_that_its_claim_was_taken_from_it() {
    let (pool, client, seen, running) = engine().await;
    let id = client.enqueue(Long { way: Way::Waits }).await.unwrap().id;
    until(&seen, id.raw(), "began").await;
    // As a reaper does with the row of a worker that it takes for dead: somewhere else it runs again.
    let take = format!(
        "update {}.instances set claim_epoch = claim_epoch + 1, status = 'runnable', locked_by = null,
         eligible_at = statement_timestamp() + interval '1 hour' where id = {id}",
        pool.schema()
    );
    sql().await.batch_execute(&take).await.unwrap();
    until(&seen, id.raw(), "cancelled").await;
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
async fn any_number_of_steps_that_ask_cost_one_statement_a_second_and_those_that_do_not_cost_none()
{
    let lab = Lab::new(()).await;
    let seen = Arc::new(Seen::default());
    let engine = Engine::builder(lab.pool().clone(), seen.clone())
        .register::<Long>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let looks = || {
        lab.statements()
            .get("lost.sql")
            .copied()
            .unwrap_or_default()
    };
    let began = async |count: usize| {
        eventually("all have begun", async || {
            seen.words.lock().unwrap().len() == count
        })
        .await;
    };
    lab.enqueue_all((0..20).map(|_| Long { way: Way::Deaf }))
        .await
        .unwrap();
    began(20).await;
    assert_eq!(looks(), 0);
    let first = Instant::now();
    let asking = lab
        .enqueue_all((0..60).map(|_| Long { way: Way::Looks }))
        .await
        .unwrap();
    began(80).await;
    eventually("there were some looks", async || looks() >= 3).await;
    let (sent, elapsed) = (looks(), first.elapsed());
    assert!(
        SECOND * u32::try_from(sent).unwrap() <= elapsed + SECOND,
        "{sent} looks for 60 steps in {elapsed:?}"
    );
    assert_eq!(
        seen.of(asking[0].id.raw()),
        ["began"],
        "nobody was cancelled"
    );
    for one in &asking {
        lab.cancel(one.id, "enough").await.unwrap();
    }
    for one in &asking {
        until(&seen, one.id.raw(), "cancelled").await;
    }
    seen.go_on.add_permits(20);
    running.stop().await;
}

#[tokio::test]
async fn what_a_run_left_behind_is_told_when_the_run_is_over() {
    let (_, client, seen, running) = engine().await;
    let id = client.enqueue(Long { way: Way::Leaves }).await.unwrap().id;
    until(&seen, id.raw(), "left behind, and stopped").await;
    running.stop().await;
}

#[tokio::test]
async fn a_lab_tells_a_step_that_it_was_cancelled() {
    let seen = Arc::new(Seen::default());
    let lab = Lab::new(seen.clone()).await.register::<Long>();
    let id = lab.enqueue(Long { way: Way::Waits }).await.unwrap().id;
    let cancel = async {
        until(&seen, id.raw(), "began").await;
        lab.cancel(id, "enough").await.unwrap();
    };
    tokio::join!(lab.drain(), cancel);
    assert_eq!(seen.of(id.raw()), ["began", "cancelled"]);
    assert_eq!(lab.status_of(id).await, Status::Cancelled);
}
