//! Reads the instances of a lab.

use std::time::Duration;

use super::Lab;
use crate::{
    codec,
    failure::Failure,
    id::{Id, Status},
    inspect::Instance,
    machine::Machine,
};

impl<App: Send + Sync + 'static> Lab<App> {
    /// Returns the current step of an instance.
    ///
    /// # Panics
    /// The instance does not exist, or its step cannot be decoded.
    pub async fn step_of<M: Machine>(&self, id: Id<M>) -> M::Step {
        let row = self.row_of(id).await;
        codec::decode_step(&row.step, row.data.as_deref()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the state of an instance.
    ///
    /// # Panics
    /// The instance does not exist, or its state cannot be decoded.
    #[allow(clippy::expect_used)]
    pub async fn state_of<M: Machine>(&self, id: Id<M>) -> M {
        serde_json::from_str(&self.row_of(id).await.state).expect("the state cannot be decoded")
    }

    /// Returns the status of an instance.
    ///
    /// # Panics
    /// The instance does not exist.
    pub async fn status_of<M>(&self, id: Id<M>) -> Status {
        self.row_of(id).await.status
    }

    /// Returns the result of an instance; `None` if it has not settled.
    ///
    /// # Panics
    /// The instance does not exist, or its result cannot be decoded.
    #[allow(clippy::expect_used)]
    pub async fn result_of<M: Machine>(&self, id: Id<M>) -> Option<Result<M::Output, Failure>> {
        self.client
            .settled(id, Duration::ZERO)
            .await
            .expect("the instance cannot be read")
            .map(|settled| settled.result)
    }

    /// Returns the whole row of an instance.
    ///
    /// # Panics
    /// The instance does not exist.
    #[allow(clippy::expect_used)]
    pub async fn row_of<M>(&self, id: Id<M>) -> Instance {
        self.client
            .inspect()
            .show(id.raw())
            .await
            .expect("the instance cannot be read")
            .expect("there is no such instance")
    }
}
