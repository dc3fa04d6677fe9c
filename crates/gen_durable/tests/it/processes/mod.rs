//! Faults of whole processes: workers that are killed, stopped, blocked or told to go, and a Postgres that goes away
//! under them. The workers are real processes (this binary, started again), and the signals are real signals.
//!
//! What steps do is written by the steps themselves into a file outside the engine, so that executions can be counted
//! whatever the engine believes.

// What the tests stand on.
mod machines;
mod place;
mod server;
mod torture;
mod worker;

// The faults.
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
