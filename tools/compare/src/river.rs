//! riverqueue, the client of River for Rust: 500 jobs at once, and a short fetch cooldown.

use std::time::Duration;

use anyhow::Result;
use riverqueue::{
    BoxError, Client, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers,
    migrate::PostgresMigrator,
    sqlx::{PgPool, postgres::PgPoolOptions},
};
use serde::{Deserialize, Serialize};

use crate::process;

#[derive(Clone, Debug, Deserialize, JobArgs, Serialize)]
#[river(kind = "noop")]
struct Noop {
    at: u64,
}

async fn noop(_: WorkContext, job: Job<Noop>) -> Result<WorkOutcome, BoxError> {
    process::record(job.args.at);
    Ok(WorkOutcome::Complete)
}

async fn pool(url: &str, connections: u32) -> Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(connections);
    Ok(options.connect(url).await?)
}

fn client(pool: PgPool) -> Result<Client> {
    Ok(Client::builder(pool)
        .allow_unregistered_job_kinds()
        .build()?)
}

pub async fn setup(url: &str) -> Result<()> {
    PostgresMigrator::new(pool(url, 1).await?)
        .migrate_up()
        .await?;
    Ok(())
}

pub async fn fill(url: &str, count: u64) -> Result<()> {
    let client = client(pool(url, 1).await?)?;
    let mut left = count;
    while left > 0 {
        let batch = left.min(1_000);
        let jobs: Vec<Noop> = (0..batch).map(|_| Noop { at: process::now() }).collect();
        client.insert_many(jobs).await?;
        left -= batch;
    }
    Ok(())
}

pub async fn work(url: &str) -> Result<()> {
    let mut workers = Workers::new();
    workers.add_fn(noop)?;
    let queue = QueueConfig::new(500).with_fetch_poll_interval(Duration::from_millis(50));
    let client = Client::builder(pool(url, 10).await?)
        .workers(workers)
        .fetch_cooldown(Duration::from_millis(5))
        .queue("default", queue)
        .build()?;
    let run = client.start()?;
    process::serve_worker().await?;
    drop(run);
    Ok(())
}

pub async fn produce(url: &str, rate: u64) -> Result<()> {
    let connect = || async { client(pool(url, 1).await?) };
    process::produce(rate, connect, |client| async move {
        client.insert(Noop { at: process::now() }).await?;
        Ok(())
    })
    .await
}
