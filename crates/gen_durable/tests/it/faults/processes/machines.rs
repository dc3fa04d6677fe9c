//! Machines for the tests with worker processes. The tests can interrupt their steps, and each step
//! appends lines to a log file outside the database.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use gen_durable::{
    Context, HOUR, Job, Machine, Outcome, Policy, StepError, done, fail, next, retry_after, sleep,
};
use serde::{Deserialize, Serialize};

/// The app of all machines in a worker process.
pub(crate) struct WorkerApp {
    /// The directory of the log file of the steps, and of the files for which steps wait.
    pub(crate) dir: PathBuf,
    /// The duration of a step of [`Five`].
    pub(crate) pause: Duration,
    /// The number of steps that may run concurrently in this process.
    pub(crate) slots: usize,
    /// The number of steps that run in this process at the moment.
    pub(crate) running: AtomicUsize,
    /// The connection on which steps record their runs in the database, if the plan asks for these
    /// records.
    pub(crate) run_log: Option<super::audit::RunLog>,
    pub(crate) limit_log: super::limits::LimitLog,
}

impl WorkerApp {
    /// Appends one line to the log file of the steps, in one write, so that lines of several
    /// processes do not mix.
    fn log(&self, what: &str, instance: impl std::fmt::Display, step: &str, attempt: u32) {
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis();
        let line = format!(
            "{what} {instance} {step} {attempt} {} {at}\n",
            std::process::id()
        );
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log_file(&self.dir))
            .unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }

    /// Waits until a test creates the file with the name `gate`.
    async fn pass(&self, gate: &str) {
        while !self.dir.join(gate).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// One line of the log file to which a step appends when it begins, when it ends, or when the
/// engine drops it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Effect {
    /// The kind of the log line: `begin`, `end` or `dropped`.
    pub(crate) what: String,
    pub(crate) instance: i64,
    pub(crate) step: String,
    pub(crate) attempt: u32,
    pub(crate) pid: u32,
    pub(crate) unix_ms: u64,
}

/// Reads all lines of the log file to which steps append.
pub(crate) fn effects(dir: &Path) -> Vec<Effect> {
    let text = fs::read_to_string(log_file(dir)).unwrap_or_default();
    text.lines().map(effect).collect()
}

fn effect(line: &str) -> Effect {
    let words: Vec<&str> = line.split(' ').collect();
    Effect {
        what: words[0].to_owned(),
        instance: words[1].parse().unwrap(),
        step: words[2].to_owned(),
        attempt: words[3].parse().unwrap(),
        pid: words[4].parse().unwrap(),
        unix_ms: words[5].parse().unwrap(),
    }
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("effects.log")
}

/// Appends a line to the log file when it is dropped. The line says whether the step has ended, or
/// whether the engine dropped the step before its end.
struct EndLogger<'a> {
    app: &'a WorkerApp,
    instance: String,
    attempt: u32,
    ended: bool,
}

impl Drop for EndLogger<'_> {
    fn drop(&mut self) {
        self.app.running.fetch_sub(1, Ordering::SeqCst);
        self.app.log(
            if self.ended { "end" } else { "dropped" },
            &self.instance,
            "wait",
            self.attempt,
        );
    }
}

/// The transition that the first run of a [`Gated`] returns.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
pub(crate) enum FirstRun {
    Next,
    Retry,
    Sleep,
    Done,
    Fail,
}

impl FirstRun {
    pub(crate) const ALL: [FirstRun; 5] = [
        FirstRun::Next,
        FirstRun::Retry,
        FirstRun::Sleep,
        FirstRun::Done,
        FirstRun::Fail,
    ];
}

/// A machine with a step that waits for a file: the run with number `attempt` waits until the test
/// creates the file `{gate}.{attempt}`. The first run returns the transition `first_run`. Every
/// later run settles the instance as done, with the number of runs that ended as its output.
#[derive(Serialize, Deserialize)]
pub(crate) struct Gated {
    pub(crate) gate: String,
    pub(crate) first_run: FirstRun,
    pub(crate) ended: u32,
}

impl Gated {
    pub(crate) fn new(gate: &str, first_run: FirstRun) -> Gated {
        Gated {
            gate: gate.to_owned(),
            first_run,
            ended: 0,
        }
    }
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GatedStep {
    #[default]
    Wait,
    After,
}

impl Machine for Gated {
    const NAME: &'static str = "gated";
    type App = WorkerApp;
    type Step = GatedStep;
    type Output = u32;

