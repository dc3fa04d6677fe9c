//! The retry policy of a step: the number of attempts, the backoff between them, and the timeout.

use std::time::Duration;

use crate::{
    context::Context,
    failure::Failure,
    machine::Machine,
    transition::{Transition, fail, retry_after},
};

/// One second, for durations such as `2 * SECOND`.
pub const SECOND: Duration = Duration::from_secs(1);
/// One minute, for durations such as `2 * MINUTE`.
pub const MINUTE: Duration = Duration::from_secs(60);
/// One hour, for durations such as `2 * HOUR`.
pub const HOUR: Duration = Duration::from_secs(3600);
/// One day of 24 hours, for durations such as `2 * DAY`.
pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// The policy for a failed step, as the default `handle` applies it, and the timeout of a step.
///
/// If you implement `handle` yourself, only your `handle` decides about retries: no other limit
/// applies to the number of failures. Call [`apply`](Policy::apply) in it for the failures that the
/// policy should decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Fails the instance after this many failures of a step (20). Retries that the step asked for
    /// ([`retry_after`](crate::retry_after), [`postpone`](crate::postpone)) do not count, and
    /// neither do crashes of a worker.
    pub attempts: u32,
    /// The pause after the first failure (1 s); it doubles with each further failure.
    pub backoff_first: Duration,
    /// The longest pause between a failure of a step and its next run (5 minutes).
    pub backoff_max: Duration,
    /// Shortens each pause by up to this many percent (20), so that instances that failed together
    /// do not all run at the same moment. 0 disables the jitter. The jitter depends only on the
    /// instance's id and its number of failures, so it is the same for the same run.
    pub jitter_percent: u8,
    /// Fails a step that runs longer than this. `None` means the `step_timeout` of the engine (5
    /// minutes).
    pub timeout: Option<Duration>,
}

impl Policy {
    /// A policy that fails the instance at the first failure of a step.
    pub const ONCE: Policy = Policy {
        attempts: 1,
        backoff_first: SECOND,
        backoff_max: SECOND,
        jitter_percent: 0,
        timeout: None,
    };

    /// Returns the transition that this policy prescribes after a failed run of a step: `fail` with
    /// the message of the failure if the failure is fatal or the attempts are used up, and
    /// otherwise `retry_after` the backoff. The default [`handle`](Machine::handle) returns this
    /// transition; a `handle` of your own can return it too.
    pub fn apply<M: Machine>(&self, failure: &Failure, cx: &Context<'_, M>) -> Transition<M> {
        if failure.fatal || failure.failures.saturating_add(1) >= self.attempts {
            fail(failure.message.clone())
        } else {
            retry_after(self.delay_of(cx.id().raw(), failure.failures))
        }
    }

    /// Returns the pause after failure number `failures` (the first is 0), without jitter: it
    /// doubles each time, up to `backoff_max`.
    pub fn delay(&self, failures: u32) -> Duration {
        let doubled = 1_u32
            .checked_shl(failures)
            .filter(|factor| *factor > 0)
            .unwrap_or(u32::MAX);
        self.backoff_first
            .checked_mul(doubled)
            .unwrap_or(self.backoff_max)
            .min(self.backoff_max)
    }

    /// Returns the pause for this instance, with jitter: never longer than
    /// [`delay`](Policy::delay).
    pub fn delay_of(&self, id: i64, failures: u32) -> Duration {
        let delay = self.delay(failures);
        let share = f64::from(self.jitter_percent.min(100)) / 100.0;
        let shorter = delay.as_secs_f64() * share * fraction(id, failures);
        delay.saturating_sub(Duration::try_from_secs_f64(shorter).unwrap_or_default())
    }
}

/// Returns a pseudo-random number in [0, 1), by the mixing function of SplitMix64.
fn fraction(id: i64, failures: u32) -> f64 {
    let mut mixed = id
        .cast_unsigned()
        .wrapping_add(u64::from(failures).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            attempts: 20,
            backoff_first: SECOND,
            backoff_max: 5 * MINUTE,
            jitter_percent: 20,
            timeout: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_retries_doubles_up_to_backoff_max_and_never_overflows() {
        let policy = Policy::default();
        let pauses: Vec<u64> = [0, 1, 2, 8, 9, 31, 32, u32::MAX]
            .map(|n| policy.delay(n).as_secs())
            .to_vec();
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300, 300, 300]);
        let endless = Policy {
            backoff_first: Duration::MAX,
            backoff_max: Duration::MAX,
            ..Policy::default()
        };
        assert_eq!(endless.delay(3), Duration::MAX);
    }

    #[test]
    fn jitter_shortens_the_pause_between_retries_within_its_bound_and_differs_between_instances() {
        let policy = Policy {
            backoff_first: 100 * SECOND,
            ..Policy::default()
        };
        let pauses: Vec<Duration> = (1..=1_000).map(|id| policy.delay_of(id, 0)).collect();
        assert!(
            pauses
                .iter()
                .all(|pause| (80 * SECOND..=100 * SECOND).contains(pause))
        );
        for tenth in 0..10 {
            let from = 80 * SECOND + tenth * 2 * SECOND;
            let there = pauses
                .iter()
                .filter(|pause| (from..from + 2 * SECOND).contains(pause))
                .count();
            assert!(
                (50..=150).contains(&there),
                "{there} of 1,000 pauses are in the tenth {tenth}"
            );
        }
        assert_eq!(
            policy.delay_of(7, 0),
            policy.delay_of(7, 0),
            "the jitter is deterministic"
        );
        let even = Policy {
            jitter_percent: 0,
            ..policy
        };
        assert_eq!(even.delay_of(7, 0), even.delay(0));
        let endless = Policy {
            backoff_first: Duration::MAX,
            backoff_max: Duration::MAX,
            ..Policy::default()
        };
        assert!(endless.delay_of(1, 3) <= Duration::MAX);
    }
}
