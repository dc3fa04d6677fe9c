//! A job: a machine with a single step.

use std::future::Future;

use serde::{Deserialize, Serialize};

use crate::{
    context::Context,
    error::StepError,
    history::HistoryPolicy,
    id::Queue,
    lane::Lane,
    limit::Limits,
    machine::{Data, Machine},
    policy::Policy,
    signal::KeyScope,
    transition::{Outcome, done},
};

/// A one-shot task: a machine with a single step, with attempts and backoff.
///
/// Every job *is* a [`Machine`], so both traits have a `NAME`, a `QUEUE` and a `policy`. If both
/// traits are in scope, qualify the name: `<SendReceipt as Job>::NAME`.
///
/// ```
/// use gen_durable::{Context, Job, StepError};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendReceipt { order: u64 }
///
/// impl Job for SendReceipt {
///     const NAME: &'static str = "send_receipt";
///     type App = ();
///     type Output = ();
///     async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
///         println!("receipt of order {} (key {})", self.order, cx.idempotency_key());
///         Ok(())
///     }
/// }
/// ```
pub trait Job: Data {
    /// The name of the job in the database; see [`Machine::NAME`].
    const NAME: &'static str;
    /// Earlier names of this job; see [`Machine::FORMER_NAMES`].
    const FORMER_NAMES: &'static [&'static str] = &[];
    /// The version of the stored format; see [`Machine::VERSION`].
    const VERSION: u16 = 1;
    /// The queue of new instances, unless the enqueue names another queue.
    const QUEUE: Queue = Queue::DEFAULT;
    /// How much history the engine records for instances of this job: by default only retries and
    /// failures.
    const HISTORY: HistoryPolicy = HistoryPolicy::Failures;
    /// The application state that the host passes to every run.
    type App: Send + Sync + 'static;
    /// The result type of the job.
    type Output: Data;

    /// Runs the job. An error returned by `?` means "try again"; one marked by
    /// [`or_fatal`](crate::OrFatal::or_fatal) fails the job without another attempt.
    ///
    /// # Errors
    /// Any error counts as a failed attempt, except [`postpone`](crate::postpone).
    fn run(
        &self,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = Result<Self::Output, StepError>> + Send;

    /// Returns the attempts, backoff and timeout of the job.
    fn policy(&self) -> Policy {
        Policy::default()
    }

    /// Returns the key of this job; see [`Machine::key`].
    fn key(&self) -> Option<String> {
        None
    }
    /// How long the job occupies its key; see [`Machine::KEY_SCOPE`].
    const KEY_SCOPE: KeyScope = KeyScope::Live;

    /// Returns the partition key of this job; see [`Machine::partition`].
    fn partition(&self) -> Option<String> {
        None
    }
    /// Returns the lane of this job; see [`Machine::lane`].
    fn lane(&self) -> Option<Lane> {
        None
    }
    /// Returns the limits that this job takes; see [`Machine::limits`].
    fn limits(&self) -> Limits {
        Limits::none()
    }
}

/// The single step of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    /// The only step of the job.
    #[default]
    Run,
}

impl<J: Job> Machine for J {
    const NAME: &'static str = <J as Job>::NAME;
    const FORMER_NAMES: &'static [&'static str] = <J as Job>::FORMER_NAMES;
    const VERSION: u16 = <J as Job>::VERSION;
    const QUEUE: Queue = <J as Job>::QUEUE;
    const HISTORY: HistoryPolicy = <J as Job>::HISTORY;
    const STATE_CHANGES: bool = false;
    type App = <J as Job>::App;
    type Step = Run;
    type Output = <J as Job>::Output;

    async fn step(&mut self, Run::Run: Run, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(done(self.run(cx).await?))
    }

    fn policy(&self, Run::Run: &Run) -> Policy {
        Job::policy(self)
    }

    const KEY_SCOPE: KeyScope = <J as Job>::KEY_SCOPE;
    fn key(&self) -> Option<String> {
        Job::key(self)
    }
    fn partition(&self) -> Option<String> {
        Job::partition(self)
    }
    fn lane(&self) -> Option<Lane> {
        Job::lane(self)
    }
    fn limits(&self, Run::Run: &Run) -> Limits {
        Job::limits(self)
    }
}
