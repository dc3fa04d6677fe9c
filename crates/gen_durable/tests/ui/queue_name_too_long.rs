//! A queue with a name that is too long to be stored.
//~ error[E0080]
//~ the name of a queue must be at most 63 bytes

pub const LONG: gen_durable::Queue =
    gen_durable::Queue::new("0123456789012345678901234567890123456789012345678901234567890123");

fn main() {}
