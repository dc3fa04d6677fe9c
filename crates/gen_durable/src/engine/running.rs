//! A handle to an engine that runs.

use std::{fmt, time::Duration};

use tokio::{sync::oneshot, task::JoinHandle};

use super::Health;
use crate::error::{Error, Kind};

/// How often [`RunningEngine::ready`] looks.
const READY_LOOK: Duration = Duration::from_millis(10);

/// An engine that runs in a task of its own: see [`Engine::start`](crate::Engine::start). Dropped, it drains on its own.
#[must_use = "an engine whose handle is dropped stops"]
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

    /// Waits until the engine holds a lease and claims work.
    ///
    /// # Errors
    ///
    /// If the engine has ended: [`join`](RunningEngine::join) returns why.
    pub async fn ready(&self) -> Result<(), Error> {
        while !self.health.is_ready() {
            if self.task.is_finished() {
                return Err(Error::new(
                    Kind::Broken,
                    "the engine has ended before it was ready",
                ));
            }
            tokio::time::sleep(READY_LOOK).await;
        }
        Ok(())
    }

    /// Drains, as [`Engine::run`](crate::Engine::run) does when its `shutdown` resolves, and waits for the end.
    ///
    /// # Errors
    ///
    /// As those of [`Engine::run`](crate::Engine::run).
    pub async fn stop(self) -> Result<(), Error> {
        let _ = self.stop.send(());
        ended(self.task.await)
    }

    /// Waits until the engine ends by itself, which only an error makes it do.
    ///
    /// # Errors
    ///
    /// As those of [`Engine::run`](crate::Engine::run).
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
            Kind::Broken,
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
