//! The tasks of the processes that the bench starts: it starts its own program again, with a task
//! in the environment. The calling process enqueues instances and reports the time of each enqueue.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use gen_durable::{Client, Pool};
use serde::{Deserialize, Serialize};

use crate::{
    child,
    flow::{Produce, Work},
    jobs::{Ping, now_nanos},
};

/// The environment variable with the task of a process. A process with this variable runs the task
/// instead of the bench.
pub(crate) const TASK: &str = "GEN_DURABLE_BENCH_TASK";

/// The task that the bench gives to a process.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Task {
    /// Enqueues instances or appends events.
    Call(Calls),
    /// Runs the jobs of a steady flow.
    Work(Work),
    /// Enqueues the jobs of a steady flow.
    Produce(Produce),
}

/// The task of the calling process.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) struct Calls {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) count: u64,
    pub(crate) pause_ms: u64,
    /// If set, the calling process appends events to the logs of `count` tenants for `pause_ms`
    /// milliseconds, and enqueues no instances.
    #[serde(default)]
    pub(crate) append: bool,
}

/// The times of the enqueue of a `Ping` job: before the call, and after Postgres has confirmed the
/// commit.
#[derive(Serialize, Deserialize, Debug, Clone, Copy)]
pub(crate) struct Called {
    pub(crate) n: u64,
    pub(crate) called: u64,
    pub(crate) committed: u64,
}

/// Returns the task from the environment if the bench has started this process.
pub(crate) fn task() -> Result<Option<Task>> {
    let Ok(text) = std::env::var(TASK) else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .context("the task of this process cannot be parsed")
        .map(Some)
}

/// Executes the task of this process.
pub(crate) async fn serve(task: Task) -> Result<()> {
    match task {
        Task::Call(calls) => call(calls).await,
        Task::Work(work) => work.serve().await,
        Task::Produce(produce) => produce.serve().await,
    }
}

/// Executes the task of the calling process, and prints the times of its enqueues as JSON to
/// stdout.
async fn call(task: Calls) -> Result<()> {
    let pool = Pool::connect_to(&task.url, &task.schema).await?;
    if task.append {
        let called = now_nanos();
        let lasting = Duration::from_millis(task.pause_ms);
        let rate =
            crate::workloads::projections::append(&Client::new(pool), task.count, lasting).await?;
        let committed = now_nanos();
        let n = (rate * committed.saturating_sub(called) as f64 / 1e9) as u64;
        println!(
            "{}",
            serde_json::to_string(&[Called {
                n,
                called,
                committed
            }])?
        );
        return Ok(());
    }
    let called = ping(
        &Client::new(pool),
        task.count,
        Duration::from_millis(task.pause_ms),
    )
    .await?;
    println!("{}", serde_json::to_string(&called)?);
    Ok(())
}

/// Enqueues `Ping` jobs at a steady rate, and returns the times of each enqueue.
pub(crate) async fn ping(client: &Client, count: u64, pause: Duration) -> Result<Vec<Called>> {
    // Makes one call before the measurement, because the first call on a new connection is slower.
    client.inspect().workers().await?;
    let mut every = tokio::time::interval_at(tokio::time::Instant::now() + pause, pause);
    let mut calls = Vec::new();
    for n in 0..count {
        every.tick().await;
        let called = now_nanos();
        client.enqueue(Ping { n }).await?;
        calls.push(Called {
            n,
            called,
            committed: now_nanos(),
        });
    }
    Ok(calls)
}

/// Starts a calling process that executes the task, and returns the times that the process has
/// printed.
pub(crate) async fn from_another_process(
    program: Option<&Path>,
    task: &Calls,
) -> Result<Vec<Called>> {
    let mut command = child::this_program(program, &Task::Call(task.clone()))?;
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let run = move || command.output();
    let output = tokio::task::spawn_blocking(run)
        .await?
        .context("cannot start the calling process")?;
    if !output.status.success() {
        bail!("the calling process failed: {}", output.status);
    }
    let stdout = String::from_utf8(output.stdout)?;
    let last = stdout.lines().next_back().unwrap_or_default();
    serde_json::from_str(last).context("the output of the calling process cannot be parsed")
}
