//! The machines that the workloads of the bench run, and the probe that counts their steps. The
//! steps do nothing, because the bench measures the engine.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use gen_durable::{
    Context, Job, Lane, Machine, Outcome, Signal, StepError, done,
    machine::{HistoryPolicy, Limits},
    next,
    schedule::Timestamp,
    spawn, wait_for,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The number of steps of a [`Walk`] that return `next`.
pub(crate) const WALK_STEPS: u64 = 10;

/// A job of the bench. Its step does nothing.
#[derive(Serialize, Deserialize)]
pub(crate) struct Noop {
    pub(crate) n: u64,
    pub(crate) note: String,
}

impl Noop {
    pub(crate) fn new(n: u64) -> Noop {
        Noop {
            n,
            note: "hello world".into(),
        }
    }
}

impl Job for Noop {
    const NAME: &'static str = "noop";
    type App = Arc<Probe>;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().ran();
        Ok(())
    }
}

/// A machine that returns `next` [`WALK_STEPS`] times and then ends. The type parameter selects
/// whether the machine records its history.
#[derive(Serialize, Deserialize)]
pub(crate) struct Walk<const WITH_HISTORY: bool> {
    left: u64,
    note: String,
}

impl<const WITH_HISTORY: bool> Walk<WITH_HISTORY> {
    pub(crate) fn new() -> Self {
        Walk {
            left: WALK_STEPS,
            note: "hello world".into(),
        }
    }
}

/// The only step of a [`Walk`]. A walk runs this step again and again.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum At {
    #[default]
    Walking,
}

impl<const WITH_HISTORY: bool> Machine for Walk<WITH_HISTORY> {
    const NAME: &'static str = if WITH_HISTORY {
        "walk_with_history"
    } else {
        "walk"
    };
    const HISTORY: HistoryPolicy = if WITH_HISTORY {
        HistoryPolicy::All
    } else {
        HistoryPolicy::Off
    };
    type App = Arc<Probe>;
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app().ran();
        if self.left == 0 {
            return Ok(done(()));
        }
        self.left -= 1;
        Ok(next(at))
    }
}

/// A job that records its start time in the probe of the bench.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ping {
    pub(crate) n: u64,
}

impl Job for Ping {
    const NAME: &'static str = "ping";
    type App = Arc<Probe>;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        let now = now_nanos();
        cx.app()
            .started
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((self.n, now));
        cx.app().ran();
        Ok(())
    }
}

/// A machine that waits for a signal, and records in the probe of the bench when the step after the
/// wait starts.
#[derive(Serialize, Deserialize)]
pub(crate) struct Listener {
    pub(crate) n: u64,
}

/// The steps of a [`Listener`]: the first step waits for a signal, and the second step runs after
/// the signal has arrived.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Listening {
    #[default]
    Begin,
    Woken,
}

/// The signal that a [`Listener`] waits for.
#[derive(Serialize, Deserialize)]
pub(crate) struct Wake;

impl Signal for Wake {
    const NAME: &'static str = "wake";
    type To = Listener;
}

impl Machine for Listener {
    const NAME: &'static str = "listener";
    /// The bench measures this machine with the history policy that a machine has by default.
    const HISTORY: HistoryPolicy = HistoryPolicy::All;
    type App = Arc<Probe>;
    type Step = Listening;
    type Output = ();
    async fn step(&mut self, at: Listening, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Listening::Begin => {
                cx.app().ran();
                Ok(wait_for::<Wake>().then(Listening::Woken).forever())
            }
            Listening::Woken => {
                let now = now_nanos();
                cx.app()
                    .started
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((self.n, now));
                cx.app().ran();
                Ok(done(()))
            }
        }
    }
}

/// A machine that waits until a deadline for a signal that the bench never sends.
#[derive(Serialize, Deserialize)]
pub(crate) struct Alarm {
    pub(crate) name: String,
    pub(crate) due: Timestamp,
}

/// The steps of an [`Alarm`]. After the deadline of its wait, an alarm runs the step `Late`.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AlarmStep {
    #[default]
    Set,
    Dismissed,
    Late,
}

/// The signal that an [`Alarm`] waits for. The bench never sends it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Dismiss;

impl Signal for Dismiss {
    const NAME: &'static str = "dismiss";
    type To = Alarm;
}

impl Machine for Alarm {
    const NAME: &'static str = "alarm";
    type App = Arc<Probe>;
    type Step = AlarmStep;
    type Output = ();
    async fn step(&mut self, at: AlarmStep, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            AlarmStep::Set => Ok(wait_for::<Dismiss>()
                .then(AlarmStep::Dismissed)
                .or_after(self.due, AlarmStep::Late)),
            AlarmStep::Dismissed | AlarmStep::Late => Ok(done(())),
        }
    }
}

