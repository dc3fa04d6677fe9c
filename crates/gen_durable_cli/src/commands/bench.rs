//! `durable bench`: the workloads are in the crate `gen_durable_bench`.

pub(crate) use gen_durable_bench::{Args, run};
