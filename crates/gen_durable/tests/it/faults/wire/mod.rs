//! Tests with a proxy that cuts or silences the connection between the engine and Postgres at each
//! statement that matters.

mod clock;
mod commits;
mod enqueues;
mod limits;
mod lossy;
mod lost_answers;
mod picks;
mod protocol;
pub(crate) mod proxy;
mod refusals;
mod shutdown;
mod silence;
pub(crate) mod stage;
mod upkeep;
pub(crate) mod walker;
mod within;