/// A machine that spawns many children and waits until all of them have settled.
#[derive(Serialize, Deserialize)]
pub(crate) struct FanOut {
    pub(crate) children: u64,
}

/// The steps of a parent: the first step spawns the children, and the second step runs when the
/// children have settled.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fanning {
    #[default]
    Out,
    In,
}

impl Machine for FanOut {
    const NAME: &'static str = "fan_out";
    /// The bench measures this machine with the history policy that a machine has by default.
    const HISTORY: HistoryPolicy = HistoryPolicy::All;
    type App = Arc<Probe>;
    type Step = Fanning;
    type Output = ();
    async fn step(&mut self, at: Fanning, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app().ran();
        match at {
            Fanning::Out => Ok(spawn((0..self.children).map(Noop::new))
                .then(Fanning::In)
                .forever()),
            Fanning::In => Ok(done(())),
        }
    }
}

/// A job in a lane. Its step does nothing.
#[derive(Serialize, Deserialize)]
pub(crate) struct InLane {
    pub(crate) key: u64,
}

impl Job for InLane {
    const NAME: &'static str = "in_lane";
    type App = Arc<Probe>;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("bench", self.key))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().ran();
        Ok(())
    }
}

/// A job with a partition key. Its step does nothing.
#[derive(Serialize, Deserialize)]
pub(crate) struct InPartition {
    pub(crate) key: u64,
}

impl Job for InPartition {
    const NAME: &'static str = "in_partition";
    type App = Arc<Probe>;
    type Output = ();
    fn partition(&self) -> Option<String> {
        Some(format!("bench:{}", self.key))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().ran();
        Ok(())
    }
}

/// The name of the limit of the workload `limits`.
pub(crate) const LIMIT: &str = "bench";
/// How long a step of [`Holding`] lasts.
const HELD_FOR: Duration = Duration::from_millis(20);

/// A job that takes a limit with its key, or none without a key. Its step does nothing.
#[derive(Serialize, Deserialize)]
pub(crate) struct InLimit {
    pub(crate) key: Option<u64>,
}

impl Job for InLimit {
    const NAME: &'static str = "in_limit";
    type App = Arc<Probe>;
    type Output = ();
    fn limits(&self) -> Limits {
        match self.key {
            Some(key) => Limits::of(LIMIT).key(key),
            None => Limits::none(),
        }
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().ran();
        Ok(())
    }
}

/// A job that holds its slot for a time. The probe does not count its steps.
#[derive(Serialize, Deserialize)]
pub(crate) struct Holding {
    pub(crate) key: u64,
}

impl Job for Holding {
    const NAME: &'static str = "holding";
    type App = Arc<Probe>;
    type Output = ();
    fn limits(&self) -> Limits {
        Limits::of(LIMIT).key(self.key)
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        tokio::time::sleep(HELD_FOR).await;
        Ok(())
    }
}

/// Counts the steps that one engine runs, and records when they start.
#[derive(Debug)]
pub(crate) struct Probe {
    steps: AtomicU64,
    first: OnceLock<Instant>,
    /// The number of steps that the probe waits for.
    wanted: u64,
    reached: OnceLock<Instant>,
    all_ran: Notify,
    /// The number and the start time of each [`Ping`] that the engine has run.
    started: Mutex<Vec<(u64, u64)>>,
}

impl Probe {
    /// Creates a probe that waits for this number of steps.
    pub(crate) fn waiting_for(wanted: u64) -> Arc<Probe> {
        Arc::new(Probe {
            steps: AtomicU64::new(0),
            first: OnceLock::new(),
            wanted,
            reached: OnceLock::new(),
            all_ran: Notify::new(),
            started: Mutex::default(),
        })
    }

    fn ran(&self) {
        let before = self.steps.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            let _ = self.first.set(Instant::now());
        }
        if before + 1 == self.wanted {
            let _ = self.reached.set(Instant::now());
            self.all_ran.notify_one();
        }
    }

    /// Returns the start of the first step, or the current time if no step has started.
    pub(crate) fn first(&self) -> Instant {
        self.first.get().copied().unwrap_or_else(Instant::now)
    }

    /// Waits until the number of steps that the probe waits for have started. Returns the time
    /// since the start of the first step.
    pub(crate) async fn all(&self) -> Duration {
        loop {
            let notified = self.all_ran.notified();
            if let Some(reached) = self.reached.get() {
                return reached.saturating_duration_since(self.first());
            }
            notified.await;
        }
    }

    /// Returns the number and the start time of each [`Ping`] that has started so far.
    pub(crate) fn started(&self) -> Vec<(u64, u64)> {
        self.started
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Returns the wall clock time in nanoseconds. The bench uses this clock because two processes
/// share it.
pub(crate) fn now_nanos() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
