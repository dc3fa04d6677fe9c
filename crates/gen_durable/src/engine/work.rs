//! The worker tasks: each runs the steps of claimed instances of one queue.

use std::{future::poll_fn, pin::pin, sync::Arc};

use super::{core::Core, local::HeldInstance, spawn, step};

/// Adds claimed instances to the in-memory queue of their queue, and starts as many worker tasks as
/// the in-memory queue can use.
pub(super) fn staff(core: &Arc<Core>, queue: usize, runs: Vec<HeldInstance>) {
    let Some(local) = core.queue(queue) else {
        return;
    };
    let is_group = runs.iter().any(|run| run.row.keyed);
    let workers = local.take_in(runs);
    core.keyed.start(if is_group { workers } else { 0 });
    for _ in 0..workers {
        let starting = is_group.then(|| Starting(core.clone()));
        spawn::on_host(core, work(core.clone(), queue, starting));
    }
}

/// Counts a worker task that was started for a group of promoted successors and has not begun a
/// step. The count ends when the value is dropped, even if the task is aborted before it runs.
struct Starting(Arc<Core>);

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.keyed.begun();
    }
}

/// The body of a worker task: runs the steps of claimed instances one after the other, until no
/// instance of the queue is ready.
async fn work(core: Arc<Core>, queue: usize, mut starting: Option<Starting>) {
    let Some(local) = core.queue(queue) else {
        return;
    };
    let mut ended = None;
    while let Some((run, fence)) = local.next(ended.take()) {
        let claim = run.row.claim();
        let mut step = pin!(step::run(&core, queue, run, fence));
        // A step has begun when it first waits for something, or when it has ended.
        poll_fn(|task| {
            let polled = step.as_mut().poll(task);
            drop(starting.take());
            polled
        })
        .await;
        ended = Some(claim);
        // The worker task yields to the runtime, so that steps that never wait do not occupy a
        // thread of the host.
        tokio::task::consume_budget().await;
    }
}
