//! The machines that are run, and the probe that watches them. Their steps do nothing: what is measured is the engine.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use gen_durable::{
    Context, Job, Lane, Machine, Outcome, Signal, StepError, Story, Timestamp, done, next, spawn,
    wait_for,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// How many `next`s a walk has.
pub(crate) const WALK_STEPS: u64 = 10;

/// A job that does nothing.
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
        cx.app.ran();
        Ok(())
    }
}

/// A machine of [`WALK_STEPS`] `next`s and an end. Whether each is told is its type's affair.
#[derive(Serialize, Deserialize)]
pub(crate) struct Walk<const TOLD: bool> {
    left: u64,
    note: String,
}

/// The one step of a walk, again and again.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum At {
    #[default]
    Walking,
}

impl<const TOLD: bool> Machine for Walk<TOLD> {
    const NAME: &'static str = if TOLD { "told_walk" } else { "walk" };
    const STORY: Story = if TOLD { Story::All } else { Story::Off };
    type App = Arc<Probe>;
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app.ran();
        if self.left == 0 {
            return Ok(done(()));
        }
        self.left -= 1;
        Ok(next(at))
    }
}

/// A job that says when it began.
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
        cx.app
            .started
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((self.n, now));
        cx.app.ran();
        Ok(())
    }
}

/// A machine that waits to be told, and says when it was.
#[derive(Serialize, Deserialize)]
pub(crate) struct Listener {
    pub(crate) n: u64,
}

/// First it waits, then it was told.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Listening {
    #[default]
    Begin,
    Told,
}

/// What it waits for.
#[derive(Serialize, Deserialize)]
pub(crate) struct Wake;

impl Signal for Wake {
    const NAME: &'static str = "wake";
    type To = Listener;
}

impl Machine for Listener {
    const NAME: &'static str = "listener";
    /// As a newcomer has it.
    const STORY: Story = Story::All;
    type App = Arc<Probe>;
    type Step = Listening;
    type Output = ();
    async fn step(&mut self, at: Listening, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Listening::Begin => {
                cx.app.ran();
                Ok(wait_for::<Wake>().then(Listening::Told).forever())
            }
            Listening::Told => {
                let now = now_nanos();
                cx.app
                    .started
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((self.n, now));
                cx.app.ran();
                Ok(done(()))
            }
        }
    }
}

/// A wait that gives up at a date.
#[derive(Serialize, Deserialize)]
pub(crate) struct Alarm {
    pub(crate) name: String,
    pub(crate) due: Timestamp,
}

/// It is set, and goes off.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ringing {
    #[default]
    Set,
    Told,
    Late,
}

/// What never comes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Rung;

impl Signal for Rung {
    const NAME: &'static str = "rung";
    type To = Alarm;
}

impl Machine for Alarm {
    const NAME: &'static str = "alarm";
    type App = Arc<Probe>;
    type Step = Ringing;
    type Output = ();
    async fn step(&mut self, at: Ringing, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Ringing::Set => Ok(wait_for::<Rung>()
                .then(Ringing::Told)
                .or_after(self.due, Ringing::Late)),
            Ringing::Told | Ringing::Late => Ok(done(())),
        }
    }
}

/// A parent of many.
#[derive(Serialize, Deserialize)]
pub(crate) struct FanOut {
    pub(crate) children: u64,
}

/// It spawns, and joins.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fanning {
    #[default]
    Out,
    In,
}

impl Machine for FanOut {
    const NAME: &'static str = "fan_out";
    /// As a newcomer has it.
    const STORY: Story = Story::All;
    type App = Arc<Probe>;
    type Step = Fanning;
    type Output = ();
    async fn step(&mut self, at: Fanning, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app.ran();
        match at {
            Fanning::Out => Ok(spawn((0..self.children).map(Noop::new))
                .then(Fanning::In)
                .forever()),
            Fanning::In => Ok(done(())),
        }
    }
}

/// A job that does nothing, in a lane.
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
        cx.app.ran();
        Ok(())
    }
}

/// A job that does nothing, under a partition key.
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
        cx.app.ran();
        Ok(())
    }
}

/// What the steps of one engine report to.
#[derive(Debug)]
pub(crate) struct Probe {
    steps: AtomicU64,
    first: OnceLock<Instant>,
    /// How many steps are waited for.
    wanted: u64,
    reached: OnceLock<Instant>,
    bell: Notify,
    /// Which ping began when.
    started: Mutex<Vec<(u64, u64)>>,
}

impl Probe {
    /// Waits for this many steps.
    pub(crate) fn waiting_for(wanted: u64) -> Arc<Probe> {
        Arc::new(Probe {
            steps: AtomicU64::new(0),
            first: OnceLock::new(),
            wanted,
            reached: OnceLock::new(),
            bell: Notify::new(),
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
            self.bell.notify_one();
        }
    }

    /// When the first step began; now, if none has.
    pub(crate) fn first(&self) -> Instant {
        self.first.get().copied().unwrap_or_else(Instant::now)
    }

    /// Waits until all have begun. Answers how long that took since the first one.
    pub(crate) async fn all(&self) -> Duration {
        loop {
            let rung = self.bell.notified();
            if let Some(reached) = self.reached.get() {
                return reached.saturating_duration_since(self.first());
            }
            rung.await;
        }
    }

    /// Which pings began when, so far.
    pub(crate) fn started(&self) -> Vec<(u64, u64)> {
        self.started
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The one clock that two processes of one machine share.
pub(crate) fn now_nanos() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
