//! Tests of faults of whole processes: workers that are killed, suspended, blocked or terminated,
//! and a Postgres that becomes unavailable while they run. The workers are real processes (this
//! test binary, started again), and they get real Unix signals.
//!
//! The steps themselves write what they do into a file outside the engine, so that the tests count
//! executions independently of the state of the engine.

// Modules that support the tests.
mod kill_test;
mod machines;
mod place;
mod server;
mod worker;

// Modules with tests, one for each kind of fault.
mod asleep;
mod audit;
mod blocked;
mod crash;
mod drain;
mod family;
mod fence;
mod kill;
mod outage;
#[cfg(target_os = "linux")]
mod skewed;
mod stop;
