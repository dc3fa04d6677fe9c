//! The workloads, by name. A later one is a file, a variant and a line in each table below.

mod chain;
mod drain;
mod fan_out;
mod follow;
mod growth;
mod insert;
mod insert_many;
mod lanes;
mod partitions;
mod pickup;
pub(crate) mod projections;
mod signal;
mod timers;
mod xmin;

use anyhow::Result;
use clap::ValueEnum;

use crate::{bench::Bench, report::Measured};

/// What can be measured.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub enum Workload {
    /// 100,000 one-step jobs that wait: jobs a second
    Drain,
    /// 5,000 instances of 10 `next` steps, without their story: steps a second
    Chain,
    /// The same with their story: a line written with every commit
    ChainTold,
    /// Single enqueues by 10 callers: rows a second
    Insert,
    /// Enqueues of 1,000 in one call: rows a second
    InsertMany,
    /// From the commit of an enqueue to the start of its step; and what an idle engine costs
    Pickup,
    /// The first 10,000 jobs of a large backlog: their rate against that of a small one
    Growth,
    /// Pickup at 2,000 jobs a second while another connection holds an old snapshot, against the same without
    Xmin,
    /// From the commit of a signal to the start of the step that it wakes
    Signal,
    /// One parent, 1,000 children (100,000 too in the long form) and their join
    FanOut,
    /// 100 lanes of 100 jobs each, in two layouts; one producer and many; in the long form also 1,000 lanes beside one of a million
    Lanes,
    /// 100 partition keys of 100 jobs each; in the long form also beside a key with a backlog of a million
    Partitions,
    /// How late 1,000 timers a second fire, armed here and elsewhere; with many pending, and many overdue
    Timers,
    /// The event log and a projection of it: appends, catching up, lag, a rebuild while events arrive
    Projections,
}

impl Workload {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Workload; 14] = [
        Workload::Drain,
        Workload::Chain,
        Workload::ChainTold,
        Workload::Insert,
        Workload::InsertMany,
        Workload::Pickup,
        Workload::Growth,
        Workload::Xmin,
        Workload::Signal,
        Workload::FanOut,
        Workload::Lanes,
        Workload::Partitions,
        Workload::Timers,
        Workload::Projections,
    ];

    /// Its name, on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Drain => "drain",
            Workload::Chain => "chain",
            Workload::ChainTold => "chain_told",
            Workload::Insert => "insert",
            Workload::InsertMany => "insert_many",
            Workload::Pickup => "pickup",
            Workload::Growth => "growth",
            Workload::Xmin => "xmin",
            Workload::Signal => "signal",
            Workload::FanOut => "fan_out",
            Workload::Lanes => "lanes",
            Workload::Partitions => "partitions",
            Workload::Timers => "timers",
            Workload::Projections => "projections",
        }
    }

    /// What it is, in a line.
    pub(crate) fn about(self) -> String {
        let help = self
            .to_possible_value()
            .and_then(|value| value.get_help().map(ToString::to_string));
        help.unwrap_or_default()
    }

    pub(crate) async fn measure(self, bench: &Bench) -> Result<Measured> {
        match self {
            Workload::Drain => drain::measure(bench).await,
            Workload::Chain => chain::measure(bench, false).await,
            Workload::ChainTold => chain::measure(bench, true).await,
            Workload::Insert => insert::measure(bench).await,
            Workload::InsertMany => insert_many::measure(bench).await,
            Workload::Pickup => pickup::measure(bench).await,
            Workload::Growth => growth::measure(bench).await,
            Workload::Xmin => xmin::measure(bench).await,
            Workload::Signal => signal::measure(bench).await,
            Workload::FanOut => fan_out::measure(bench).await,
            Workload::Lanes => lanes::measure(bench).await,
            Workload::Partitions => partitions::measure(bench).await,
            Workload::Timers => timers::measure(bench).await,
            Workload::Projections => projections::measure(bench).await,
        }
    }
}
