//! The event log and projections: as a user meets them. In every order in which they can meet: `iso::log`.

mod append;
mod board;
mod failures;
mod plans;
mod project;
mod redrive;
mod refused;
mod runs;
mod tenants;
mod torture;
mod walk;
