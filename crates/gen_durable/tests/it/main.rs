//! Integration tests of the engine on a real Postgres, through the API that a user calls. All test
//! modules are one binary, so that the crate links once.
// A test may be long: it shows one sequence of events from begin to end.
#![allow(clippy::too_many_lines)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod api;
mod contract;
mod engine;
mod fair;
mod faults;
mod isolation;
mod lanes;
mod limits;
mod log;
mod support;
mod time;
mod upgrades;
