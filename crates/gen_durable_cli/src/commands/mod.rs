//! The commands of the program `durable`, one module each: the arguments and the implementation.

pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod migrate;

pub(crate) mod audit;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod filter;
pub(crate) mod ls;
pub(crate) mod show;
pub(crate) mod tail;
pub(crate) mod top;

pub(crate) mod bulk;
pub(crate) mod cancel;
pub(crate) mod enqueue;
pub(crate) mod explain;
pub(crate) mod retry;
pub(crate) mod signal;
pub(crate) mod target;
pub(crate) mod wait;

pub(crate) mod lanes;
pub(crate) mod limits;
pub(crate) mod partitions;
pub(crate) mod pause;
pub(crate) mod projections;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod timers;
pub(crate) mod workers;

pub(crate) mod bench;
pub(crate) mod serve;
pub(crate) mod watch;

use gen_durable_postgres::Cluster;

/// Resolves when the user or the system asks this process to end: by Ctrl-C, by SIGTERM, or because
/// the terminal was closed.
pub(crate) async fn asked_to_end() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed,
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// Starts a private Postgres server on a blocking thread, because the start takes seconds and would
/// block the async runtime.
pub(crate) async fn start_postgres<F>(start: F) -> anyhow::Result<Cluster>
where
    F: FnOnce() -> gen_durable_postgres::Result<Cluster> + Send + 'static,
{
    Ok(tokio::task::spawn_blocking(start).await??)
}

/// Stops a private Postgres server on a blocking thread.
pub(crate) async fn stop_postgres(mut cluster: Cluster) -> anyhow::Result<()> {
    Ok(tokio::task::spawn_blocking(move || cluster.stop()).await??)
}
