#![doc = include_str!("../README.md")]

// Public modules, by audience.
pub mod client;
pub mod engine;
pub mod inspect;
pub mod machine;
pub mod migrate;
pub mod operate;
pub mod prelude;
pub mod projection;
pub mod schedule;
#[cfg(feature = "testing")]
pub mod testing;

// Types that a user implements or returns from a step.
mod calendar;
mod children;
mod context;
mod error;
mod event;
mod failure;
mod history;
mod id;
mod job;
mod lane;
mod limit;
mod names;
mod new_instance;
mod policy;
mod signal;
mod transition;

// Calls that a user makes from outside a step.
mod admin;
mod audit;
mod log;
mod pool;
mod settings;
mod timetable;
mod transaction;

// The modules of the engine. They contain no SQL.
mod codec;
mod unknown;
mod wake;

// The values that the store reads rows into.
mod model;

// The store. This module contains all SQL of the crate.
mod store;

pub use client::{handle::Client, outgoing_signal::signal_to};
pub use context::Context;
pub use engine::start::Engine;
pub use error::{Error, OrFatal, StepError, fatal, postpone};
pub use event::Event;
pub use id::{Id, Queue};
pub use job::Job;
pub use lane::Lane;
pub use machine::definition::Machine;
pub use new_instance::NewInstance;
pub use policy::{DAY, HOUR, MINUTE, Policy, SECOND};
pub use pool::Pool;
pub use settings::Settings;
pub use signal::{Address, KeyScope, Signal};
pub use transition::{Outcome, Transition, done, fail, next, retry_after, sleep, spawn, wait_for};

/// Compiles and runs the programs of the guides together with the documentation tests.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../docs/workspace.md")]
    mod workspace {}
    #[doc = include_str!("../docs/guide/children.md")]
    mod children {}
    #[doc = include_str!("../docs/guide/jobs.md")]
    mod jobs {}
    #[doc = include_str!("../docs/guide/lanes.md")]
    mod lanes {}
    #[doc = include_str!("../docs/guide/limits.md")]
    mod limits {}
    #[doc = include_str!("../docs/guide/machines.md")]
    mod machines {}
    #[doc = include_str!("../docs/guide/operating.md")]
    mod operating {}
    #[doc = include_str!("../docs/guide/projections.md")]
    mod projections {}
    #[doc = include_str!("../docs/guide/signals.md")]
    mod signals {}
    #[doc = include_str!("../docs/guide/testing.md")]
    mod testing {}
    #[doc = include_str!("../docs/guide/timers.md")]
    mod timers {}
    #[doc = include_str!("../docs/guide/transactions.md")]
    mod transactions {}
    #[doc = include_str!("../docs/guide/upgrading.md")]
    mod upgrading {}
    #[doc = include_str!("../docs/guide/deploying.md")]
    mod deploying {}
    #[doc = include_str!("../docs/guide/from-dbos.md")]
    mod from_dbos {}
    #[doc = include_str!("../docs/guide/from-oban.md")]
    mod from_oban {}
    #[doc = include_str!("../docs/guide/from-river.md")]
    mod from_river {}
    #[doc = include_str!("../docs/guide/from-temporal.md")]
    mod from_temporal {}
    #[doc = include_str!("../docs/guide/getting-started.md")]
    mod getting_started {}
}
