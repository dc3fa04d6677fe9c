//! Kills a worker of the demo, starts another worker, and waits until other workers have reaped the
//! claims of the killed worker.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use gen_durable::{
    Client,
    inspect::{Filter, Status},
};

use super::{progress::Progress, staff::Staff};
use crate::text::span;

/// The interval and the maximum number of polls in which the demo searches for a worker that has
/// claimed instances.
const POLL: Duration = Duration::from_millis(10);
const POLLS: usize = 50;
/// The wait after the demo has killed a worker. In this time Postgres may still execute a commit
/// that the killed worker had sent; after it, the number of claims of the killed worker is final.
const LAST_COMMIT: Duration = Duration::from_millis(50);

/// A worker process that the demo has killed.
#[derive(Debug)]
pub(crate) struct KilledWorker {
    /// The id of the killed worker in the table `workers`.
    worker: String,
    at: Instant,
    /// The number of instances that the killed worker had claimed.
    pub(crate) held: usize,
    /// Whether other workers have reaped the claims of the killed worker.
    released: bool,
}

/// Kills the worker that holds the most claims with SIGKILL, and starts another worker.
pub(crate) async fn kill_one(
    client: &Client,
    staff: &mut Staff,
    progress: &Progress,
) -> anyhow::Result<KilledWorker> {
    let pids: HashMap<String, u32> = client
        .inspect()
        .workers()
        .await?
        .into_iter()
        .filter_map(|worker| Some((worker.id, u32::try_from(worker.pid).ok()?)))
        .filter(|(_, pid)| staff.pids().contains(pid))
        .collect();
    let mut held = HashMap::new();
    for _ in 0..POLLS {
        held = held_by_worker(client).await?;
        if held.keys().any(|worker| pids.contains_key(worker)) {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    let busiest = pids
        .iter()
        .max_by_key(|(worker, _)| held.get(*worker).copied().unwrap_or_default());
    let Some((worker, pid)) = busiest else {
        anyhow::bail!("there is no worker to kill");
    };
    staff.kill(*pid)?;
    let at = Instant::now();
    tokio::time::sleep(LAST_COMMIT).await;
    let held = held_by_worker(client)
        .await?
        .get(worker)
        .copied()
        .unwrap_or_default();
    progress.say(&format!(
        "kill -9 {pid}: killed a worker with {held} running instances"
    ));
    let replacement = staff.start_worker()?;
    progress.say(&format!("worker {replacement} replaces it"));
    Ok(KilledWorker {
        worker: worker.clone(),
        at,
        held,
        released: held == 0,
    })
}

impl KilledWorker {
    /// Checks whether other workers have reaped all claims of the killed worker, and prints a line
    /// once they have.
    pub(crate) async fn poll(
        &mut self,
        client: &Client,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        if !self.released && !held_by_worker(client).await?.contains_key(&self.worker) {
            self.released = true;
            let after = span(self.at.elapsed().as_secs_f64());
            progress.say(&format!(
                "its lease expired: the {} instances continue on other workers, {after} after the kill",
                self.held
            ));
        }
        Ok(())
    }
}

/// Returns the number of claimed instances of each worker, among the newest 200 claimed instances.
async fn held_by_worker(client: &Client) -> anyhow::Result<HashMap<String, usize>> {
    let filter = Filter {
        status: Some(Status::Executing),
        limit: 200,
        ..Filter::default()
    };
    let mut held: HashMap<String, usize> = HashMap::new();
    for owner in client
        .inspect()
        .list(filter)
        .await?
        .into_iter()
        .filter_map(|row| row.locked_by)
    {
        *held.entry(owner).or_default() += 1;
    }
    Ok(held)
}
