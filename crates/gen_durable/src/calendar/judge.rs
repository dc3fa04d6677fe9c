//! What becomes of an occurrence whose time has come: it happens, or it was missed and another takes its place.

use jiff::{SignedDuration, Timestamp};

use super::{Cycle, First, Missed};

/// With [`Missed::Skip`], what is later than this does not happen.
const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// The judgement on an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Whether it happens. If not, it was missed.
    pub(crate) happens: bool,
    /// What comes after it.
    pub(crate) next: Option<First>,
    /// How many that were missed stand behind what comes after it.
    pub(crate) missed: u32,
}

/// Judge an occurrence of a cycle that began at `anchor`, by the database's time.
pub(crate) fn judge(
    cycle: &Cycle,
    anchor: Timestamp,
    due: Timestamp,
    remaining: Option<u32>,
    missed: u32,
    now: Timestamp,
) -> Judgement {
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
    let happens = || Judgement {
        happens: true,
        next: following(cycle.after(anchor, due), 1),
        missed: 0,
    };
    // Of a cycle that ends, no more can have been missed than there were.
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
        Missed::All => happens(),
        Missed::Latest => match latest() {
            (_, 0) => happens(),
            (latest, count) => Judgement {
                happens: false,
                next: following(Some(latest), count),
                missed: missed.saturating_add(count),
            },
        },
        Missed::Skip => {
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
                Some(last) if count > 0 => Judgement {
                    happens: false,
                    next: following(Some(last), count),
                    missed: 0,
                },
                _ => Judgement {
                    happens: false,
                    next: following(cycle.after(anchor, now), count + 1),
                    missed: 0,
                },
            }
        }
    }
}
