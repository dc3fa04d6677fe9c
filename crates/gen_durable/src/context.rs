//! What a step is handed.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;

use crate::{
    engine::{Phase, watch::Token},
    error::Error,
    id::Id,
    machine::Machine,
    signal::{Letter, Signal},
    store::{pool::Pool, row::Claimed, tx::Tx},
};

/// What a step is handed: the host's world, who it is, and what time it is.
#[non_exhaustive]
pub struct Context<'a, M: Machine> {
    /// What the host gave the engine.
    pub app: &'a M::App,
    /// This instance.
    pub id: Id<M>,
    /// How many runs of this step led nowhere before this one: they failed, asked for a retry, or died with their worker.
    pub attempt: u32,
    /// How many of them failed. [`Policy::attempts`](crate::Policy::attempts) counts these.
    pub failures: u32,
    /// The database's time when the step was claimed. The one clock: tests move it.
    pub now: Timestamp,
    pub(crate) row: &'a Claimed,
    pub(crate) installation: &'a str,
    /// Whether it began a transaction of its own: then an error of the driver is news of our own database.
    pub(crate) began: AtomicBool,
    pub(crate) pool: &'a Pool,
    /// The inbox as it was when this run began.
    pub(crate) letters: &'a [Letter],
    /// Whether it still has its claim, for a step that asks.
    pub(crate) token: Token,
    pub(crate) phase: &'a Arc<Phase>,
}

impl<M: Machine> Context<'_, M> {
    /// Returns a key that is the same for every run and retry of this entry of this step, and for no other step, instance or
    /// installation. Hand it to the outside world, so that what is done twice counts once.
    ///
    /// It is made of the schema's random installation id, the machine's name in the row (a renamed machine keeps the keys of the
    /// rows that it had), the instance and the entry of the step.
    pub fn idempotency_key(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            self.installation, self.row.fsm, self.id, self.row.visit
        )
    }

    /// Returns the number of this claim. It rises from claim to claim of an instance, and from instance to instance of a lane or a
    /// partition key. A store outside that remembers the largest it has seen can refuse the write of a worker that was stopped, lost
    /// its claim, and woke again. Steps that run ahead on one claim share it.
    pub fn fencing_token(&self) -> i64 {
        self.row.fencing_token
    }

    /// Whose work this is.
    pub fn tenant(&self) -> &str {
        &self.row.tenant
    }

    /// The W3C trace context of the enqueue, if there was one.
    pub fn traceparent(&self) -> Option<&str> {
        self.row.traceparent.as_deref()
    }

    /// The awaited signals of this kind, the oldest first, as they were when this run began. An ending that progresses or
    /// settles consumes all that were awaited, read or not; a retry and another wait consume none.
    pub fn awaited<S: Signal<To = M>>(&self) -> Result<Vec<S>, Error> {
        let awaited = self.row.awaits.as_deref().unwrap_or_default();
        if !awaited.iter().any(|name| name == S::NAME) {
            return Ok(Vec::new());
        }
        let of_this_kind = self.letters.iter().filter(|letter| letter.name == S::NAME);
        of_this_kind.map(Letter::decode).collect()
    }

    /// All letters, awaited or not. Looking consumes nothing.
    pub fn inbox(&self) -> &[Letter] {
        self.letters
    }

    /// Resolves when what this run decides no longer counts: somebody cancelled the instance, or its claim is lost. A long step
    /// races its work against it, and stops. A cancel by this process is noticed at once, one by another process within about a
    /// second. For a task that the step left behind it also resolves when the run is over, however it ended.
    ///
    /// ```
    /// # use gen_durable::{Context, Job, StepError};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Render;
    /// # async fn render() {}
    /// impl Job for Render {
    /// #   const NAME: &'static str = "render"; type App = (); type Output = ();
    ///     // …
    ///     async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
    ///         tokio::select! {
    ///             () = render() => Ok(()),
    ///             () = cx.cancelled() => Err("cancelled")?, // nobody hears it: the claim is gone
    ///         }
    ///     }
    /// }
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static + use<M> {
        self.token.lost()
    }

    /// Whether [`cancelled`](Context::cancelled) has resolved, for a loop that looks now and then. The first look only begins
    /// to watch.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_lost()
    }

    /// Resolves when the engine drains: the process is about to end, and the step has up to
    /// [`Settings::drain_timeout`](crate::Settings::drain_timeout) left. A long step races its work against it, keeps how far it has come in its state, and ends
    /// with a `next`: another process goes on from there. A step that does not ask is given back at the end of the drain, and
    /// runs again from its beginning.
    ///
    /// ```
    /// # use gen_durable::{Context, Machine, Outcome, done, next};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Import { rows: u64 }
    /// # #[derive(serde::Serialize, serde::Deserialize, Default)] enum Step { #[default] Copy }
    /// # async fn copy_a_page(from: u64) -> u64 { 0 }
    /// impl Machine for Import {
    /// #   const NAME: &'static str = "import"; type App = (); type Step = Step; type Output = ();
    ///     // …
    ///     async fn step(&mut self, _: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
    ///         loop {
    ///             match copy_a_page(self.rows).await {
    ///                 0 => return Ok(done(())),
    ///                 copied => self.rows += copied,
    ///             }
    ///             if cx.is_draining() {
    ///                 return Ok(next(Step::Copy));
    ///             }
    ///         }
    ///     }
    /// }
    /// ```
    pub fn draining(&self) -> impl Future<Output = ()> + Send + 'static + use<M> {
        let phase = self.phase.clone();
        async move { phase.draining().await }
    }

    /// Returns whether the engine drains, for a loop that looks now and then: see [`draining`](Context::draining).
    pub fn is_draining(&self) -> bool {
        self.phase.is_draining()
    }

    /// Begin a transaction of the step's own, to write in and to end the step with: `next(…).within(tx)`.
    pub async fn begin(&self) -> Result<Tx, Error> {
        self.began.store(true, Ordering::Relaxed);
        self.pool.begin().await
    }
}

impl<M: Machine> fmt::Debug for Context<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("machine", &M::NAME)
            .field("id", &self.id)
            .field("attempt", &self.attempt)
            .finish()
    }
}
