//! A worker process of a steady flow.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use gen_durable::{Engine, Pool, Queue, Settings};
use serde::{Deserialize, Serialize};

use super::job::{FlowJob, Starts, queues};
use crate::child;

/// The task of a worker process.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) struct Work {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) queues: u32,
}

impl Work {
    /// Runs an engine with default settings until the standard input is closed, then prints the
    /// start of each job.
    pub(crate) async fn serve(self) -> Result<()> {
        let starts = Arc::new(Starts::default());
        let pool = Pool::connect_to(&self.url, &self.schema).await?;
        let mut builder = Engine::builder(pool, starts.clone()).register::<FlowJob>();
        let concurrency = Settings::default().concurrency;
        for queue in queues(self.queues) {
            if queue != Queue::DEFAULT {
                builder = builder.queue(queue, concurrency);
            }
        }
        let engine = builder.build()?;
        let health = engine.health();
        let run = tokio::spawn(engine.run(child::stdin_closed()));
        while !health.is_ready() {
            if run.is_finished() {
                run.await??;
                bail!("the engine ended before it was ready");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        child::print_ready();
        run.await??;
        child::print_line(&serde_json::to_string(&starts.all())?);
        Ok(())
    }
}
