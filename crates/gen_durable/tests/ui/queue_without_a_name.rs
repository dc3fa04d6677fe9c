//! A queue without a name.
//~ error[E0080]
//~ the name of a queue must not be empty

pub const NAMELESS: gen_durable::Queue = gen_durable::Queue::new("");

fn main() {}
