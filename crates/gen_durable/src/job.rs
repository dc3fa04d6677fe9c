//! A job: a machine of one step.

use std::future::Future;

use serde::{Deserialize, Serialize};

use crate::{
    context::Context,
    error::StepError,
    id::Queue,
    lane::Lane,
    machine::{Data, Machine},
    policy::Policy,
    signal::Scope,
    story::Story,
    transition::{Outcome, done},
};

/// A one-shot: a machine of one step, with attempts and backoff.
///
/// Every job *is* a [`Machine`], so both traits have a `NAME`, a `QUEUE` and a `policy`. Where both are in scope, say
/// which one you mean: `<SendReceipt as Job>::NAME`.
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
    /// The name in the row; see [`Machine::NAME`].
    const NAME: &'static str;
    /// Names that this job had before.
    const FORMER_NAMES: &'static [&'static str] = &[];
    /// See [`Machine::VERSION`].
    const VERSION: u16 = 1;
    /// Where it goes unless the enqueue says otherwise.
    const QUEUE: Queue = Queue::DEFAULT;
    /// How much is told of its instances: by default what went wrong.
    const STORY: Story = Story::Failures;
    /// What the host hands to every run.
    type App: Send + Sync + 'static;
    /// What it settles with.
    type Output: Data;

    /// Do it. `?` means "try again"; [`or_fatal`](crate::OrFatal::or_fatal) gives up.
    fn run(
        &self,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = Result<Self::Output, StepError>> + Send;

    /// Attempts, backoff and timeout.
    fn policy(&self) -> Policy {
        Policy::default()
    }

    /// See [`Machine::key`].
    fn key(&self) -> Option<String> {
        None
    }
    /// See [`Machine::KEY_SCOPE`].
    const KEY_SCOPE: Scope = Scope::Live;

    /// See [`Machine::partition`].
    fn partition(&self) -> Option<String> {
        None
    }
    /// See [`Machine::lane`].
    fn lane(&self) -> Option<Lane> {
        None
    }
}

/// The one step of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    /// The step.
    #[default]
    Run,
}

impl<J: Job> Machine for J {
    const NAME: &'static str = <J as Job>::NAME;
    const FORMER_NAMES: &'static [&'static str] = <J as Job>::FORMER_NAMES;
    const VERSION: u16 = <J as Job>::VERSION;
    const QUEUE: Queue = <J as Job>::QUEUE;
    const STORY: Story = <J as Job>::STORY;
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

    const KEY_SCOPE: Scope = <J as Job>::KEY_SCOPE;
    fn key(&self) -> Option<String> {
        Job::key(self)
    }
    fn partition(&self) -> Option<String> {
        Job::partition(self)
    }
    fn lane(&self) -> Option<Lane> {
        Job::lane(self)
    }
}
