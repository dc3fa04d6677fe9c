//! The engine on a real Postgres, met as a user meets it. One binary: it links once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod bad_input;
mod basics;
mod locks;
mod poison;
mod pooler;
mod wire;
