//! The event log and projections, through the public API. All interleavings of their statements are
//! tested in `iso::log`.

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
