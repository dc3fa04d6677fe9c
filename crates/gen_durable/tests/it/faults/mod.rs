//! Tests of faults: killed and blocked processes, lost connections, locked rows, refused results,
//! bad input, a pooler.

mod bad_input;
mod locks;
mod locks_by_key;
mod poison;
mod pooler;
mod processes;
pub(crate) mod wire;
