//! Tests of the event log and of projections, through the public API. The module `iso::log` tests
//! all interleavings of their statements.

mod append;
mod board;
mod failures;
mod plans;
mod project;
mod redrive;
mod refused_commits;
mod runs;
mod tenants;
mod torture;
mod walk;
