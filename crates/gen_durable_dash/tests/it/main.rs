//! The HTTP API as a client uses it: the real router and a real Postgres, with one schema per test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod access;
mod acts;
mod audit;
mod bounds;
mod browser;
mod lanes;
mod live;
mod openapi;
mod projections;
mod reads;
mod support;
mod till;
mod timers;
