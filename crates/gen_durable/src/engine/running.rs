//! The handle to a running engine.

use std::{fmt, time::Duration};

use tokio::{sync::oneshot, task::JoinHandle};

use super::Health;
use crate::error::{Error, ErrorKind};

/// How often [`RunningEngine::ready`] checks whether the engine is ready.
const READY_POLL: Duration = Duration::from_millis(10);

/// A handle to an engine that runs in a task of its own: see
/// [`Engine::start`](crate::Engine::start). If the handle is dropped, the engine shuts down.
#[must_use = "dropping the handle stops the engine"]
pub struct RunningEngine {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
    health: Health,
}

impl RunningEngine {
    pub(super) fn new(
        stop: oneshot::Sender<()>,
        task: JoinHandle<Result<(), Error>>,
        health: Health,
    ) -> RunningEngine {
        RunningEngine { stop, task, health }
    }

    /// Returns the engine's health.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Waits until the engine holds a lease and claims instances.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine has ended: [`join`](RunningEngine::join) returns the cause.
    pub async fn ready(&self) -> Result<(), Error> {
        while !self.health.is_ready() {
            if self.task.is_finished() {
                return Err(Error::new(
                    ErrorKind::Internal,
                    "the engine has ended before it was ready",
                ));
            }
            tokio::time::sleep(READY_POLL).await;
        }
        Ok(())
    }

    /// Shuts the engine down as [`Engine::run`](crate::Engine::run) does when its `shutdown`
    /// resolves, and waits until the engine has ended.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Engine::run`](crate::Engine::run).
    pub async fn stop(self) -> Result<(), Error> {
        let _ = self.stop.send(());
        ended(self.task.await)
    }

    /// Waits until the engine ends by itself, which happens only after an error.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Engine::run`](crate::Engine::run).
    pub async fn join(self) -> Result<(), Error> {
        let RunningEngine {
            stop: _running,
            task,
            ..
        } = self;
        ended(task.await)
    }
}

fn ended(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|error| {
        Err(Error::because(
            ErrorKind::Internal,
            "the engine's task has ended",
            error,
        ))
    })
}

impl fmt::Debug for RunningEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningEngine")
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}
