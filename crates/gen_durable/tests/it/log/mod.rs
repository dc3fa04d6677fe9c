//! The event log and projections: as a user meets them, and in every order in which they can meet.

mod append;
mod board;
mod failures;
mod project;
mod runs;
