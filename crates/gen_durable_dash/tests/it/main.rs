//! The API as a caller meets it: the real router, a real Postgres, a schema for each test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod acts;
mod audit;
mod bounds;
mod browser;
mod doors;
mod lanes;
mod live;
mod look;
mod openapi;
mod projections;
mod support;
mod till;
mod timers;
