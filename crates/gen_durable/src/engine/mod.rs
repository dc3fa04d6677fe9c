//! Running an engine: its builder, the handle of a running engine, its health, and how long it
//! keeps settled instances.
//!
//! [`Engine::builder`](crate::Engine::builder) begins; [`Engine::run`](crate::Engine::run) runs
//! until a shutdown future resolves, [`Engine::start`](crate::Engine::start) runs in a task of its
//! own.

mod batch_limit;
mod builder;
mod commit;
mod connections;
mod core;
mod drain;
mod encode;
pub(crate) mod execute;
mod failures;
mod fair;
mod fleet;
mod health;
mod lease;
mod local;
mod marks;
mod memory;
mod outages;
mod outcome;
mod pick;
pub(crate) mod projector;
pub(crate) mod registry;
mod release;
mod results;
mod rollup;
mod running;
pub(crate) mod schedules;
mod set_aside;
mod spawn;
pub(crate) mod start;
mod step;
mod step_tx_commit;
mod stuck;
pub(crate) mod timer_loop;
mod upkeep;
pub(crate) mod watch;
mod work;

pub(crate) use self::core::Phase;
pub(crate) use self::start::Engine;

pub use crate::settings::Retention;
pub use builder::EngineBuilder;
pub use failures::InstanceFailure;
pub use health::Health;
pub use registry::Has;
pub use running::RunningEngine;

/// An instance becomes a suspect after this many workers crashed while they had claimed it. A
/// process runs at most one suspect at a time.
pub(crate) const SUSPECT_CRASHES: i16 = 2;
