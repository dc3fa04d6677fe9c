//! The HTTP API as a client uses it: the real router and a real Postgres, with one schema per test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod acts;
mod audit;
mod bounds;
mod browser;
mod access;
mod lanes;
mod live;
mod reads;
mod openapi;
mod projections;
mod support;
mod till;
mod timers;
