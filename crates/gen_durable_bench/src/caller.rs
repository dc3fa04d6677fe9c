//! The other process: it enqueues, and says when it did. It is this program, started again.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use gen_durable::{Client, Pool};
use serde::{Deserialize, Serialize};

use crate::jobs::{Ping, now_nanos};

/// A process that finds this in its environment is a caller and nothing else.
const TASK: &str = "GEN_DURABLE_BENCH_CALLER";

/// What the other process is to do.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Task {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) count: u64,
    pub(crate) pause_ms: u64,
    /// Append events for `pause_ms` to `count` tenants, instead.
    #[serde(default)]
    pub(crate) append: bool,
}

/// When a ping was asked for, and when that was known to be committed.
#[derive(Serialize, Deserialize, Debug, Clone, Copy)]
pub(crate) struct Called {
    pub(crate) n: u64,
    pub(crate) called: u64,
    pub(crate) committed: u64,
}

/// Whether this process is the other one.
pub(crate) fn task() -> Result<Option<Task>> {
    let Ok(text) = std::env::var(TASK) else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .context("a caller's task cannot be read")
        .map(Some)
}

/// Be the other process.
pub(crate) async fn serve(task: Task) -> Result<()> {
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

/// Enqueue pings at an even pace.
pub(crate) async fn ping(client: &Client, count: u64, pause: Duration) -> Result<Vec<Called>> {
    // Anything but the first call on a fresh connection.
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

/// Have the other process do it.
pub(crate) async fn from_another_process(
    program: Option<&Path>,
    task: &Task,
) -> Result<Vec<Called>> {
    let text = serde_json::to_string(task)?;
    // The same words as this process was started with lead to the same place: there the task is found.
    let (program, words) = match program {
        Some(program) => (program.to_owned(), Vec::new()),
        None => (this_program()?, std::env::args_os().skip(1).collect()),
    };
    let run = move || {
        std::process::Command::new(program)
            .args(words)
            .env(TASK, text)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
    };
    let output = tokio::task::spawn_blocking(run)
        .await?
        .context("the other process cannot be started")?;
    if !output.status.success() {
        bail!("the other process failed: {}", output.status);
    }
    let said = String::from_utf8(output.stdout)?;
    let last = said.lines().next_back().unwrap_or_default();
    serde_json::from_str(last).context("the other process said something else")
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("this program cannot find itself")
}
