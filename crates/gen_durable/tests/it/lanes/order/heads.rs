//! Tests of the order of a lane: its heads run one after the other, and failures keep the order.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use gen_durable::{
    Client, Context, Engine, HOUR, Job, Lane, StepError, inspect::Status, testing::Lab,
};
use serde::{Deserialize, Serialize};

use super::{Book, Deploy, deploy};
use crate::support::{Running, SOON, eventually, live, sql};

#[tokio::test]
async fn a_lane_runs_its_instances_one_after_the_other_in_enqueue_order() {
    let book = Book::default();
    let lab = Lab::new(book.clone()).await.register::<Deploy>();
    let jobs: Vec<Deploy> = (0..20)
        .map(|n| deploy(if n % 2 == 0 { "a" } else { "b" }, n))
        .collect();
    let ids = lab.enqueue_all(jobs).await.unwrap();
    lab.drain().await;
    assert_eq!(book.of("a"), (0..20).step_by(2).collect::<Vec<_>>());
    assert_eq!(book.of("b"), (1..20).step_by(2).collect::<Vec<_>>());
    for id in ids {
        assert_eq!(lab.status_of(id.id).await, Status::Done);
    }
}

#[tokio::test]
async fn a_head_that_waits_for_its_retry_keeps_its_lane_position_and_does_not_delay_other_lanes() {
    let book = Book::default();
    let lab = Lab::new(book.clone()).await.register::<Deploy>();
    let first = lab
        .enqueue(Deploy {
            fails: Some(1),
            ..deploy("a", 1)
        })
        .await
        .unwrap();
    let second = lab.enqueue(deploy("a", 2)).await.unwrap();
    lab.enqueue(deploy("b", 3)).await.unwrap();
    lab.drain().await;
    assert_eq!(book.of("a"), [1]);
    assert_eq!(book.of("b"), [3]);
    assert_eq!(lab.status_of(second.id).await, Status::Queued);
    lab.skip(2 * HOUR).await;
    assert_eq!(book.of("a"), [1, 1, 2]);
    assert_eq!(lab.status_of(first.id).await, Status::Done);
}

#[tokio::test]
async fn a_lane_continues_after_a_failed_head_unless_the_head_blocks_on_failure() {
    let book = Book::default();
    let lab = Lab::new(book.clone()).await.register::<Deploy>();
    lab.enqueue(Deploy {
        fails: None,
        ..deploy("a", 1)
    })
    .await
    .unwrap();
    lab.enqueue(deploy("a", 2)).await.unwrap();
    let blocking = lab
        .enqueue(Deploy {
            fails: None,
            blocks: true,
            ..deploy("b", 1)
        })
        .await
        .unwrap();
    let behind = lab.enqueue(deploy("b", 2)).await.unwrap();
    lab.drain().await;
    assert_eq!(book.of("a"), [1, 2]);
    assert_eq!(book.of("b"), [1]);
    assert_eq!(lab.status_of(blocking.id).await, Status::Failed);
    assert_eq!(lab.status_of(behind.id).await, Status::Queued);
}

#[tokio::test]
async fn a_lane_continues_after_a_cancelled_head_and_skips_cancelled_entries() {
    let book = Book::default();
    let lab = Lab::new(book.clone()).await.register::<Deploy>();
    let head = lab
        .enqueue(Deploy {
            fails: Some(1),
            ..deploy("a", 1)
        })
        .await
        .unwrap();
    let second = lab.enqueue(deploy("a", 2)).await.unwrap();
    lab.enqueue(deploy("a", 3)).await.unwrap();
    lab.drain().await;
    assert!(lab.cancel(second.id, "not needed").await.unwrap());
    assert!(lab.cancel(head.id, "nor this").await.unwrap());
    lab.drain().await;
    assert_eq!(book.of("a"), [1, 3]);
}

