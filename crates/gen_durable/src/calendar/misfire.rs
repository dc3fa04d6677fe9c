//! Decides whether an occurrence that is due fires, or was missed and a later occurrence replaces
//! it.

use jiff::{SignedDuration, Timestamp};

use super::{Cycle, First, MisfirePolicy};

/// With [`MisfirePolicy::Skip`], an occurrence that is late by more than this duration does not
/// fire.
const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// Whether an occurrence that is due fires, and the occurrence after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MisfireDecision {
    /// Whether the due occurrence fires. If not, the occurrence was missed.
    pub(crate) happens: bool,
    /// The occurrence after the due occurrence, if there is one.
    pub(crate) next: Option<First>,
    /// The number of missed occurrences that the next occurrence replaces.
    pub(crate) missed: u32,
}

/// Decides whether an occurrence of a cycle that began at `anchor` fires, and which occurrence is
/// next. `now` is the time of the database.
pub(crate) fn decide(
    cycle: &Cycle,
    anchor: Timestamp,
    due: Timestamp,
    remaining: Option<u32>,
    missed: u32,
    now: Timestamp,
) -> MisfireDecision {
    let following = |due: Option<Timestamp>, used: u32| match (due, remaining) {
        (Some(due), None) => Some(First {
            due,
            remaining: None,
        }),
        (Some(due), Some(left)) if left >= used => Some(First {
            due,
            remaining: Some(left - used),
        }),
        _ => None,
    };
    let happens = || MisfireDecision {
        happens: true,
        next: following(cycle.after(anchor, due), 1),
        missed: 0,
    };
    // A cycle with a limit cannot have missed more occurrences than it had left.
    let latest = || {
        let (mut latest, mut count) = cycle.latest(anchor, due, now);
        if let Some(left) = remaining.filter(|left| *left < count) {
            latest = (0..left)
                .try_fold(due, |at, _| cycle.after(anchor, at))
                .unwrap_or(due);
            count = left;
        }
        (latest, count)
    };
    match cycle.missed_policy() {
        MisfirePolicy::All => happens(),
        MisfirePolicy::Latest => match latest() {
            (_, 0) => happens(),
            (latest, count) => MisfireDecision {
                happens: false,
                next: following(Some(latest), count),
                missed: missed.saturating_add(count),
            },
        },
        MisfirePolicy::Skip => {
            let (last, count) = latest();
            if count == 0 && now.duration_since(due) <= GRACE {
                return happens();
            }
            let next = if now.duration_since(last) <= GRACE {
                Some(last)
            } else {
                None
            };
            match next {
                Some(last) if count > 0 => MisfireDecision {
                    happens: false,
                    next: following(Some(last), count),
                    missed: 0,
                },
                _ => MisfireDecision {
                    happens: false,
                    next: following(cycle.after(anchor, now), count + 1),
                    missed: 0,
                },
            }
        }
    }
}
