//! Tests of a running engine: picks, attempts, batches, limits, connections, failures that it
//! reports, metrics, retention.

mod attempts;
mod batches;
mod bounds;
mod callers;
mod connect;
mod connections;
mod failing;
mod fleet;
pub(crate) mod metrics;
pub(crate) mod observe;
mod retention;
mod rollups;
mod running;
