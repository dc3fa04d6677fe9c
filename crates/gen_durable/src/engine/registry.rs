//! Name and version → machine. Generic code ends here: behind it the engine is compiled once, and JSON becomes types.

use std::{collections::HashMap, fmt, marker::PhantomData, sync::Arc, time::Instant};

use futures_util::future::BoxFuture;

use super::execute::{self, Decision, Environment};
use crate::{
    codec,
    error::{Error, Failure},
    id::{NAME_BYTES_MAX, Queue},
    machine::{Machine, shape, variant_names},
    store::row::Claimed,
};

/// A host's App may hold the App of a machine that comes from a library.
#[diagnostic::on_unimplemented(
    message = "an engine that hands out `{Self}` cannot run a machine that wants `{T}`",
    note = "give the builder a `{T}`, or write `impl Has<{T}> for {Self}`"
)]
pub trait Has<T> {
    /// That part of it.
    fn part(&self) -> &T;
}
impl<T> Has<T> for T {
    fn part(&self) -> &T {
        self
    }
}

/// A name that no step has.
const NO_STEP: &str = "\u{0}";

/// A machine without its type.
pub(crate) trait Kind: Send + Sync {
    fn name(&self) -> &'static str;
    fn version(&self) -> u16;
    fn queue(&self) -> Queue;
    fn steps(&self) -> &'static [&'static str];
    /// Whether its steps have a variant for every unknown name (`#[serde(other)]`).
    fn takes_any_step(&self) -> bool;
    fn shape(&self) -> String;
    /// Decodes, runs the step (or, with a failure that is known, only its handler), encodes.
    fn run(
        self: Arc<Self>,
        row: Arc<Claimed>,
        poison: Option<Failure>,
        environment: Arc<Environment>,
    ) -> BoxFuture<'static, Decision>;
}

struct Typed<M, App> {
    app: Arc<App>,
    machine: PhantomData<fn() -> M>,
}

impl<M: Machine, App: Has<M::App> + Send + Sync + 'static> Kind for Typed<M, App> {
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
    ) -> BoxFuture<'static, Decision> {
        Box::pin(async move {
            let app: &App = &self.app;
            let begun = Instant::now();
            let decision = execute::execute::<M>(app.part(), &row, poison, &environment).await;
            Decision {
                story: M::STORY,
                took: begun.elapsed(),
                ..decision
            }
        })
    }
}

/// All machines that this engine can run.
#[derive(Default, Clone)]
pub(crate) struct Registry {
    kinds: HashMap<(String, u16), Arc<dyn Kind>>,
    /// What was registered, in order, for checks and for people.
    registered: Vec<Arc<dyn Kind>>,
}

impl Registry {
    /// Register a machine; every mistake of its wiring is found here.
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
                "{} v{} says that it upgrades from its own version",
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
        let kind: Arc<dyn Kind> = Arc::new(Typed::<M, App> {
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
                        "two machines claim the rows of {name} v{version}: only one can have them"
                    );
                    return Err(Error::invalid(message));
                }
            }
        }
        self.registered.push(kind);
        Ok(())
    }

    pub(crate) fn find(&self, fsm: &str, version: u16) -> Option<&Arc<dyn Kind>> {
        // The tuple key owns its string; a short allocation a step is not what limits us.
        self.kinds.get(&(fsm.to_owned(), version))
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Arc<dyn Kind>> {
        self.registered.iter()
    }

    /// 'name/version' of all rows that can be claimed.
    pub(crate) fn machines(&self) -> Vec<String> {
        let mut machines: Vec<String> = self
            .kinds
            .keys()
            .map(|(name, version)| format!("{name}/{version}"))
            .collect();
        machines.sort_unstable();
        machines
    }

    /// Returns the steps of all rows that can be claimed, as `gen_durable._knows_step` reads them: 'name/version/step', or
    /// 'name/version' for every step, of an older version that `upgrade` takes over.
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
