//! The producer process of a steady flow.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use gen_durable::{Client, NewInstance, Pool, Queue};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::job::{FlowJob, Kind, queues};
use crate::child;

/// The number of producers. Each of them has its own connection and enqueues one job after the
/// other.
pub(crate) const PRODUCERS: u32 = 10;

/// The number of jobs per call when the bench fills a table.
const FILL_BATCH: u64 = 1_000;

/// The task of the producer process.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) struct Produce {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) kind: Kind,
    /// The jobs per second of all producers together; 0 means as fast as the calls return.
    pub(crate) rate: u32,
    pub(crate) payload: usize,
    pub(crate) queues: u32,
}

impl Produce {
    /// Enqueues jobs until the standard input is closed, then prints their number.
    pub(crate) async fn serve(self) -> Result<()> {
        let (payload, queues) = ("x".repeat(self.payload), queues(self.queues));
        let stop = Arc::new(AtomicBool::new(false));
        let mut producers = Vec::new();
        for index in 0..PRODUCERS {
            let producer = Producer {
                index,
                client: Client::new(Pool::connect_to(&self.url, &self.schema).await?),
                kind: self.kind,
                rate: self.rate,
                payload: payload.clone(),
                queues: queues.clone(),
                stop: stop.clone(),
            };
            // Enqueues one job before the measurement, because the first call on a new connection
            // is slower.
            producer.enqueue(0).await?;
            producers.push(producer);
        }
        child::print_ready();
        let producers: Vec<_> = producers
            .into_iter()
            .map(|producer| tokio::spawn(producer.produce()))
            .collect();
        child::stdin_closed().await;
        stop.store(true, Ordering::Relaxed);
        let mut enqueued = 0;
        for producer in producers {
            enqueued += producer.await??;
        }
        child::print_line(&serde_json::to_string(&enqueued)?);
        Ok(())
    }
}

struct Producer {
    index: u32,
    client: Client,
    kind: Kind,
    rate: u32,
    payload: String,
    queues: Vec<Queue>,
    stop: Arc<AtomicBool>,
}

impl Producer {
    /// Enqueues one job after the other until `stop` is set. Returns the number of jobs.
    async fn produce(self) -> Result<u64> {
        let pause = match self.rate {
            0 => Duration::ZERO,
            rate => Duration::from_secs(PRODUCERS.into()) / rate,
        };
        // The producers begin one after the other, so that their calls spread over the pause.
        let mut due = Instant::now() + pause * self.index / PRODUCERS;
        let mut enqueued = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.rate > 0 {
                tokio::time::sleep_until(due).await;
                due += pause;
            }
            self.enqueue(enqueued).await?;
            enqueued += 1;
        }
        Ok(enqueued)
    }

    /// Enqueues the n-th job of this producer. Jobs with the same key have the same queue.
    async fn enqueue(&self, n: u64) -> Result<()> {
        let n = n * u64::from(PRODUCERS) + u64::from(self.index);
        let job = FlowJob::new(self.kind, n, &self.payload);
        let queue = usize::try_from(job.key())? % self.queues.len().max(1);
        let queue = self.queues.get(queue).copied().unwrap_or(Queue::DEFAULT);
        self.client
            .enqueue(NewInstance::new(job).queue(queue))
            .await?;
        Ok(())
    }
}

/// Enqueues this number of plain jobs, in batches.
pub(crate) async fn fill(client: &Client, count: u64) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let batch = left.min(FILL_BATCH);
        let jobs = (0..batch).map(|n| FlowJob::new(Kind::Plain, n, ""));
        client.enqueue_all(jobs).await?;
        left -= batch;
    }
    Ok(())
}
