//! The worker processes, as their parent sees them: hired, killed, dismissed, and never left behind.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStderr, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::worker::{SCHEMA, URL};

/// The hidden command by which this program starts itself as a worker.
pub(crate) const WORKER_COMMAND: &str = "demo-worker";

/// After this long a dismissed worker is killed. (It ends itself before that.)
const PATIENCE: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(5);
/// SIGINT, SIGKILL, SIGTERM: whoever watches may try it, too. (A crash has another number.)
const KILLED_BY: [i32; 3] = [2, 9, 15];

/// The workers at work.
#[derive(Debug)]
pub(crate) struct Staff {
    url: String,
    schema: String,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    /// Holds the worker's standard input: when it closes, the worker goes.
    process: Child,
    /// The last thing it said, for the case that it ends unasked. Guarded for a moment, never over an await.
    last_words: Arc<Mutex<String>>,
}

impl Staff {
    pub(crate) fn new(url: &str, schema: &str) -> Staff {
        Staff {
            url: url.to_owned(),
            schema: schema.to_owned(),
            workers: Vec::new(),
        }
    }

    /// Start one more worker process. Answers its process id.
    pub(crate) fn hire(&mut self) -> anyhow::Result<u32> {
        let program =
            std::env::current_exe().context("cannot find this program to start it again")?;
        let mut process = Command::new(&program)
            .arg(WORKER_COMMAND)
            .env(URL, &self.url)
            .env(SCHEMA, &self.schema)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal goes to a whole process group: the workers wait for us to dismiss them.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {} as a worker", program.display()))?;
        let last_words = Arc::default();
        if let Some(stderr) = process.stderr.take() {
            listen(stderr, Arc::clone(&last_words));
        }
        let pid = process.id();
        self.workers.push(Worker {
            process,
            last_words,
        });
        Ok(pid)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers
            .iter()
            .map(|worker| worker.process.id())
            .collect()
    }

    /// SIGKILL: nothing of the worker's own runs after this. Answers whether there was such a worker.
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

    /// Workers that somebody else has killed, and an error if one has ended by itself.
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
                let said = worker
                    .last_words
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                bail!(
                    "worker {} ended by itself ({status}): {}",
                    worker.process.id(),
                    said.trim()
                );
            }
            killed.push(worker.process.id());
        }
        self.workers
            .retain(|worker| !killed.contains(&worker.process.id()));
        Ok(killed)
    }

    /// Let all of them finish what they are at and go; whoever does not is killed.
    pub(crate) async fn dismiss(&mut self) {
        for worker in &mut self.workers {
            drop(worker.process.stdin.take());
        }
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            self.workers
                .retain_mut(|worker| matches!(worker.process.try_wait(), Ok(None)));
            if self.workers.is_empty() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        self.end();
    }

    fn end(&mut self) {
        for mut worker in self.workers.drain(..) {
            let _ = worker.process.kill();
            let _ = worker.process.wait();
        }
    }
}

impl Drop for Staff {
    fn drop(&mut self) {
        self.end();
    }
}

/// Read what a worker says, so that its pipe never fills; whoever set RUST_LOG wants to read it too.
fn listen(stderr: ChildStderr, last_words: Arc<Mutex<String>>) {
    let aloud = std::env::var_os("RUST_LOG").is_some();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if aloud {
                eprintln!("{line}");
            }
            *last_words.lock().unwrap_or_else(PoisonError::into_inner) = line;
        }
    });
}
