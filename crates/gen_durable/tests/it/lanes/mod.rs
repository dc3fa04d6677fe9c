//! Tests of lanes and partition keys: order, mutual exclusion, placement, successors, and the
//! pages and statements that they cost.

mod cost_keyed;
mod exclusion;
mod keyed;
mod order;
mod partitions;
mod placement;
mod plans_keyed;
mod producers;
mod successors;
