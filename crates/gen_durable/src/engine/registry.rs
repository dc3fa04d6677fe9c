//! Maps a machine's name and version to its code. The code that is generic over the machine ends in
//! this module: the rest of the engine is compiled once and handles JSON.

use std::{collections::HashMap, fmt, marker::PhantomData, sync::Arc, time::Instant};

use futures_util::future::BoxFuture;

use super::execute::{self, Environment, StepRun};
use crate::{
    codec,
    error::Error,
    failure::Failure,
    id::{NAME_BYTES_MAX, Queue},
    machine::{Machine, shape, variant_names},
    store::row::Claimed,
};

/// Implemented by the `App` of a host that contains the `App` of a machine which a library defines.
#[diagnostic::on_unimplemented(
    message = "an engine with the App `{Self}` cannot run a machine with the App `{T}`",
    note = "pass a `{T}` to `Engine::builder`, or write `impl Has<{T}> for {Self}`"
)]
pub trait Has<T> {
    /// Returns the `App` of the machine, which the host's `App` contains.
    fn part(&self) -> &T;
}
impl<T> Has<T> for T {
    fn part(&self) -> &T {
        self
    }
}

/// A step name that no machine can have.
const NO_STEP: &str = "\u{0}";

/// A machine without its Rust type, as the engine calls it.
pub(crate) trait Kind: Send + Sync {
    fn name(&self) -> &'static str;
    fn version(&self) -> u16;
    fn queue(&self) -> Queue;
    fn steps(&self) -> &'static [&'static str];
    /// Returns whether the step enum of the machine has a variant for every unknown name
    /// (`#[serde(other)]`).
    fn takes_any_step(&self) -> bool;
    fn shape(&self) -> String;
    /// Decodes the row of an instance, runs its step (or only the handler of the step, if a failure
    /// of the step is already known), and encodes the step result.
    fn run(
        self: Arc<Self>,
        row: Arc<Claimed>,
        poison: Option<Failure>,
        environment: Arc<Environment>,
    ) -> BoxFuture<'static, StepRun>;
}

struct TypedMachine<M, App> {
    app: Arc<App>,
    machine: PhantomData<fn() -> M>,
}

impl<M: Machine, App: Has<M::App> + Send + Sync + 'static> Kind for TypedMachine<M, App> {
    fn name(&self) -> &'static str {
        M::NAME
    }
    fn version(&self) -> u16 {
        M::VERSION
    }
    fn queue(&self) -> Queue {
        M::QUEUE
    }
    fn steps(&self) -> &'static [&'static str] {
        variant_names::<M::Step>()
    }
    fn takes_any_step(&self) -> bool {
        codec::decode_step::<M::Step>(NO_STEP, None).is_ok()
    }
    fn shape(&self) -> String {
        shape::<M>()
    }
    fn run(
        self: Arc<Self>,
        row: Arc<Claimed>,
        poison: Option<Failure>,
        environment: Arc<Environment>,
    ) -> BoxFuture<'static, StepRun> {
        Box::pin(async move {
            let app: &App = &self.app;
            let begun = Instant::now();
            let run = execute::execute::<M>(app.part(), &row, poison, &environment).await;
            StepRun {
                history: M::HISTORY,
                took: begun.elapsed(),
                ..run
            }
        })
    }
}

/// All machines that this engine can run.
#[derive(Default, Clone)]
pub(crate) struct Registry {
    kinds: HashMap<(String, u16), Arc<dyn Kind>>,
    /// The registered machines in the order of registration, for checks and for display.
    registered: Vec<Arc<dyn Kind>>,
}

impl Registry {
    /// Registers a machine. Returns an error if the machine cannot be registered, for example
    /// because another machine has the same name and version.
    pub(crate) fn register<M, App>(&mut self, app: Arc<App>) -> Result<(), Error>
    where
        M: Machine,
        App: Has<M::App> + Send + Sync + 'static,
    {
        for name in std::iter::once(&M::NAME).chain(M::FORMER_NAMES) {
            codec::check_name("a machine's name", name, 1, NAME_BYTES_MAX)
                .map_err(|error| Error::invalid(format!("cannot register {name:?}: {error}")))?;
        }
        if M::UPGRADES_FROM.contains(&M::VERSION) {
            let message = format!(
                "{} v{} lists its own version in `UPGRADES_FROM`",
                M::NAME,
                M::VERSION
            );
            return Err(Error::invalid(message));
        }
        let (step, _) = codec::encode_step(&M::Step::default())
            .map_err(|error| Error::invalid(format!("cannot register {}: {error}", M::NAME)))?;
        if !variant_names::<M::Step>().contains(&step.as_str()) {
            let message = format!(
                "cannot register {}: its steps must be an enum with serde's derived form",
                M::NAME
            );
            return Err(Error::invalid(message));
        }
        let kind: Arc<dyn Kind> = Arc::new(TypedMachine::<M, App> {
            app,
            machine: PhantomData,
        });
        for name in std::iter::once(&M::NAME).chain(M::FORMER_NAMES) {
            for version in std::iter::once(&M::VERSION).chain(M::UPGRADES_FROM) {
                if self
                    .kinds
                    .insert(((*name).to_owned(), *version), kind.clone())
                    .is_some()
                {
                    let message = format!(
                        "two registered machines run the rows of {name} v{version}: register only one of them"
                    );
                    return Err(Error::invalid(message));
                }
            }
        }
        self.registered.push(kind);
        Ok(())
    }

    pub(crate) fn find(&self, machine: &str, version: u16) -> Option<&Arc<dyn Kind>> {
        // The key of the map of machines owns its string, so each lookup allocates one. This
        // allocation costs little compared with the step.
        self.kinds.get(&(machine.to_owned(), version))
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Arc<dyn Kind>> {
        self.registered.iter()
    }

    /// Returns the machines of all rows that this engine can claim, as 'name/version'.
    pub(crate) fn machines(&self) -> Vec<String> {
        let mut machines: Vec<String> = self
            .kinds
            .keys()
            .map(|(name, version)| format!("{name}/{version}"))
            .collect();
        machines.sort_unstable();
        machines
    }

    /// Returns the steps of all rows that this engine can claim, in the format that
    /// `gen_durable._knows_step` reads: 'name/version/step', or 'name/version' for every step (an
    /// older version that `upgrade` converts, or a machine that accepts any step).
    pub(crate) fn steps(&self) -> Vec<String> {
        let mut steps = Vec::new();
        for ((name, version), kind) in &self.kinds {
            if kind.version() != *version || kind.takes_any_step() {
                steps.push(format!("{name}/{version}"));
            } else {
                steps.extend(
                    kind.steps()
                        .iter()
                        .map(|step| format!("{name}/{version}/{step}")),
                );
            }
        }
        steps.sort_unstable();
        steps
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.registered.iter().map(|kind| kind.shape()))
            .finish()
    }
}
