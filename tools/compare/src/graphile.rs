//! graphile_worker: a local queue, and completions gathered for 5 ms.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext,
    WorkerOptions,
};
use serde::{Deserialize, Serialize};

use crate::process;

#[derive(Deserialize, Serialize, Clone)]
struct Noop {
    at: u64,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";
    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        process::record(self.at);
        Ok::<(), String>(())
    }
}

fn options(url: &str, connections: u32, concurrency: usize) -> WorkerOptions {
    WorkerOptions::default()
        .database_url(url)
        .schema("graphile_worker")
        .max_pg_conn(connections)
        .concurrency(concurrency)
        .define_job::<Noop>()
}

pub async fn setup(url: &str) -> Result<()> {
    options(url, 1, 1).init().await?;
    Ok(())
}

pub async fn fill(url: &str, count: u64) -> Result<()> {
    let utils = options(url, 1, 1).init().await?.create_utils();
    let jobs: Vec<RawJobSpec> = (0..count)
        .map(|_| RawJobSpec {
            identifier: "noop".into(),
            payload: serde_json::json!({"at": process::now()}),
            spec: JobSpec::default(),
        })
        .collect();
    for batch in jobs.chunks(1_000) {
        utils.add_raw_jobs(batch).await?;
    }
    Ok(())
}

pub async fn work(url: &str, drains: bool) -> Result<()> {
    // A backlog is fastest with a long local queue; a flow with a shorter one, which leaves jobs to
    // other processes.
    let (connections, concurrency, queue) = if drains {
        (20, 500, 5_000)
    } else {
        (8, 100, 500)
    };
    let worker = options(url, connections, concurrency)
        .local_queue(LocalQueueConfig::default().with_size(queue))
        .complete_job_batch_delay(Duration::from_millis(5))
        .init()
        .await?;
    tokio::spawn(async move { worker.run().await });
    process::serve_worker().await
}

pub async fn produce(url: &str, rate: u64) -> Result<()> {
    let connect = || async { Ok(Arc::new(options(url, 1, 1).init().await?.create_utils())) };
    process::produce(rate, connect, |utils| async move {
        let at = process::now();
        utils.add_job(Noop { at }, JobSpec::default()).await?;
        Ok(())
    })
    .await
}
