//! What a user writes: a struct, an enum of steps, one `async fn step`.

use std::{fmt, future::Future};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    context::Context,
    error::{Failure, StepError, fatal},
    id::Queue,
    lane::Lane,
    policy::Policy,
    signal::{Address, Scope},
    story::Story,
    transition::{Outcome, retry_after, stop},
};

/// Anything the engine keeps in a row.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept in a row",
    note = "derive serde's `Serialize` and `Deserialize`, and own the data"
)]
pub trait Data: Serialize + DeserializeOwned + Send + Sync + 'static {}
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Data for T {}

/// A durable state machine. `self` lives as long as the instance; [`Step`](Machine::Step) says where it stands.
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
    /// The name in the row. It is API: rows in flight carry it. To rename a machine, deploy the new name together with
    /// [`FORMER_NAMES`](Machine::FORMER_NAMES), and drop the former one when no live row says it any more.
    const NAME: &'static str;
    /// Names that this machine had before; rows that carry one still come home.
    const FORMER_NAMES: &'static [&'static str] = &[];
    /// Raise it when the state or the steps take another shape. Rows of an older version finish on a worker that
    /// registered that version, unless this one offers [`upgrade`](Machine::upgrade).
    const VERSION: u16 = 1;
    /// Older versions whose rows this type takes over by [`upgrade`](Machine::upgrade).
    const UPGRADES_FROM: &'static [u16] = &[];
    /// Where instances go unless the enqueue says otherwise.
    const QUEUE: Queue = Queue::DEFAULT;
    /// How much is told of its instances: by default every commit. [`Story::Off`] saves a small row a step.
    const STORY: Story = Story::All;
    /// What the host hands to every step: clients, configuration.
    type App: Send + Sync + 'static;
    /// An enum; a variant may carry what only that step needs. Its variants' serde names are the `step` column;
    /// the default is where an instance begins.
    type Step: Data + Default;
    /// What [`done`](crate::done) settles with.
    type Output: Data;

    /// Do one step. What it returns is committed before anything it leads to begins.
    ///
    /// It may run more than once (a crash between its effects and its commit): hand
    /// [`cx.idempotency_key()`](Context::idempotency_key) to the outside world.
    fn step(
        &mut self,
        at: Self::Step,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = Outcome<Self>> + Send;

    /// A step returned an error, panicked or ran out of time (never: its worker died). `self` and `at` are as they were
    /// before the step. Any outcome may follow; the default applies [`policy`](Machine::policy).
    fn handle(
        &mut self,
        at: Self::Step,
        failure: &Failure,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = Outcome<Self>> + Send {
        let policy = self.policy(&at);
        let outcome = if failure.fatal || failure.failures.saturating_add(1) >= policy.attempts {
            stop(failure.message.clone())
        } else {
            retry_after(policy.delay_of(cx.id.raw(), failure.failures))
        };
        async move { Ok(outcome) }
    }

    /// Attempts, backoff and timeout of a step.
    fn policy(&self, at: &Self::Step) -> Policy {
        let _ = at;
        Policy::default()
    }

    /// The business key: unique among the instances that [`KEY_SCOPE`](Machine::KEY_SCOPE) names, of all machines of its
    /// tenant, and the address for signals.
    fn key(&self) -> Option<String> {
        None
    }
    /// How long the key is taken.
    const KEY_SCOPE: Scope = Scope::Live;

    /// At most one step at a time among the instances of one partition, of all machines of its tenant, in all processes.
    /// Read once, when the instance is made. Order is only the picker's: for strict order there are [lanes](Machine::lane).
    fn partition(&self) -> Option<String> {
        None
    }

    /// One whole instance at a time, in order of enqueueing. Read once, when the instance is made.
    fn lane(&self) -> Option<Lane> {
        None
    }

    /// Whoever holds this key now, as an address: `client.signal(Checkout::keyed("order:42"), Paid)`.
    fn keyed(key: impl fmt::Display) -> Address<Self> {
        Address::Key {
            key: key.to_string(),
            tenant: String::new(),
        }
    }

    /// A row written by an older version (one of [`UPGRADES_FROM`](Machine::UPGRADES_FROM)), before serde looks at it.
    fn upgrade(from: u16, row: Stored) -> Result<Stored, StepError> {
        let _ = row;
        Err(fatal(format!("no upgrade from version {from}")))
    }

    /// Whether a step can change `self`. A job's cannot, so its state is written once.
    #[doc(hidden)]
    const STATE_CHANGES: bool = true;
}

/// A row as an older version wrote it: what [`Machine::upgrade`] turns into the present shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The step's name.
    pub step: String,
    /// What the step carries; `Null` for a unit variant.
    pub data: serde_json::Value,
    /// The machine's own state.
    pub state: serde_json::Value,
}

/// The names serde knows for an enum's variants, aliases and all, learnt without a macro of ours: serde's derive hands
/// them to `deserialize_enum`, and a deserializer that only listens brings them home.
pub fn variant_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    let _ = T::deserialize(Probe(&mut names));
    names
}

/// What a machine writes into rows, in a line: the name, the version, the steps (and aliases). For a frozen-names test
/// of your own: a variant renamed without an alias turns it red before it strands a row.
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
        f.write_str("only the names were wanted")
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
