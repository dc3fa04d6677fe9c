//! The engine on a real Postgres, met as a user meets it. One binary: it links once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod acts;
mod acts_between;
mod bad_input;
mod basics;
mod batches;
mod children;
mod connect;
mod cost;
mod engine;
mod evolution;
mod house;
mod iso;
mod lanes;
mod locks;
mod migrations;
mod observe;
mod operate;
mod partitions;
mod plans;
mod poison;
mod pooler;
mod processes;
mod signals;
mod sql_surface;
mod story;
mod support;
mod ui;
mod wire;
