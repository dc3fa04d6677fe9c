//! The workloads of the bench by name. A new workload needs a module, a variant of `Workload`, and
//! a line in each table of the module `workloads`.

mod chain;
mod drain;
mod fan_out;
mod follow;
mod growth;
mod insert;
mod insert_many;
mod lanes;
mod limits;
mod partitions;
mod pickup;
pub(crate) mod projections;
mod quiet;
mod signal;
mod timers;
mod xmin;

use anyhow::Result;
use clap::ValueEnum;

use crate::{bench::Bench, report::Measured};

/// A workload.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub enum Workload {
    /// Drain 100,000 jobs with one step: jobs per second
    Drain,
    /// 5,000 instances with 10 `next` steps each, without history: steps per second
    Chain,
    /// The same with history: one history row per commit
    ChainHistory,
    /// Single enqueues by 10 callers: rows per second
    Insert,
    /// Enqueues of 1,000 rows per call: rows per second
    InsertMany,
    /// From the commit of an enqueue to the start of its step; and the cost of an idle engine
    Pickup,
    /// The first 10,000 jobs of a large backlog, compared with a small one
    Growth,
    /// Pickup at 2,000 jobs per second while another connection holds an old snapshot, compared
    /// with no snapshot
    Xmin,
    /// From the commit of a signal to the start of the step that it wakes
    Signal,
    /// One parent, 1,000 children (with --long also 100,000) and their join
    FanOut,
    /// 100 lanes of 100 jobs each, in two layouts; one producer and many; with --long also 1,000
    /// lanes beside one with a million instances
    Lanes,
    /// 100 partition keys of 100 jobs each; with --long also beside a key with a backlog of a
    /// million
    Partitions,
    /// The delay of 1,000 timers per second, set by this process and by another; with many pending,
    /// and with many overdue
    Timers,
    /// The event log and a projection: appends, catching up, lag, and a rebuild while events arrive
    Projections,
    /// Jobs with a limit that does not bind, compared with no limit; keys beside a saturated key;
    /// and whether more steps run than a limit allows
    Limits,
    /// The start of a quiet key's or tenant's jobs beside one with 1,000,000 instances, compared
    /// with the same jobs alone
    Quiet,
}

impl Workload {
    /// All workloads, in the order in which the bench measures them.
    pub const ALL: [Workload; 16] = [
        Workload::Drain,
        Workload::Chain,
        Workload::ChainHistory,
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
        Workload::Limits,
        Workload::Quiet,
    ];

    /// Returns the name of the workload on the command line and in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Drain => "drain",
            Workload::Chain => "chain",
            Workload::ChainHistory => "chain_history",
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
            Workload::Limits => "limits",
            Workload::Quiet => "quiet",
        }
    }

    /// Returns a description of the workload in one line.
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
            Workload::ChainHistory => chain::measure(bench, true).await,
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
            Workload::Limits => limits::measure(bench).await,
            Workload::Quiet => quiet::measure(bench).await,
        }
    }
}
