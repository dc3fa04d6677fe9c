//! The trait that a user implements: a struct for the state, an enum for the steps, one `async fn
//! step`.

use std::{fmt, future::Future};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    context::Context,
    error::{StepError, fatal},
    failure::Failure,
    history::HistoryPolicy,
    id::Queue,
    lane::Lane,
    limit::Limits,
    policy::Policy,
    signal::{Address, KeyScope},
    transition::Outcome,
};

/// Any type that the engine can store in a row.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored in a row",
    note = "derive serde's `Serialize` and `Deserialize`, and use owned data"
)]
pub trait Data: Serialize + DeserializeOwned + Send + Sync + 'static {}
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Data for T {}

/// A durable state machine. The row stores the fields of `self` for the whole life of the instance;
/// [`Step`](Machine::Step) is the step that runs next.
///
/// ```
/// use gen_durable::{Context, Machine, Outcome, done, next};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Greeting { name: String, text: String }
///
/// #[derive(Serialize, Deserialize, Default)]
/// #[serde(rename_all = "snake_case")]
/// enum Step { #[default] Compose, Send }
///
/// impl Machine for Greeting {
///     const NAME: &'static str = "greeting";
///     type App = ();
///     type Step = Step;
///     type Output = usize;
///
///     async fn step(&mut self, at: Step, _: &mut Context<'_, Self>) -> Outcome<Self> {
///         match at {
///             Step::Compose => {
///                 self.text = format!("Hello, {}!", self.name);
///                 Ok(next(Step::Send))
///             }
///             Step::Send => Ok(done(self.text.len())),
///         }
///     }
/// }
/// ```
pub trait Machine: Data {
    /// The name of the machine in the database. It is part of your API, because stored rows contain
    /// it. To rename a machine, deploy the new name together with
    /// [`FORMER_NAMES`](Machine::FORMER_NAMES), and remove the former name once no unsettled row
    /// contains it.
    const NAME: &'static str;
    /// Earlier names of this machine. Rows that contain one of them still run as this machine.
    const FORMER_NAMES: &'static [&'static str] = &[];
    /// The version of the stored format. Raise it when the shape of the state or of the steps
    /// changes. Rows of an older version run only on workers that registered that version, unless
    /// this type supports [`upgrade`](Machine::upgrade).
    const VERSION: u16 = 1;
    /// Older versions of stored rows that this type converts by [`upgrade`](Machine::upgrade).
    const UPGRADES_FROM: &'static [u16] = &[];
    /// The queue of new instances, unless the enqueue names another queue.
    const QUEUE: Queue = Queue::DEFAULT;
    /// How much history the engine records for instances of this machine: by default one entry per
    /// commit. [`HistoryPolicy::Off`] saves one small row per step.
    const HISTORY: HistoryPolicy = HistoryPolicy::All;
    /// The application state that the host passes to every step, such as clients and configuration.
    type App: Send + Sync + 'static;
    /// An enum of the steps. A variant may contain data that only this step needs. The `step`
    /// column stores the serde name of a variant; a new instance begins at the default variant.
    type Step: Data + Default;
    /// The result type of the instance, passed to [`done`](crate::done).
    type Output: Data;

    /// Runs one step. The engine commits the returned transition before it runs the next step or
    /// anything else that the transition requests.
    ///
    /// A step may run more than once: if its worker crashes after the step's side effects and
    /// before the commit, another worker runs it again. Pass
    /// [`cx.idempotency_key()`](Context::idempotency_key) to external systems, so that they can
    /// detect the repetition.
    ///
    /// # Errors
    /// Any error means "retry according to the policy", except one made by [`fatal`](crate::fatal):
    /// see [`handle`](Machine::handle).
    fn step(
        &mut self,
        at: Self::Step,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = Outcome<Self>> + Send;

    /// Handles a step that returned an error, panicked or exceeded its timeout. The engine does not
    /// call it when a worker crashes. `self` and `at` have the values from before the step.
    /// `handle` may return any transition.
    ///
    /// The default implementation applies [`policy`](Machine::policy). An implementation that
    /// decides only some cases itself applies the policy to the others by [`Policy::apply`]:
    /// `Ok(self.policy(&at).apply(failure, cx))`.
    ///
    /// # Errors
    /// If `handle` itself returns an error, panics or exceeds the timeout, the instance fails.
    fn handle(
        &mut self,
        at: Self::Step,
        failure: &Failure,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = Outcome<Self>> + Send {
        let decided = self.policy(&at).apply(failure, cx);
        async move { Ok(decided) }
    }

    /// Returns the attempts, backoff and timeout of a step.
    fn policy(&self, at: &Self::Step) -> Policy {
        let _ = at;
        Policy::default()
    }

    /// Returns the key of this instance, if it has one. The key is the address for signals. It is
    /// unique per tenant across all machines, among the instances that
    /// [`KEY_SCOPE`](Machine::KEY_SCOPE) selects.
    fn key(&self) -> Option<String> {
        None
    }
    /// How long an instance occupies its key.
    const KEY_SCOPE: KeyScope = KeyScope::Live;

    /// Returns the partition key of this instance, if it has one. At most one instance per
    /// partition key runs a step at any time, across all machines of the tenant and all processes.
    /// The library calls this method once, when a caller or a step creates the instance. Instances
    /// of a partition run in the order in which workers claim them; for strict order use
    /// [lanes](Machine::lane).
    fn partition(&self) -> Option<String> {
        None
    }

    /// Returns the lane of this instance, if it has one. A lane runs one whole instance at a time,
    /// in the order of enqueueing. The library calls this method once, when a caller or a step
    /// creates the instance.
    fn lane(&self) -> Option<Lane> {
        None
    }

    /// Returns the limits that this step takes, with keys from the state: the step begins only when
    /// each of them has room ([`Limit`](crate::machine::Limit)). The default takes none.
    ///
    /// The process that writes the step calls this function, so it depends on the state and the
    /// step alone. A worker that claims an instance at a step that was written without it (the step
    /// of a deadline, or an operator's retry from another step) calls it then.
    ///
    /// ```
    /// # use gen_durable::{machine::Limits, prelude::*};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Import { tenant: String }
    /// # #[derive(serde::Serialize, serde::Deserialize, Default)] enum Step { #[default] Fetch,
    /// Store }
    /// # impl Machine for Import {
    /// #     const NAME: &'static str = "import";
    /// #     type App = ();
    /// #     type Step = Step;
    /// #     type Output = ();
    /// fn limits(&self, at: &Step) -> Limits {
    ///     match at {
    ///         Step::Fetch => Limits::of("api").key(&self.tenant),
    ///         Step::Store => Limits::none(),
    ///     }
    /// }
    /// #     async fn step(&mut self, _: Step, _: &mut Context<'_, Self>) -> Outcome<Self> {
    /// Ok(done(())) }
    /// # }
    /// ```
    fn limits(&self, at: &Self::Step) -> Limits {
        let _ = at;
        Limits::none()
    }

    /// Returns the address of the instance that holds this key at the time of the call:
    /// `client.signal(Checkout::keyed("order:42"), Paid)`.
    fn keyed(key: impl fmt::Display) -> Address<Self> {
        Address::keyed(key)
    }

    /// Converts a row that an older version wrote (one of
    /// [`UPGRADES_FROM`](Machine::UPGRADES_FROM)) to the current shape. The engine calls it before
    /// it decodes the row with serde.
    ///
    /// # Errors
    /// The row cannot be converted. The engine sets the instance aside as stuck and keeps its step
    /// and state unchanged.
    fn upgrade(from: u16, row: Stored) -> Result<Stored, StepError> {
        let _ = row;
        Err(fatal(format!("no upgrade from version {from}")))
    }

    /// Whether a step can change `self`. The step of a job cannot, so only the enqueue writes the
    /// state of a job.
    #[doc(hidden)]
    const STATE_CHANGES: bool = true;
}

/// A row as an older version wrote it: the input and output of [`Machine::upgrade`].
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The name of the step of the stored row.
    pub step: String,
    /// The data of the step variant; `Null` for a unit variant.
    pub data: serde_json::Value,
    /// The state of the machine in the stored row.
    pub state: serde_json::Value,
}

/// Returns the serde names of the variants of an enum, aliases included. It needs no macro: the
/// code derived by serde passes the names to `deserialize_enum`, and a probing deserializer records
/// them there.
pub fn variant_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    let _ = T::deserialize(Probe(&mut names));
    names
}

/// Returns a one-line summary of the names that a machine writes into rows: its name, its version
/// and its steps with their aliases. Use it in a snapshot test of your own: renaming a variant
/// without an alias then fails the test before it makes a stored row unreadable.
pub fn shape<M: Machine>() -> String {
    format!(
        "{} v{}: {}",
        M::NAME,
        M::VERSION,
        variant_names::<M::Step>().join(" ")
    )
}

struct Probe<'a>(&'a mut &'static [&'static str]);

#[derive(Debug)]
struct Halt;

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the probe stops after it has read the variant names")
    }
}
impl std::error::Error for Halt {}
impl serde::de::Error for Halt {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Halt
    }
}

impl<'de> serde::Deserializer<'de> for Probe<'_> {
    type Error = Halt;
    fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Halt> {
        Err(Halt)
    }
    fn deserialize_enum<V: serde::de::Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Halt> {
        *self.0 = variants;
        Err(Halt)
    }
    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
