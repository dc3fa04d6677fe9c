//! `durable bench`: the workloads live in a crate of their own.

pub(crate) use gen_durable_bench::{Args, run};
