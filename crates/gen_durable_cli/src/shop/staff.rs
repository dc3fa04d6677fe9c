//! The worker processes of the demo. The demo process starts, kills and shuts down its workers, and
//! leaves none running.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStderr, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::worker::{SCHEMA, URL};

/// The hidden command with which the demo starts this program as a worker process.
pub(crate) const WORKER_COMMAND: &str = "demo-worker";

/// The time after which the demo kills a worker process that has not exited on request. A worker
/// normally exits earlier.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(5);
/// The numbers of SIGINT, SIGKILL and SIGTERM. The demo treats a worker that ended by one of these
/// signals as killed by the user, and any other end of a worker as an error.
const KILLED_BY: [i32; 3] = [2, 9, 15];

/// The running worker processes of the demo.
#[derive(Debug)]
pub(crate) struct Staff {
    url: String,
    schema: String,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    /// The child process of the worker. This handle holds the write end of the worker's stdin, and
    /// the worker exits when its stdin is closed.
    process: Child,
    /// The last line of the worker's stderr, for the error message if the worker ends unexpectedly.
    /// No task holds this mutex across an await.
    last_line: Arc<Mutex<String>>,
}

impl Staff {
    pub(crate) fn new(url: &str, schema: &str) -> Staff {
        Staff {
            url: url.to_owned(),
            schema: schema.to_owned(),
            workers: Vec::new(),
        }
    }

    /// Starts another worker process of the demo. Returns the process id of the worker.
    pub(crate) fn start_worker(&mut self) -> anyhow::Result<u32> {
        let program =
            std::env::current_exe().context("cannot find this program to start it again")?;
        let mut process = Command::new(&program)
            .arg(WORKER_COMMAND)
            .env(URL, &self.url)
            .env(SCHEMA, &self.schema)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal signals a whole process group. Each worker has its own process
            // group, so it keeps running until the demo shuts it down.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {} as a worker", program.display()))?;
        let last_line = Arc::default();
        if let Some(stderr) = process.stderr.take() {
            read_stderr(stderr, Arc::clone(&last_line));
        }
        let pid = process.id();
        self.workers.push(Worker { process, last_line });
        Ok(pid)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers
            .iter()
            .map(|worker| worker.process.id())
            .collect()
    }

    /// Kills the worker with this process id with SIGKILL, so that the worker cannot clean up.
    /// Returns false if the demo has no worker with this process id.
    pub(crate) fn kill(&mut self, pid: u32) -> anyhow::Result<bool> {
        let Some(at) = self
            .workers
            .iter()
            .position(|worker| worker.process.id() == pid)
        else {
            return Ok(false);
        };
        let mut worker = self.workers.remove(at);
        worker.process.kill().context("cannot kill a worker")?;
        worker
            .process
            .wait()
            .context("cannot wait for a killed worker")?;
        Ok(true)
    }

    /// Removes the workers that the user of the demo has killed from the list, and returns their
    /// process ids. Returns an error if a worker has ended in another way.
    pub(crate) fn find_killed(&mut self) -> anyhow::Result<Vec<u32>> {
        let mut killed = Vec::new();
        for worker in &mut self.workers {
            let Some(status) = worker.process.try_wait()? else {
                continue;
            };
            if !status
                .signal()
                .is_some_and(|signal| KILLED_BY.contains(&signal))
            {
                let last_line = worker
                    .last_line
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                bail!(
                    "worker {} ended by itself ({status}): {}",
                    worker.process.id(),
                    last_line.trim()
                );
            }
            killed.push(worker.process.id());
        }
        self.workers
            .retain(|worker| !killed.contains(&worker.process.id()));
        Ok(killed)
    }

    /// Lets all workers of the demo finish their running steps and exit. Kills the workers that do
    /// not exit in time.
    pub(crate) async fn shut_down(&mut self) {
        for worker in &mut self.workers {
            drop(worker.process.stdin.take());
        }
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while Instant::now() < deadline {
            self.workers
                .retain_mut(|worker| matches!(worker.process.try_wait(), Ok(None)));
            if self.workers.is_empty() {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
        self.kill_all();
    }

    fn kill_all(&mut self) {
        for mut worker in self.workers.drain(..) {
            let _ = worker.process.kill();
            let _ = worker.process.wait();
        }
    }
}

impl Drop for Staff {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Reads the stderr of a worker, so that the pipe never fills up and the worker never blocks.
/// Prints the lines if RUST_LOG is set.
fn read_stderr(stderr: ChildStderr, last_line: Arc<Mutex<String>>) {
    let print = std::env::var_os("RUST_LOG").is_some();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if print {
                eprintln!("{line}");
            }
            *last_line.lock().unwrap_or_else(PoisonError::into_inner) = line;
        }
    });
}