#[tokio::test]
async fn a_priority_does_not_change_the_order_of_instances_in_a_lane() {
    let book = Book::default();
    let lab = Lab::new(book.clone()).await.register::<Deploy>();
    for (n, priority) in [(1, 0), (2, 9), (3, -9), (4, 0)] {
        lab.enqueue(deploy("a", n))
            .priority(priority)
            .await
            .unwrap();
    }
    // The picker claims job 5, the head of lane `b` with priority -1, before the head of lane `a`,
    // which has priority 0.
    lab.enqueue(deploy("b", 5)).priority(-1).await.unwrap();
    assert!(lab.step().await);
    assert_eq!((book.of("a"), book.of("b")), (vec![], vec![5]));
    lab.drain().await;
    assert_eq!(book.of("a"), [1, 2, 3, 4]);
    // A worker that claims the successors in a lane by its commits runs them in the order of the
    // enqueues too.
    let engine = Engine::builder(lab.pool().clone(), book.clone())
        .register::<Deploy>()
        .build()
        .unwrap();
    for (n, priority) in [(6, 0), (7, 9), (8, -9), (9, 0)] {
        lab.enqueue(deploy("a", n))
            .priority(priority)
            .await
            .unwrap();
    }
    let running = Running::start(engine);
    eventually("all instances have run", async || book.of("a").len() == 8).await;
    running.stop().await;
    assert_eq!(book.of("a"), [1, 2, 3, 4, 6, 7, 8, 9]);
}

#[tokio::test]
async fn an_engine_runs_many_lanes_at_once_and_each_lane_in_enqueue_order() {
    let book = Book::default();
    let lab = Lab::new(book.clone()).await;
    let engine = Engine::builder(lab.pool().clone(), book.clone())
        .register::<Deploy>()
        .build()
        .unwrap();
    let client = engine.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    let jobs = (0..500).map(|n| deploy(&format!("{}", n % 10), n));
    let ids = client.enqueue_all(jobs).await.unwrap();
    for id in ids {
        client
            .settled(id.id, Duration::from_secs(30))
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap();
    }
    for lane in 0..10 {
        assert_eq!(
            book.of(&lane.to_string()),
            (0..500).filter(|n| n % 10 == lane).collect::<Vec<_>>()
        );
    }
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

/// A job of a batch of several jobs. The step of job 0 ends at once. The step of job 1 blocks the
/// only thread of its Tokio runtime, as steps should not, until job 0 is committed as done. The
/// steps of the other jobs cannot begin before that.
#[derive(Serialize, Deserialize)]
struct BlockingJob(u64);

struct HogApp {
    /// Becomes true when the step of job 0 has begun.
    begun: AtomicBool,
    /// Receives a message when the commit of job 0 is visible as `done`.
    first_is_done: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Job for BlockingJob {
    const NAME: &'static str = "hog";
    type App = HogApp;
    type Output = bool;
    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("hog", self.0))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<bool, StepError> {
        cx.app().begun.fetch_or(self.0 == 0, Ordering::SeqCst);
        if self.0 != 1 {
            return Ok(true);
        }
        // The picker and the sweep of a worker may claim at the same time, so job 1 may begin
        // before job 0. Job 1 waits until job 0 has begun.
        while !cx.app().begun.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(cx
            .app()
            .first_is_done
            .lock()
            .unwrap()
            .recv_timeout(SOON / 2)
            .is_ok())
    }
}

#[tokio::test]
async fn a_finished_step_is_committed_while_other_jobs_of_its_batch_cannot_begin() {
    let pool = live().await;
    let (announce_done, first_is_done) = std::sync::mpsc::channel();
    let app = HogApp {
        begun: AtomicBool::new(false),
        first_is_done: Mutex::new(first_is_done),
    };
    let running = Running::start(
        Engine::builder(pool.clone(), app)
            .register::<BlockingJob>()
            .build()
            .unwrap(),
    );
    let client = Client::new(pool.clone());
    // The test runs jobs one by one until both committers of the engine have committed a step
    // result and wait for more step results.
    for n in 10..20 {
        let before = client.enqueue(BlockingJob(n)).await.unwrap();
        client.settled(before.id, SOON).await.unwrap().unwrap();
    }
    // The test begins to poll the status of job 0 before it enqueues the jobs, because job 1 may
    // block the thread of this test before the enqueue returns.
    let first = format!(
        "select coalesce(bool_or(status = 'done'), false) from {}.instances where lane_key = 'hog:0'",
        pool.schema()
    );
    let watch = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(async {
                let watch = sql().await;
                eventually("job 0 is committed as done", async || {
                    watch.query_one(&first, &[]).await.unwrap().get(0)
                })
                .await;
            });
        let _ = announce_done.send(());
    });
    let jobs = client.enqueue_all((0..5).map(BlockingJob)).await.unwrap();
    let second = client.settled(jobs[1].id, SOON).await.unwrap().unwrap();
    running.stop().await;
    watch.join().unwrap();
    assert!(
        second.result.unwrap(),
        "the commit of job 0 waited for job 1, which blocked the thread"
    );
}
