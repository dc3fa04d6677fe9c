//! A worker in a separate process: this test binary, started again to run an engine until the test
//! terminates it.

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
    audit::{KeyedJob, RunLog},
    family::{Member, Parent},
    limits::{self, LimitLog, LimitedJob},
    machines::{Blocking, DrainAware, Five, Gated, Killer, WorkerApp},
    place::until,
};

/// The environment variable with the [`Plan`] of a worker process.
const PLAN: &str = "DURABLE_TEST_WORKER";

/// The configuration of a worker process.
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
    /// Whether the steps of the worker record their runs in the database.
    pub(crate) run_log: bool,
    /// Whether the worker declares limits and a fair queue, and runs the jobs that take the limits.
    pub(crate) limits: bool,
}

impl Plan {
    /// Sets the lease, and the heartbeat to a fifth of the lease.
    pub(crate) fn lease(self, lease_ms: u64) -> Plan {
        Plan {
            lease_ms,
            heartbeat_ms: lease_ms / 5,
            ..self
        }
    }

    /// Starts a worker process. Does not wait until its engine runs.
    pub(crate) fn start(&self) -> Worker {
        Worker::spawn(
            "faults::processes::worker::entry_point_of_a_worker_process",
            &[(PLAN, serde_json::to_string(self).unwrap())],
        )
    }
}

/// A worker process. Dropping this value kills the process.
pub(crate) struct Worker {
    process: Child,
    said: Arc<Mutex<String>>,
}

impl Worker {
    /// Starts this test binary again in a new process, to run only the test `test`, which is the
    /// main function of a worker.
    pub(crate) fn spawn(test: &str, variables: &[(&str, String)]) -> Worker {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .env_remove("DATABASE_URL")
            // The worker process exits when the test closes this pipe, so the process does not
            // outlive the test.
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

    /// Returns how many times the worker has logged a text.
    pub(crate) fn said(&self, what: &str) -> usize {
        self.said.lock().unwrap().matches(what).count()
    }

    /// Returns the rest of the line after the first occurrence of a text in the log of the worker.
    pub(crate) fn logged_after(&self, words: &str) -> Option<String> {
        let said = self.said.lock().unwrap();
        said.split_once(words)
            .and_then(|(_, rest)| rest.lines().next())
            .map(str::to_owned)
    }

    /// Waits until the worker has logged a text this many times.
    pub(crate) async fn says(&self, what: &str, times: usize) {
        until(
            &format!("worker {} has logged {times} times: {what}", self.pid()),
            async || self.said(what) >= times,
        )
        .await;
    }

    /// Waits until the engine of the worker runs.
    pub(crate) async fn runs(self) -> Worker {
        self.says("the engine runs", 1).await;
        self
    }

    /// Suspends the process with SIGSTOP.
    pub(crate) fn stop(&mut self) {
        assert!(
            signal("STOP", &[self.pid()]),
            "could not send SIGSTOP to a worker"
        );
    }

    pub(crate) fn resume(&mut self) {
        assert!(
            signal("CONT", &[self.pid()]),
            "could not send SIGCONT to a worker"
        );
    }

    pub(crate) fn terminate(&self) {
        assert!(
            signal("TERM", &[self.pid()]),
            "could not send SIGTERM to a worker"
        );
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Returns the exit status if the process has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    /// Waits for the end of the process.
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
                "log of worker {}:\n{}",
                self.process.id(),
                self.said.lock().unwrap()
            );
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a Unix signal to processes with the `kill` program. Returns whether all processes existed.
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

/// Initializes a worker process: the process logs to stdout, and exits when the test that started
/// it has ended.
pub(crate) fn init_worker_process() {
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

/// The main function of a worker process. Without the environment variable `PLAN`, as in every
/// ordinary test run, this test does nothing.
#[test]
fn entry_point_of_a_worker_process() {
    let Ok(plan) = std::env::var(PLAN) else {
        return;
    };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    init_worker_process();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(plan.threads)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(plan));
}

async fn run(plan: Plan) {
    // The process installs the handler of SIGTERM before the engine claims instances: an early
    // SIGTERM must not kill the process.
    let mut terminated =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    let milliseconds = Duration::from_millis;
    let pool = Pool::connect_to(&plan.url, &plan.schema).await.unwrap();
    let run_log = if plan.run_log {
        Some(RunLog::open(&plan.url, &plan.schema).await)
    } else {
        None
    };
    let app = WorkerApp {
        run_log,
        limit_log: LimitLog::new(&plan.url, &plan.schema),
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
    let mut builder = Engine::builder(pool, app)
        .register::<Gated>()
        .register::<Five>()
        .register::<Killer>()
        .register::<Blocking>()
        .register::<DrainAware>()
        .register::<Parent>()
        .register::<Member>()
        .register::<KeyedJob>()
        .queue(Queue::DEFAULT, plan.slots)
        .settings(settings);
    if plan.limits {
        builder = builder.register::<LimitedJob>().fair(Queue::DEFAULT);
        for limit in limits::limits() {
            builder = builder.limit(limit);
        }
    }
    let engine = builder.build().unwrap();
    let shutdown = async move {
        terminated.recv().await;
    };
    engine.run(shutdown).await.unwrap();
}