    async fn step(&mut self, at: GatedStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if at == GatedStep::After {
            return Ok(done(self.ended));
        }
        let app = cx.app();
        app.running.fetch_add(1, Ordering::SeqCst);
        app.log("begin", cx.id(), "wait", cx.attempt());
        let mut logger = EndLogger {
            app,
            instance: cx.id().to_string(),
            attempt: cx.attempt(),
            ended: false,
        };
        app.pass(&format!("{}.{}", self.gate, cx.attempt())).await;
        logger.ended = true;
        self.ended += 1;
        Ok(match self.first_run {
            _ if cx.attempt() > 0 => done(self.ended),
            FirstRun::Next => next(GatedStep::After),
            FirstRun::Retry => retry_after(HOUR),
            FirstRun::Sleep => sleep(HOUR).then(GatedStep::After),
            FirstRun::Done => done(self.ended),
            FirstRun::Fail => fail("the first run said so"),
        })
    }
}

/// A machine with five steps. Each step takes some time and increments the count in the state.
#[derive(Serialize, Deserialize, Default)]
pub(crate) struct Five {
    pub(crate) count: u32,
}

#[derive(Serialize, Deserialize, Default, Debug, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FiveStep {
    #[default]
    First,
    Second,
    Third,
    Fourth,
    Fifth,
}

impl FiveStep {
    pub(crate) const NAMES: [&'static str; 5] = ["first", "second", "third", "fourth", "fifth"];
}

impl Machine for Five {
    const NAME: &'static str = "five";
    type App = WorkerApp;
    type Step = FiveStep;
    type Output = u32;

    async fn step(&mut self, at: FiveStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app().running.fetch_add(1, Ordering::SeqCst);
        cx.app()
            .log("begin", cx.id(), FiveStep::NAMES[at as usize], cx.attempt());
        if !cx.app().pause.is_zero() {
            tokio::time::sleep(cx.app().pause).await;
        }
        cx.app().running.fetch_sub(1, Ordering::SeqCst);
        self.count += 1;
        Ok(match at {
            FiveStep::First => next(FiveStep::Second),
            FiveStep::Second => next(FiveStep::Third),
            FiveStep::Third => next(FiveStep::Fourth),
            FiveStep::Fourth => next(FiveStep::Fifth),
            FiveStep::Fifth => done(self.count),
        })
    }
}

/// A job that aborts its worker process when steps run in all other slots of the process, or after
/// half a second.
#[derive(Serialize, Deserialize)]
pub(crate) struct Killer;

impl Job for Killer {
    const NAME: &'static str = "killer";
    type App = WorkerApp;
    type Output = ();

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().log("begin", cx.id(), "run", cx.attempt());
        for _ in 0..100 {
            if cx.app().running.load(Ordering::SeqCst) + 1 >= cx.app().slots {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::process::abort();
    }
}

/// A machine with a step that runs until the shutdown of its engine begins. Its state counts these
/// shutdowns.
#[derive(Serialize, Deserialize)]
pub(crate) struct DrainAware {
    pub(crate) parts: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DrainAwareStep {
    #[default]
    Work,
}

impl Machine for DrainAware {
    const NAME: &'static str = "drain_aware";
    type App = WorkerApp;
    type Step = DrainAwareStep;
    type Output = ();

    async fn step(&mut self, _: DrainAwareStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        assert!(!cx.is_draining());
        cx.app().log("begin", cx.id(), "work", cx.attempt());
        cx.draining().await;
        assert!(cx.is_draining());
        self.parts += 1;
        Ok(next(DrainAwareStep::Work))
    }
}

/// A job that blocks the thread that it runs on, which a step should not do.
#[derive(Serialize, Deserialize)]
pub(crate) struct Blocking {
    pub(crate) milliseconds: u64,
}

impl Job for Blocking {
    const NAME: &'static str = "blocking";
    type App = WorkerApp;
    type Output = ();

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().log("begin", cx.id(), "run", cx.attempt());
        std::thread::sleep(Duration::from_millis(self.milliseconds));
        cx.app().log("end", cx.id(), "run", cx.attempt());
        Ok(())
    }

    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}
