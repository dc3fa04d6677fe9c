//! A worker in a process of its own: this test binary, started again to run an engine until it is told to go.

use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, atomic::AtomicUsize},
    time::Duration,
};

use gen_durable::{Engine, Pool, Queue, Settings};
use serde::{Deserialize, Serialize};

use super::{
    audit::{Books, Stand},
    family::{Member, Parent},
    machines::{Blocking, Five, Gated, Killer, Patient, World},
    place::until,
};

/// Set in the environment of a worker process: its [`Plan`].
const PLAN: &str = "DURABLE_TEST_WORKER";

/// What a worker process is to be.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) dir: PathBuf,
    pub(crate) lease_ms: u64,
    pub(crate) heartbeat_ms: u64,
    pub(crate) reap_ms: u64,
    pub(crate) drain_ms: u64,
    pub(crate) slots: usize,
    pub(crate) threads: usize,
    pub(crate) pause_ms: u64,
    /// Whether steps write books of their own into the database.
    pub(crate) books: bool,
}

impl Plan {
    pub(crate) fn lease(self, lease_ms: u64) -> Plan {
        Plan {
            lease_ms,
            heartbeat_ms: lease_ms / 5,
            ..self
        }
    }

    /// Start a worker and wait until its row is there: from then on it may claim.
    pub(crate) fn start(&self) -> Worker {
        Worker::spawn(
            "processes::worker::worker_process",
            &[(PLAN, serde_json::to_string(self).unwrap())],
        )
    }
}

/// A worker process that a test started. It is killed when dropped.
pub(crate) struct Worker {
    process: Child,
    said: Arc<Mutex<String>>,
}

impl Worker {
    /// Start this test binary again, to run one test that is a worker.
    pub(crate) fn spawn(test: &str, variables: &[(&str, String)]) -> Worker {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .env_remove("DATABASE_URL")
            // Its end tells an orphan to go.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let said = Arc::new(Mutex::new(String::new()));
        let heard = said.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let mut said = heard.lock().unwrap();
                said.push_str(&line);
                said.push('\n');
            }
        });
        Worker { process, said }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How often it has logged this.
    pub(crate) fn said(&self, what: &str) -> usize {
        self.said.lock().unwrap().matches(what).count()
    }

    /// What it has said after these words, up to the end of the line.
    pub(crate) fn told(&self, words: &str) -> Option<String> {
        let said = self.said.lock().unwrap();
        said.split_once(words)
            .and_then(|(_, rest)| rest.lines().next())
            .map(str::to_owned)
    }

    /// Wait until it has logged this so often.
    pub(crate) async fn says(&self, what: &str, times: usize) {
        until(
            &format!("worker {} has said {times} times: {what}", self.pid()),
            async || self.said(what) >= times,
        )
        .await;
    }

    /// Wait until its engine runs.
    pub(crate) async fn runs(self) -> Worker {
        self.says("the engine runs", 1).await;
        self
    }

    pub(crate) fn stop(&mut self) {
        assert!(
            signal("STOP", &[self.pid()]),
            "a worker could not be stopped"
        );
    }

    pub(crate) fn resume(&mut self) {
        assert!(
            signal("CONT", &[self.pid()]),
            "a worker could not be resumed"
        );
    }

    pub(crate) fn terminate(&self) {
        assert!(
            signal("TERM", &[self.pid()]),
            "a worker could not be terminated"
        );
    }

    /// SIGKILL: nothing of its own runs after this.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    /// Wait for its end.
    pub(crate) async fn ends(&mut self) -> ExitStatus {
        let mut end = None;
        until(
            &format!("worker {} has ended", self.process.id()),
            async || {
                end = self.process.try_wait().unwrap();
                end.is_some()
            },
        )
        .await;
        end.unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "worker {} had said:\n{}",
                self.process.id(),
                self.said.lock().unwrap()
            );
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Send a signal through the `kill` program. Answers whether all were there to take it.
pub(crate) fn signal(name: &str, pids: &[u32]) -> bool {
    let pids = pids.iter().map(u32::to_string);
    Command::new("kill")
        .args(["-s", name])
        .args(pids)
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// A worker says what it does, and goes when whoever started it is gone.
pub(crate) fn as_a_worker() {
    println!();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_env_filter("gen_durable=info")
        .init();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
}

/// What runs in a worker process. Without a plan, as in every ordinary test run, there is nothing to do.
#[test]
fn worker_process() {
    let Ok(plan) = std::env::var(PLAN) else {
        return;
    };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    as_a_worker();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(plan.threads)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(plan));
}

async fn run(plan: Plan) {
    // Ask for the signal before anything is claimed: one that comes early must not end us half-way.
    let mut terminated =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    let milliseconds = Duration::from_millis;
    let pool = Pool::connect_to(&plan.url, &plan.schema).await.unwrap();
    let books = if plan.books {
        Some(Books::open(&plan.url, &plan.schema).await)
    } else {
        None
    };
    let world = World {
        books,
        dir: plan.dir,
        pause: milliseconds(plan.pause_ms),
        slots: plan.slots,
        running: AtomicUsize::new(0),
    };
    let settings = Settings {
        lease: milliseconds(plan.lease_ms),
        heartbeat: milliseconds(plan.heartbeat_ms),
        reap_every: milliseconds(plan.reap_ms),
        drain_timeout: milliseconds(plan.drain_ms),
        ..Settings::default()
    };
    let engine = Engine::builder(pool, world)
        .register::<Gated>()
        .register::<Five>()
        .register::<Killer>()
        .register::<Blocking>()
        .register::<Patient>()
        .register::<Parent>()
        .register::<Member>()
        .register::<Stand>()
        .queue(Queue::DEFAULT, plan.slots)
        .settings(settings)
        .build()
        .unwrap();
    let shutdown = async move {
        terminated.recv().await;
    };
    engine.run(shutdown).await.unwrap();
}
