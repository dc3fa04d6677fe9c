//! The context that the engine passes to a step.

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
    limit::LimitHandle,
    machine::Machine,
    pool::Pool,
    signal::{ReceivedSignal, Signal},
    store::row::Claimed,
    transaction::Tx,
};

/// The context of one run of a step: the application state, the identity of the instance, its inbox
/// and the time.
#[non_exhaustive]
pub struct Context<'a, M: Machine> {
    pub(crate) app: &'a M::App,
    pub(crate) row: &'a Claimed,
    pub(crate) installation: &'a str,
    /// Whether the step began a transaction of its own through this context. If so, an error of the
    /// database driver may mean that the engine's own database cannot be reached.
    pub(crate) began: AtomicBool,
    pub(crate) pool: &'a Pool,
    /// The inbox of the instance as it was when this run of the step began.
    pub(crate) signals: &'a [ReceivedSignal],
    /// The cancel token of this run: it reports whether the worker still holds the claim. The
    /// worker checks the claim in the database only if the step calls `cancelled` or
    /// `is_cancelled`.
    pub(crate) token: Token,
    pub(crate) phase: &'a Arc<Phase>,
}

impl<'a, M: Machine> Context<'a, M> {
    /// Returns the application state that the host passed to the engine.
    pub fn app(&self) -> &'a M::App {
        self.app
    }

    /// Returns the id of the instance that runs this step.
    pub fn id(&self) -> Id<M> {
        Id::from_raw(self.row.id)
    }

    /// Returns a limit by its name, to correct what this step has taken from its rate, or to close
    /// it: `cx.limit("openai").close_for(30 * SECOND).await?`.
    pub fn limit(&self, name: &str) -> LimitHandle {
        LimitHandle::new(self.pool.clone(), name)
    }

    /// Returns the number of earlier runs of this step that did not complete it: they failed, asked
    /// for a retry, or their worker crashed.
    pub fn attempt(&self) -> u32 {
        self.row.attempt
    }

    /// Returns the number of earlier runs of this step that failed.
    /// [`Policy::attempts`](crate::Policy::attempts) limits this number.
    pub fn failures(&self) -> u32 {
        self.row.failures
    }

    /// Returns the database time at which the worker claimed the instance. The clock of the
    /// database is the only clock of the engine, so tests can move it.
    pub fn now(&self) -> Timestamp {
        self.row.now
    }

    /// Returns a key that is the same for every run and retry of this entry of this step, and
    /// different for every other step, instance and installation. Pass it to external systems, so
    /// that they count a repeated call once.
    ///
    /// The key consists of the random installation id of the schema, the machine's name in the row
    /// (rows from before a rename keep their keys), the instance and the entry of the step.
    pub fn idempotency_key(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            self.installation, self.row.machine, self.row.id, self.row.step_entry_seq
        )
    }

    /// Returns the fencing token of this claim. A later claim of the same instance, lane or
    /// partition key has a larger token. An external store that remembers the largest token so far
    /// can reject a late write of a worker that was suspended and has lost its claim. Steps that
    /// run ahead on the same claim share one token.
    pub fn fencing_token(&self) -> i64 {
        self.row.fencing_token
    }

    /// Returns the tenant of the instance that runs this step.
    pub fn tenant(&self) -> &str {
        &self.row.tenant
    }

    /// Returns the W3C trace context of the enqueue, if it had one.
    pub fn traceparent(&self) -> Option<&str> {
        self.row.traceparent.as_deref()
    }

    /// Returns the awaited signals of this type, the oldest first, as they were when this run
    /// began. A transition to a next step or to the end of the instance consumes all awaited
    /// signals, read or not; a retry and another wait consume none.
    ///
    /// # Errors
    /// The payload of one of these signals does not have the shape of `S`.
    pub fn awaited<S: Signal<To = M>>(&self) -> Result<Vec<S>, Error> {
        let awaited = self.row.awaits.as_deref().unwrap_or_default();
        if !awaited.iter().any(|name| name == S::NAME) {
            return Ok(Vec::new());
        }
        let of_this_kind = self.signals.iter().filter(|signal| signal.name == S::NAME);
        of_this_kind.map(ReceivedSignal::decode).collect()
    }

    /// Returns all signals of the inbox, awaited or not. Reading consumes nothing.
    pub fn inbox(&self) -> &[ReceivedSignal] {
        self.signals
    }

    /// Resolves when the result of this run no longer counts: the instance was cancelled, or the
    /// worker has lost the claim. A long step selects between its work and this future, and stops.
    /// The worker notices a cancel by its own process at once, and a cancel by another process
    /// within about a second. In a task that outlives the step, the future also resolves at the end
    /// of the run, whatever the result.
    ///
    /// ```
    /// # use gen_durable::{Context, Job, StepError};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Render;
    /// # async fn render() {}
    /// impl Job for Render {
    /// #   const NAME: &'static str = "render"; type App = (); type Output = ();
    ///     // ..
    ///     async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
    ///         tokio::select! {
    ///             () = render() => Ok(()),
    ///             () = cx.cancelled() => Err("cancelled")?, // dropped: the claim is lost
    ///         }
    ///     }
    /// }
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static + use<M> {
        self.token.lost()
    }

    /// Returns whether [`cancelled`](Context::cancelled) has resolved, for a step that checks at
    /// intervals. The first call only begins to watch the claim.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_lost()
    }

    /// Resolves when the shutdown of the engine begins: the process is about to end, and the step
    /// has at most [`Settings::drain_timeout`](crate::Settings::drain_timeout) left. A long step
    /// selects between its work and this future, saves its progress in its state, and returns
    /// `next`; another worker then continues with the saved progress. At the end of the shutdown
    /// the engine releases the claims of steps that still run, and these steps run again from their
    /// beginning.
    ///
    /// ```
    /// # use gen_durable::{Context, Machine, Outcome, done, next};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Import { rows: u64 }
    /// # #[derive(serde::Serialize, serde::Deserialize, Default)] enum Step { #[default] Copy }
    /// # async fn copy_a_page(from: u64) -> u64 { 0 }
    /// impl Machine for Import {
    /// #   const NAME: &'static str = "import"; type App = (); type Step = Step; type Output = ();
    ///     // ..
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

    /// Returns whether the shutdown of the engine has begun, for a step that checks at intervals;
    /// see [`draining`](Context::draining).
    pub fn is_draining(&self) -> bool {
        self.phase.is_draining()
    }

    /// Begins a transaction of the step itself, for its own writes and for its transition:
    /// `next(..).within(tx)`.
    ///
    /// # Errors
    /// The database is unreachable, or the pool has no free connection in time.
    pub async fn begin(&self) -> Result<Tx, Error> {
        self.began.store(true, Ordering::Relaxed);
        self.pool.begin().await
    }
}

impl<M: Machine> fmt::Debug for Context<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("machine", &M::NAME)
            .field("id", &self.row.id)
            .field("attempt", &self.row.attempt)
            .finish()
    }
}
