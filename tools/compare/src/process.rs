//! What the processes of all systems share: the lines that the bench reads, the starts of jobs, and
//! the producers.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use tokio::time::Instant;

const PRODUCERS: u32 = 10;

/// The time of the enqueue call and the time of the start of each job.
static STARTS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Returns the wall clock time in nanoseconds.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Records the start of a job that was enqueued at this time.
pub fn record(at: u64) {
    let mut starts = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    starts.push((at, now()));
}

/// Prints a line and flushes it.
pub fn print_line(line: &str) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Completes when the bench has closed the standard input of this process.
pub async fn stdin_closed() {
    let read = || io::copy(&mut io::stdin().lock(), &mut io::sink());
    let _ = tokio::task::spawn_blocking(read).await;
}

/// Reports that the worker is ready, waits until it has to stop, and prints the starts of its jobs.
pub async fn serve_worker() -> Result<()> {
    print_line("ready");
    stdin_closed().await;
    let starts = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    print_line(&serde_json::to_string(&*starts)?);
    Ok(())
}

/// Lets ten producers enqueue jobs until the standard input is closed. Each producer has its own
/// client, which `connect` returns.
pub async fn produce<C, Connecting, Enqueueing>(
    rate: u64,
    connect: impl Fn() -> Connecting,
    enqueue: impl Fn(C) -> Enqueueing + Clone + Send + 'static,
) -> Result<()>
where
    C: Clone + Send + 'static,
    Connecting: Future<Output = Result<C>>,
    Enqueueing: Future<Output = Result<()>> + Send,
{
    let mut clients = Vec::new();
    for _ in 0..PRODUCERS {
        let client = connect().await?;
        // The first call on a new connection is slower.
        enqueue(client.clone()).await?;
        clients.push(client);
    }
    print_line("ready");
    let stop = Arc::new(AtomicBool::new(false));
    let mut producers = Vec::new();
    for (index, client) in (0..PRODUCERS).zip(clients) {
        let (enqueue, stop) = (enqueue.clone(), stop.clone());
        producers.push(tokio::spawn(async move {
            let pause = match u32::try_from(rate)? {
                0 => Duration::ZERO,
                rate => Duration::from_secs(PRODUCERS.into()) / rate,
            };
            let mut due = Instant::now() + pause * index / PRODUCERS;
            let mut enqueued = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                if rate > 0 {
                    tokio::time::sleep_until(due).await;
                    due += pause;
                }
                enqueue(client.clone()).await?;
                enqueued += 1;
            }
            anyhow::Ok(enqueued)
        }));
    }
    stdin_closed().await;
    stop.store(true, Ordering::Relaxed);
    let mut enqueued = 0;
    for producer in producers {
        enqueued += producer.await??;
    }
    print_line(&enqueued.to_string());
    Ok(())
}
