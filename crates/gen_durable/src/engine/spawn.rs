//! The only module of the engine that starts threads and tasks.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    sync::oneshot,
    task::{AbortHandle, JoinHandle},
};

use super::core::Core;
use crate::error::{Error, ErrorKind};

/// Starts a task on the runtime of the caller. The caller waits for the task or aborts it.
pub(super) fn task<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    tokio::spawn(work)
}

/// Starts a worker task or a batch of a projection on the host's runtime. The shutdown of the
/// engine aborts the task if it has not ended by then.
pub(super) fn on_host(core: &Arc<Core>, work: impl Future<Output = ()> + Send + 'static) {
    let task = core.steps.spawn(work);
    core.workers.add(task.abort_handle());
}

/// Starts a thread with a runtime of its own for loops of the engine, so that neither a blocked
/// host nor an exhausted pool can delay them. The thread creates the future of the loops, because
/// their connections stay on one thread.
pub(super) fn thread<F, Fut>(name: &str, make: F) -> Result<oneshot::Receiver<()>, Error>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let (done, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::because(ErrorKind::Internal, "cannot start a runtime", e))?;
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            tokio::task::LocalSet::new().block_on(&runtime, make());
            let _ = done.send(());
        })
        .map_err(|e| Error::because(ErrorKind::Internal, "cannot start a thread", e))?;
    Ok(ended)
}

/// Starts a task on the thread of the caller. The receiver resolves when the task has ended, also
/// because of a panic.
pub(super) fn local(work: impl Future<Output = ()> + 'static) -> oneshot::Receiver<()> {
    let (done, ended) = oneshot::channel();
    tokio::task::spawn_local(async move {
        let _done: oneshot::Sender<()> = done;
        work.await;
    });
    ended
}

/// The worker tasks and projection batches that the shutdown of the engine may have to abort.
#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<Vec<AbortHandle>>);

impl Workers {
    fn add(&self, task: AbortHandle) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(task);
    }
    pub(super) fn abort(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .for_each(AbortHandle::abort);
    }
}
