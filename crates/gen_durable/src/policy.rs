//! How often a step is tried, how long it may take, and how long it waits between tries.

use std::time::Duration;

/// One second, to count with: `2 * SECOND`.
pub const SECOND: Duration = Duration::from_secs(1);
/// One minute.
pub const MINUTE: Duration = Duration::from_secs(60);
/// One hour.
pub const HOUR: Duration = Duration::from_secs(3600);
/// One day of 24 hours.
pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// What the default `handle` does with a failed step, and how long a step may run.
///
/// Whoever writes `handle` decides alone: nothing else caps the attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// At most this many runs of a step (20).
    pub attempts: u32,
    /// The pause after the first failure (1 s); it doubles with each further one.
    pub backoff_first: Duration,
    /// The longest pause (5 minutes).
    pub backoff_max: Duration,
    /// A step that runs longer has failed. `None`: the engine's `step_timeout` (5 minutes).
    pub timeout: Option<Duration>,
}

impl Policy {
    /// Give up at the first failure.
    pub const ONCE: Policy = Policy { attempts: 1, backoff_first: SECOND, backoff_max: SECOND, timeout: None };

    /// The pause after failure number `attempt` (the first is 0): doubled each time, up to `backoff_max`.
    pub fn delay(&self, attempt: u32) -> Duration {
        let doubled = 1_u32.checked_shl(attempt).filter(|factor| *factor > 0).unwrap_or(u32::MAX);
        self.backoff_first.checked_mul(doubled).unwrap_or(self.backoff_max).min(self.backoff_max)
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { attempts: 20, backoff_first: SECOND, backoff_max: 5 * MINUTE, timeout: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_and_is_capped_and_never_overflows() {
        let policy = Policy::default();
        let pauses: Vec<u64> = [0, 1, 2, 8, 9, 31, 32, u32::MAX].map(|n| policy.delay(n).as_secs()).to_vec();
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300, 300, 300]);
        let endless = Policy { backoff_first: Duration::MAX, backoff_max: Duration::MAX, ..Policy::default() };
        assert_eq!(endless.delay(3), Duration::MAX);
    }
}
