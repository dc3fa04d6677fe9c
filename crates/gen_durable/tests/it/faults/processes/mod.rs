//! Tests of faults of whole processes: workers that the test kills, suspends, blocks or terminates,
//! and a Postgres that becomes unavailable while workers run. The workers are real processes (this
//! test binary, started again), and they get real Unix signals.
//!
//! The steps append a line to a log file outside the database when they begin and end, so that the
//! tests count executions independently of the rows of the engine.

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
mod fleet;
mod kill;
mod limits;
mod outage;
#[cfg(target_os = "linux")]
mod skewed;
mod stop;
