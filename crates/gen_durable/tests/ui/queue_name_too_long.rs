//! A queue with a name that no row can keep.
//~ error[E0080]
//~ a queue's name is at most 63 bytes

pub const LONG: gen_durable::Queue =
    gen_durable::Queue::new("0123456789012345678901234567890123456789012345678901234567890123");

fn main() {}
