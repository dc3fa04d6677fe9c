//! A worker is killed, another takes its place, and what the dead one held comes back.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use gen_durable::{Client, Filter, Status};

use super::{progress::Progress, staff::Staff};
use crate::text::span;

/// How often, and how many times, we look for a worker that is in the middle of something.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: usize = 50;
/// A commit that the dead worker had sent may still arrive; then its count is final.
const LAST_WORD: Duration = Duration::from_millis(50);

/// The death of a worker.
#[derive(Debug)]
pub(crate) struct Death {
    /// Its id in the table of workers.
    worker: String,
    at: Instant,
    /// How many instances it took with it.
    pub(crate) held: usize,
    /// Whether they are back.
    back: bool,
}

/// Kill the worker that is busiest, by SIGKILL, and start another.
pub(crate) async fn kill_one(
    client: &Client,
    staff: &mut Staff,
    progress: &Progress,
) -> anyhow::Result<Death> {
    let pids: HashMap<String, u32> = client
        .inspect()
        .workers()
        .await?
        .into_iter()
        .filter_map(|worker| Some((worker.id, u32::try_from(worker.pid).ok()?)))
        .filter(|(_, pid)| staff.pids().contains(pid))
        .collect();
    let mut held = HashMap::new();
    for _ in 0..LOOKS {
        held = held_by_worker(client).await?;
        if held.keys().any(|worker| pids.contains_key(worker)) {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    let busiest = pids
        .iter()
        .max_by_key(|(worker, _)| held.get(*worker).copied().unwrap_or_default());
    let Some((worker, pid)) = busiest else {
        anyhow::bail!("no worker is left to be killed");
    };
    staff.kill(*pid)?;
    let at = Instant::now();
    tokio::time::sleep(LAST_WORD).await;
    let held = held_by_worker(client)
        .await?
        .get(worker)
        .copied()
        .unwrap_or_default();
    progress.say(&format!(
        "kill -9 {pid}: a worker is gone, in the middle of {held} instances"
    ));
    let successor = staff.hire()?;
    progress.say(&format!("worker {successor} takes its place"));
    Ok(Death {
        worker: worker.clone(),
        at,
        held,
        back: held == 0,
    })
}

impl Death {
    /// Are they back yet?
    pub(crate) async fn look(
        &mut self,
        client: &Client,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        if !self.back && !held_by_worker(client).await?.contains_key(&self.worker) {
            self.back = true;
            let after = span(self.at.elapsed().as_secs_f64());
            progress.say(&format!(
                "its lease ran out: the {} go on elsewhere, {after} after the kill",
                self.held
            ));
        }
        Ok(())
    }
}

/// How many instances each worker holds (of the newest 200 that are held).
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
