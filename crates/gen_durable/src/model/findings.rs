//! Counts of the conditions that need an operator.

use serde::Serialize;

/// Counts of the conditions that need an operator. Each count has a bound: 10,001 lanes, 10,001
/// timers plus 10,001 deadlines, and the first 1,000 schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Findings {
    /// The number of lanes that a failed head blocks.
    pub lanes_blocked: i64,
    /// The number of timers and deadlines that are overdue by more than a few seconds.
    pub overdue: i64,
    /// The number of schedules that an operator has paused.
    pub schedules_paused: i64,
    /// The number of schedules that no live worker has registered, or with a failed last
    /// occurrence.
    pub schedules_failing: i64,
}
