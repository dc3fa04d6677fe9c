//! Reading the work of workers: what they have claimed, and what they have counted.

use super::{Inspect, Instance, RollupPeriod, Rollups};
use crate::{
    error::Error,
    store::{inspect as instances, rollup},
};

impl Inspect {
    /// Returns the instances that a worker has claimed, in the order of their ids: at most `limit`,
    /// up to 200 (0 means 50). `worker` is [`WorkerInfo::id`](super::WorkerInfo::id).
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn claims(&self, worker: &str, limit: usize) -> Result<Vec<Instance>, Error> {
        let worker = worker.to_owned();
        self.read(
            "list the claims of a worker",
            move |connection| async move { instances::claims(&connection, &worker, limit).await },
        )
        .await
    }

    /// Returns the rollups of a period that ends now: the step results that workers counted, of all
    /// machines and queues, or of one machine or queue. See [`Rollup`](super::Rollup) for what a
    /// worker counts. The query reads at most 170 buckets, each with at most 101 rows.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn rollups(
        &self,
        period: RollupPeriod,
        machine: Option<&str>,
        queue: Option<&str>,
    ) -> Result<Rollups, Error> {
        let (machine, queue) = (machine.map(str::to_owned), queue.map(str::to_owned));
        self.read("read the rollups", move |connection| async move {
            rollup::read(&connection, period, machine.as_deref(), queue.as_deref()).await
        })
        .await
    }
}
