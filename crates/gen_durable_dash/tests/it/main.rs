//! Tests the HTTP API of the dashboard with requests of a client to the real router on a real
//! Postgres, with one schema per test.
// A test may be long: it shows one sequence of events from begin to end.
#![allow(clippy::too_many_lines)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod access;
mod acts;
mod alerts;
mod audit;
mod bounds;
mod bounds_limits;
mod bounds_search;
mod browser;
mod lanes;
mod limits;
mod live;
mod numbers;
mod openapi;
mod projections;
mod reads;
mod redaction;
mod rollups;
mod sessions;
mod support;
mod till;
mod timers;
