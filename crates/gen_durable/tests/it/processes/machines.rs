//! Machines whose steps are made to be interrupted, and the log of what they did.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use gen_durable::{
    Context, HOUR, Job, Machine, Outcome, Policy, StepError, done, next, retry_after, sleep, stop,
};
use serde::{Deserialize, Serialize};

/// What every step is handed.
pub(crate) struct World {
    /// Where the log and the gates are.
    pub(crate) dir: PathBuf,
    /// How long a step of [`Five`] takes.
    pub(crate) pause: Duration,
    /// How many steps may run at once here.
    pub(crate) slots: usize,
    /// How many run.
    pub(crate) running: AtomicUsize,
    /// Books in the database, for those who write them.
    pub(crate) books: Option<super::audit::Books>,
}

impl World {
    /// One line for one thing done. Appended in one write, so that processes do not cut into each other's lines.
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

    /// Wait until a test opens the gate.
    async fn pass(&self, gate: &str) {
        while !self.dir.join(gate).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Effect {
    /// `begin`, `end` or `dropped`.
    pub(crate) what: String,
    pub(crate) instance: i64,
    pub(crate) step: String,
    pub(crate) attempt: u32,
    pub(crate) pid: u32,
    pub(crate) unix_ms: u64,
}

/// All that steps have done so far.
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

/// Says in the log that a step was dropped before it came to its end.
struct Whole<'a> {
    world: &'a World,
    instance: String,
    attempt: u32,
    ended: bool,
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.world.running.fetch_sub(1, Ordering::SeqCst);
        self.world.log(
            if self.ended { "end" } else { "dropped" },
            &self.instance,
            "wait",
            self.attempt,
        );
    }
}

/// How a [`Gated`] ends its first run.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
pub(crate) enum Way {
    Next,
    Retry,
    Sleep,
    Done,
    Stop,
}

impl Way {
    pub(crate) const ALL: [Way; 5] = [Way::Next, Way::Retry, Way::Sleep, Way::Done, Way::Stop];
}

/// Waits in its step for a gate: run number `attempt` waits for the file `{gate}.{attempt}`. The first run ends as it is
/// told to, any further one with the number of runs that came to an end.
#[derive(Serialize, Deserialize)]
pub(crate) struct Gated {
    pub(crate) gate: String,
    pub(crate) way: Way,
    pub(crate) ended: u32,
}

impl Gated {
    pub(crate) fn new(gate: &str, way: Way) -> Gated {
        Gated {
            gate: gate.to_owned(),
            way,
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
    type App = World;
    type Step = GatedStep;
    type Output = u32;

    async fn step(&mut self, at: GatedStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if at == GatedStep::After {
            return Ok(done(self.ended));
        }
        let world = cx.app;
        world.running.fetch_add(1, Ordering::SeqCst);
        world.log("begin", cx.id, "wait", cx.attempt);
        let mut whole = Whole {
            world,
            instance: cx.id.to_string(),
            attempt: cx.attempt,
            ended: false,
        };
        world.pass(&format!("{}.{}", self.gate, cx.attempt)).await;
        whole.ended = true;
        self.ended += 1;
        Ok(match self.way {
            _ if cx.attempt > 0 => done(self.ended),
            Way::Next => next(GatedStep::After),
            Way::Retry => retry_after(HOUR),
            Way::Sleep => sleep(HOUR).then(GatedStep::After),
            Way::Done => done(self.ended),
            Way::Stop => stop("the first run said so"),
        })
    }
}

/// Five steps, each a little work and one more in the count.
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
    type App = World;
    type Step = FiveStep;
    type Output = u32;

    async fn step(&mut self, at: FiveStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app.running.fetch_add(1, Ordering::SeqCst);
        cx.app
            .log("begin", cx.id, FiveStep::NAMES[at as usize], cx.attempt);
        if !cx.app.pause.is_zero() {
            tokio::time::sleep(cx.app.pause).await;
        }
        cx.app.running.fetch_sub(1, Ordering::SeqCst);
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

/// Takes its process with it, once the process is busy enough to hurt.
#[derive(Serialize, Deserialize)]
pub(crate) struct Killer;

impl Job for Killer {
    const NAME: &'static str = "killer";
    type App = World;
    type Output = ();

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app.log("begin", cx.id, "run", cx.attempt);
        for _ in 0..100 {
            if cx.app.running.load(Ordering::SeqCst) + 1 >= cx.app.slots {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::process::abort();
    }
}

/// Works until its engine drains, and says how often.
#[derive(Serialize, Deserialize)]
pub(crate) struct Patient {
    pub(crate) parts: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PatientStep {
    #[default]
    Work,
}

impl Machine for Patient {
    const NAME: &'static str = "patient";
    type App = World;
    type Step = PatientStep;
    type Output = ();

    async fn step(&mut self, _: PatientStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        assert!(!cx.is_draining());
        cx.app.log("begin", cx.id, "work", cx.attempt);
        cx.draining().await;
        assert!(cx.is_draining());
        self.parts += 1;
        Ok(next(PatientStep::Work))
    }
}

/// Blocks the thread it runs on, as no step should and some will.
#[derive(Serialize, Deserialize)]
pub(crate) struct Blocking {
    pub(crate) milliseconds: u64,
}

impl Job for Blocking {
    const NAME: &'static str = "blocking";
    type App = World;
    type Output = ();

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app.log("begin", cx.id, "run", cx.attempt);
        std::thread::sleep(Duration::from_millis(self.milliseconds));
        cx.app.log("end", cx.id, "run", cx.attempt);
        Ok(())
    }

    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}
