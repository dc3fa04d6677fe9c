//! A queue without a name.
//~ error[E0080]
//~ a queue needs a name

pub const NAMELESS: gen_durable::Queue = gen_durable::Queue::new("");

fn main() {}
