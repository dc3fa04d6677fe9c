//! Tests of concurrent transactions: all interleavings of the acts, random acts against a model,
//! the columns that each act writes, isolation levels.

mod acts;
mod acts_across_instances;
pub(crate) mod iso;
mod levels;
mod model;
