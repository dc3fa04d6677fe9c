//! The engine on a real Postgres, met as a user meets it. One binary: it links once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod basics;
mod batches;
